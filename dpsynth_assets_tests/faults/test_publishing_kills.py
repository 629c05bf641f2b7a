"""kill -9 while a published folder is replaced: the old one or the new one is there, whole."""

import os
import signal
from pathlib import Path

import pytest

from dpsynth_assets.files import whole
from dpsynth_assets.files.whole import replaced_whole

NAMES = ("README.md", "data.parquet", "privacy_label.json")


def write(folder, version):
    with replaced_whole(folder) as new:
        for name in NAMES:
            (new / name).write_text(f"{name} of {version}\n" * 200)


def version_of(folder):
    """The version that every file of the folder is of."""
    found = {(folder / name).read_text().splitlines()[0] for name in NAMES}
    versions = {text.rsplit(" ", maxsplit=1)[-1] for text in found}
    assert len(found) == len(NAMES)
    assert len(versions) == 1
    return int(versions.pop())


def in_a_child(run):
    pid = os.fork()
    if pid:
        return pid
    try:
        run()
    finally:
        os._exit(0)


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_a_kill_around_the_exchange_leaves_the_old_or_the_new(tmp_path, moment):
    """Within it there is no moment: a kill at a rename of its own never comes."""
    final = tmp_path / "corpus"
    write(final, 100)
    take_place = whole._take_place

    def killed(new, old):
        if moment == "after":
            take_place(new, old)
        os.kill(os.getpid(), signal.SIGKILL)

    def publish():
        if moment == "within":
            Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        else:
            whole._take_place = killed
        write(final, 101)

    status = os.waitpid(in_a_child(publish), 0)[1]
    assert status == (0 if moment == "within" else signal.SIGKILL)
    assert version_of(final) == (100 if moment == "before" else 101)
    write(final, 102)
    assert version_of(final) == 102
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_an_error_leaves_what_was_published(tmp_path):
    final = tmp_path / "corpus"
    write(final, 100)

    def failing():
        with replaced_whole(final) as new:
            (new / "README.md").write_text("half")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        failing()
    assert version_of(final) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_folders_beside_it_that_are_not_ours_stay(tmp_path):
    """A package may be written anywhere: `.env.backup` is no rest of the folder `env`."""
    final, mine = tmp_path / "env", [".env.backup", ".env.1234567", ".env.0123abcd.d", ".envx.old"]
    for name in mine:
        (tmp_path / name).mkdir()
    for left in (".env.0123abcd", ".env.0123abcd.old"):
        (tmp_path / left).mkdir()
    write(final, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*mine, "env"])


def test_a_file_system_without_an_exchange_gets_the_new_folder(tmp_path, monkeypatch):
    final = tmp_path / "corpus"
    write(final, 100)
    monkeypatch.setattr(whole, "_EXCHANGE", 1 << 20)  # A flag that no system knows.
    write(final, 101)
    assert version_of(final) == 101
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
