"""Laws of every file that is replaced, of locks, and of folders for their owner alone."""

import os
import signal
import threading

import pytest

from dpsynth_assets.files.whole import is_held, write_whole
from dpsynth_assets.privacy.ledger.replacing import alone, owner_folder, replaced


@pytest.fixture(autouse=True)
def _no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


def dies(run):
    """Runs in a process of its own, which must be killed in it."""
    if not (child := os.fork()):
        try:
            run()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_reader_sees_the_old_file_until_it_sees_the_new_one(tmp_path):
    path = tmp_path / "value"
    write_whole(path, "old")
    with replaced(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def fail_while_replacing(path):
    with replaced(path) as new:
        new.write_text("ne")
        path.parent.write_text("w")


@pytest.mark.parametrize("there", [True, False])
def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path, there):
    path = tmp_path / "value"
    if there:
        write_whole(path, "old")
    with pytest.raises(IsADirectoryError):
        fail_while_replacing(path)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"] * there


def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path):
    path = tmp_path / "value"
    write_whole(path, "old")

    def killed():
        with replaced(path) as new:
            new.write_text("new")
            os.kill(os.getpid(), signal.SIGKILL)

    dies(killed)
    assert path.read_text() == "old"


def test_files_and_the_folders_made_for_them_are_the_owners_alone(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    path = tmp_path / "open" / "a" / "b" / "value"
    write_whole(path, b"one")
    path.chmod(0o644)
    write_whole(path, "two")
    assert [mode(each) for each in (path, *path.parents[:3])] == [0o600, 0o700, 0o700, 0o755]
    assert [mode(owner_folder(tmp_path / "c" / "d")), mode(tmp_path / "c")] == [0o700, 0o700]


def test_where_a_file_is_the_first_one_stays(tmp_path):
    path = tmp_path / "value"
    for content in ("first", "second"):
        with replaced(path, only_if_absent=True) as new:
            new.write_text(content)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_at_a_time_is_in_a_lock_and_a_kill_releases_it(tmp_path, kind):
    place, entered, waited = tmp_path / "lock", [], threading.Event()
    if kind == "folder":
        place.mkdir()

    def second():
        with alone(place, waited.set):
            entered.append(True)

    def killed():
        with alone(place):
            os.kill(os.getpid(), signal.SIGKILL)

    dies(killed)
    other = threading.Thread(target=second)
    with alone(place):
        assert is_held(place)
        other.start()
        assert waited.wait(60)
        assert not entered
    other.join()
    assert entered
    assert not is_held(place)
    assert kind == "folder" or mode(place) == 0o600


def test_a_file_does_not_bring_its_folder_back(tmp_path):
    with pytest.raises(FileNotFoundError), replaced(tmp_path / "removed" / "value"):
        pass
    assert not list(tmp_path.iterdir())
