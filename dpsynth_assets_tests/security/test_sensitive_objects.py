"""The sensitive store in an object store: one contract with the local one, and ciphertext alone."""

import importlib.util
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.files.whole import MARKER, Room
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.paths import home, located
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.releases.waiting import StoreUnavailableError
from dpsynth_assets.sensitive import part_tasks, private_files, sealed_objects
from dpsynth_assets.sensitive.fingerprints import (
    Fingerprints,
    Prints,
    Reader,
    store_key,
    text_prints,
)
from dpsynth_assets.sensitive.private_files import files_below
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.record_parts import files_of
from dpsynth_assets.sensitive.sealed_objects import SealedObjects
from dpsynth_assets.sensitive.sealing import HEADER, KEY_VARIABLE, SensitiveKeyError
from dpsynth_assets.sensitive.stored_parts import INPUTS, SortRecords, new_folder
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.security.conftest import EMBEDDINGS, RECORDS, TEXTS, fill, key
from dpsynth_assets_tests.stored import write_records

__all__ = ["bucket", "s3_address"]

OPEN = SimpleNamespace(id="r1", request=SimpleNamespace(event=GaussianEvent(noise_multiplier=1.0)))


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A home with a key."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    for name in ("DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL", "DPSYNTH_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(KEY_VARIABLE, key(1))


@pytest.fixture
def place(bucket, installation, monkeypatch):
    """A prefix that the installation keeps private files in."""
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", f"{bucket}/private")
    return located(f"{bucket}/private")


@pytest.fixture
def remote(place):
    return fill(SensitiveStore())


@pytest.fixture(params=["folder", "sealed folder", "objects", "a whole bucket"])
def root(request, tmp_path, monkeypatch):
    """The root of each kind of store."""
    if request.param in ("objects", "a whole bucket"):
        place = request.getfixturevalue("place")
        return place if request.param == "objects" else located(f"s3://{place.path.split('/')[0]}")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    if request.param == "sealed folder":
        monkeypatch.setenv(KEY_VARIABLE, key(1))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def objects(place):
    """Name below the prefix -> content of every object."""
    prefix = place.path.rstrip("/") + "/"
    return {name.removeprefix(prefix): place.fs.cat_file(name) for name in place.fs.find(prefix)}


def read(store):
    return store.read_internal("letters", "source", with_embeddings=True)


# One contract, whatever the place.


def test_files_are_written_found_and_removed(root):
    files = files_below(root)
    files.make_folder(root / "letters")
    one, two = root / "letters" / "one.json", root / "letters" / "two.parquet"
    assert not files.exists(one)
    assert files.matching(root / "letters", "*") == []
    assert files.matching(root / "nothing", "*") == []
    assert not files.is_folder(root / "nothing")
    for path in (one, two):
        files.write(path, path.name.encode())
    files.write(one, b"written again")
    assert (files.read(one), files.read(two)) == (b"written again", b"two.parquet")
    assert files.exists(one)
    assert not files.exists(root / "letters" / "on")
    assert not files.exists(root / "letters" / "one.json" / "deeper")
    assert files.matching(root / "letters", "*.json") == [one]
    assert files.matching(root, "[!.]*") == [root / "letters"]
    assert files.is_folder(root / "letters")
    assert 0 < files.last_written(one) <= files.last_written(root / "letters")
    files.remove(one)
    files.remove(one)  # It is gone already.
    assert files.matching(root / "letters", "*") == [two]
    files.remove(root / "letters")
    assert not files.is_folder(root / "letters")
    assert not files.exists(two)
    with pytest.raises(FileNotFoundError):
        files.read(one)


def test_a_part_is_the_same_by_its_path_alone(root):
    """Workers are given the path, and find the store by it."""
    part = root / "letters" / "parts-1" / "00000-of-00001"
    files_below(root).make_folder(part)
    files_of(part).write(part / "rows", b"counted")
    assert files_below(root).read(part / "rows") == b"counted"


def test_removing_a_folder_spares_one_whose_name_begins_alike(root):
    files = files_below(root)
    for name in ("part", "part-2"):
        files.make_folder(root / name)
        files.write(root / name / "rows", b"kept")
    files.discard(root / "part")
    assert files.matching(root, "*") == [root / "part-2"]
    assert files.read(root / "part-2" / "rows") == b"kept"


def test_of_two_writers_where_nothing_was_the_first_wins(root, monkeypatch):
    """The second has seen that nothing is there, and comes too late with its own content."""
    files, path, replaced = files_below(root), root / "key", private_files.replaced

    def the_first():
        with monkeypatch.context() as another:
            another.setattr(private_files, "replaced", replaced)
            if isinstance(root, Path):  # Temporary files are named by the process.
                another.setattr(private_files.os, "getpid", lambda: 1)
            files_below(root).write(path, b"the first", only_if_absent=True)

    @contextmanager
    def overtaken(path, **options):
        with replaced(path, **options) as new:
            yield new
            the_first()

    if isinstance(root, Path):
        monkeypatch.setattr(private_files, "replaced", overtaken)
    else:  # The store itself looks and writes in one step.
        the_first()
    files.write(path, b"the second", only_if_absent=True)
    assert files.read(path) == b"the first"
    monkeypatch.setattr(private_files, "replaced", replaced)
    files.write(path, b"meant")
    assert files.read(path) == b"meant"


def test_an_empty_folder_is_found_once_it_was_begun(root):
    files = files_below(root)
    files.make_folder(root / "passes")
    assert not files.has_begun(root / "passes" / "r1")
    files.begin_folder(root / "passes" / "r1")
    assert files.has_begun(root / "passes" / "r1")
    assert files.matching(root / "passes" / "r1", "*") == []
    files.remove(root / "passes" / "r1")
    assert not files.has_begun(root / "passes" / "r1")


def test_a_folder_is_stored_whole_and_opened_as_it_was(root, tmp_path):
    files, target = files_below(root), root / "3"
    plain = tmp_path / "plain"
    (plain / "deep").mkdir(parents=True)
    (plain / "deep" / "state.json").write_bytes(TEXTS[0].encode())
    (plain / "empty").write_bytes(b"")
    assert not files.is_whole(target)
    files.store_folder(plain, target)
    assert files.is_whole(target)
    assert not plain.exists()
    opened = files.open_folder(target, tmp_path / "opened")
    kept = {path.relative_to(opened).as_posix() for path in opened.rglob("*") if path.is_file()}
    assert kept == {"deep/state.json", "empty"}
    assert (opened / "deep" / "state.json").read_text() == TEXTS[0]


def test_what_is_sorted_or_counted_too_late_stays_nowhere(root, monkeypatch):
    """An object needs no folder: a worker that comes too late takes its own files away."""
    files, release = files_below(root), root / "letters" / "passes" / "r-1"
    files.make_folder(root / "letters", root / "letters" / "passes", release)
    folder = new_folder(files, release, INPUTS)
    places = tuple(folder / f"pass-{number:05d}" for number in range(2))
    files.make_folder(*places)
    files.withdraw(folder)
    records = PrivateInputs(records=pl.DataFrame({"text": [TEXTS[0]]}))
    monkeypatch.setattr(SortRecords, "_records", lambda *_: records)
    monkeypatch.setattr(part_tasks, "read_part", lambda *_, **__: records)
    part = root / "letters" / "parts-1" / "00000-of-00002"
    late = SortRecords(lambda number, private: {0: private.records}, places, (0, 1), False, False)
    count = part_tasks.Count(lambda _: np.ones(20_000, dtype=np.int64), False, release / "exchange")
    for task in (late, count):
        with pytest.raises(FileNotFoundError):
            task(part)
    assert files.matching(release, "*") == []


def test_a_stored_folder_that_two_runs_wrote_does_not_open(place, tmp_path):
    files, plain = files_below(place), tmp_path / "plain"
    plain.mkdir()
    (plain / "state").write_bytes(b"of the first")
    files.store_folder(plain, place / "3")
    files.write(place / "3" / "state", b"of the second")
    with pytest.raises(SensitiveKeyError, match="as it was listed"):
        files.open_folder(place / "3", tmp_path / "opened")


def test_one_at_a_time_is_alone(root):
    files, began, order = files_below(root), threading.Event(), []

    def second():
        began.set()
        with files_below(root).alone(root / "lock"):
            order.append("second")

    with files.alone(root / "lock"):
        other = threading.Thread(target=second)
        other.start()
        assert began.wait(60)
        other.join(0.3)
        order.append("first")
    other.join(60)
    assert order == ["first", "second"]


def prints(place, texts):
    """Fingerprints of texts under the store's key."""
    return Prints(text_prints(texts, store_key(files_below(place), place)))


# What the bucket holds.


def test_everything_comes_back_as_it_was_stored_and_nothing_lies_on_the_disk(remote):
    private = read(remote)
    assert private.records.equals(RECORDS)
    np.testing.assert_array_equal(private.embeddings, EMBEDDINGS)
    assert remote.read_internal_text("letters", "source_embeddings.version") == "v1"
    assert not home().local_sensitive.exists()


def test_no_body_and_no_name_of_an_object_holds_a_private_byte(remote, place):
    passes = remote.passes("letters", OPEN)
    passes.begin()
    passes.save(1, {"text": TEXTS[0]})
    drawn = "ab" * 32
    passes.keep_cost(drawn, 1.25)
    assert passes.cost(drawn) == 1.25
    assert passes.cost("cd" * 32) is None
    remote.contributions("letters").note("r1", RECORDS)
    reader = Reader(cohort="letters", account="letters", dataset="letters")
    Fingerprints(files_below(place), place).admit(reader, prints(place, TEXTS))
    needles = [text.encode() for text in (*TEXTS, "record-a", "user-1", drawn)]
    needles.append(EMBEDDINGS[1].tobytes())
    for name, content in objects(place).items():
        assert content.startswith(HEADER), name
        assert not [needle for needle in needles if needle in name.encode() + content], name


@pytest.mark.parametrize("rows", [1, 100, 5_000, 70_000])
def test_the_size_of_an_object_tells_its_content_to_one_part_in_eight(place, rows):
    """All that is as long, to one part in eight, has one size; one row more shows nowhere."""
    files, sizes = files_below(place), []
    for more in (0, 1):
        plain = bytes(16 * (rows + more))
        files.write(place / "rows", plain)
        assert files.read(place / "rows") == plain
        sizes.append(place.fs.info((place / "rows").path)["size"])
    assert sizes[0] == sizes[1]
    assert sizes[0] <= max(4096, 16 * rows * 1.125) + 200


@pytest.mark.parametrize("length", [0, 1, 4087, 4088, 4089, 1 << 16])
def test_contents_of_every_length_come_back(place, length):
    files, plain = files_below(place), bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    files.write(place / "file", plain)
    assert files.read(place / "file") == plain


def test_a_sealed_file_of_a_folder_is_no_object(place, tmp_path):
    folder = files_below(tmp_path)
    folder.write(tmp_path / "rows", b"12345678 of a folder")
    place.fs.pipe_file((place / "rows").path, (tmp_path / "rows").read_bytes())
    with pytest.raises(SensitiveKeyError, match="was altered"):
        files_below(place).read(place / "rows")


def test_a_store_without_a_key_is_refused_in_one_line(remote, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    for refused in (lambda: read(remote), lambda: write_records(remote, "x", "source", RECORDS)):
        with pytest.raises(SensitiveKeyError, match="nothing private leaves this machine") as told:
            refused()
        assert "\n" not in str(told.value)


def test_a_store_begun_with_another_key_is_neither_written_nor_paid_for(remote, place, monkeypatch):
    before = objects(place)
    monkeypatch.setenv(KEY_VARIABLE, key(2))
    begun = "created with, got another one"
    for refused, words in (
        (lambda: remote.passes("letters", OPEN).begin(), begun),
        # The digest of the records that are there is read first.
        (lambda: write_records(remote, "letters", "source", RECORDS), "got another key"),
        (lambda: files_below(place).write(place / "key", b"", only_if_absent=True), begun),
    ):
        with pytest.raises(SensitiveKeyError, match=words) as told:
            refused()
        assert "\n" not in str(told.value)
    assert objects(place) == before
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    remote.passes("letters", OPEN).begin()


def test_plain_altered_and_moved_objects_are_refused(remote, place):
    place.fs.pipe_file((place / "letters" / "source_embeddings.version").path, b"v1")
    with pytest.raises(SensitiveKeyError, match="a file that is not"):
        remote.read_internal_text("letters", "source_embeddings.version")
    rows = (place / "letters" / "source.parquet").path
    kept = place.fs.cat_file(rows)
    place.fs.pipe_file(rows, kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(SensitiveKeyError, match="was altered"):
        read(remote)
    other = (place / "letters" / "non_private_corpus.parquet").path
    place.fs.pipe_file(rows, place.fs.cat_file(other))
    with pytest.raises(SensitiveKeyError, match="was altered"):
        read(remote)


# Two machines.


def test_of_two_cohorts_that_are_admitted_at_once_one_is_refused(place):
    """The second begins while the first compares, on a machine that shares the ledger."""
    texts = [f"a letter of somebody, number {n}" for n in range(20)]
    answers, began = {}, threading.Event()

    def admit(name):
        reader = Reader(cohort=name, account=name, dataset=name)
        return Fingerprints(files_below(place), place).admit(reader, prints(place, texts))

    def second():
        began.set()
        answers["two"] = admit("two")

    other = threading.Thread(target=second)

    class First(Fingerprints):
        def _readers(self):
            other.start()
            assert began.wait(60)
            other.join(0.3)
            assert "two" not in answers, "it was compared while the first was not yet kept"
            return super()._readers()

    reader = Reader(cohort="one", account="one", dataset="one")
    assert First(files_below(place), place).admit(reader, prints(place, texts)) is None
    other.join(60)
    assert answers == {"two": "one"}


def test_a_store_that_takes_no_notice_of_conditions_is_refused(place, monkeypatch):
    def overwriting(path, content, mode="overwrite"):
        return pipe(path, content)

    pipe = place.fs.pipe_file
    monkeypatch.setattr(sealed_objects, "_proven", set())
    monkeypatch.setattr(place.fs, "pipe_file", overwriting)
    with pytest.raises(StoreUnavailableError, match="If-None-Match"):
        SealedObjects(place).write(place / "key", b"x", only_if_absent=True)


def test_a_conflict_of_two_writers_is_a_lost_race_and_not_an_error(place, monkeypatch):
    files = SealedObjects(place)
    files._require_fitness()
    files.write(place / "key", b"the first")

    def conflicting(*arguments, **options):
        raise OSError("ConditionalRequestConflict")

    monkeypatch.setattr(place.fs, "pipe_file", conflicting)
    files.write(place / "key", b"the second", only_if_absent=True)
    assert files.read(place / "key") == b"the first"
    with pytest.raises(StoreUnavailableError):
        files.write(place / "other", b"the second", only_if_absent=True)


def test_a_store_out_of_reach_is_an_error_and_never_an_empty_store(remote, place, monkeypatch):
    remote.read_records.note_paid("letters", "version 1", "first")
    assert remote.read_records.differ("letters", "version 1", lambda _: "second")

    def unreachable(*arguments, **options):
        raise ConnectionError("https://key:secret@host")

    for name in ("info", "ls", "find", "cat_file", "pipe_file"):
        monkeypatch.setattr(place.fs, name, unreachable)
    for refused in (
        lambda: remote.read_records.differ("letters", "version 1", lambda _: "second"),
        lambda: read(remote),
        lambda: remote.passes("letters", OPEN).begun,
        lambda: remote.passes("letters", OPEN).begin(),
        lambda: purge(remote, PurgeRule(), lambda _: False),
    ):
        with pytest.raises(StoreUnavailableError, match="ConnectionError") as told:
            refused()
        assert "secret@host" not in str(told.value)
        assert "\n" not in str(told.value)


def test_a_missing_bucket_is_said_where_something_is_to_be_kept(place, monkeypatch):
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", "s3://no-such-bucket-anywhere/prefix")
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        SensitiveStore().passes("letters", OPEN).begin()


# Unfinished work.


def test_a_checkpoint_cut_short_leaves_the_one_before(remote, place, monkeypatch):
    kept = remote.checkpoint("letters", OPEN)
    assert not kept.begun
    kept.begin()
    assert remote.checkpoint("letters", OPEN).begun
    assert kept.saved is None
    kept.save(kept.filled(lambda folder: (folder / "state.json").write_text(TEXTS[0])))
    put = SealedObjects._put

    def cut(self, path, content):
        if path.name == MARKER:
            raise KeyboardInterrupt
        put(self, path, content)

    monkeypatch.setattr(SealedObjects, "_put", cut)
    with pytest.raises(KeyboardInterrupt):
        kept.save(kept.filled(lambda folder: (folder / "state.json").write_text("half")))
    assert "letters/passes/r1/2/state.json" in objects(place)
    again = remote.checkpoint("letters", OPEN)
    assert (again.saved / "state.json").read_text() == TEXTS[0]
    monkeypatch.setattr(SealedObjects, "_put", put)
    again.save(again.filled(lambda folder: (folder / "state.json").write_text("whole")))
    assert (remote.checkpoint("letters", OPEN).saved / "state.json").read_text() == "whole"
    assert not [name for name in objects(place) if "/r1/1/" in name]
    again.remove()
    assert not again.begun
    assert not [name for name in objects(place) if "/passes/" in name]


def test_a_mark_that_somebody_else_made_is_refused(remote, place):
    """A draw under a charge whose first draw is lost would be a second release."""
    passes = remote.passes("letters", OPEN)
    passes.begin()
    marks = {name: content for name, content in objects(place).items() if "/passes/" in name}
    ((name, content),) = marks.items()
    forged = name.replace("/r1/", "/r2/")
    place.fs.pipe_file((place / forged).path, content)
    with pytest.raises(SensitiveKeyError, match="was altered"):
        _ = remote.passes("letters", SimpleNamespace(id="r2")).begun
    assert passes.begun


# The leak scan.


def test_the_leak_scan_says_that_it_looks_at_folders_alone(remote, tmp_path):
    (tmp_path / "canaries.txt").write_text(TEXTS[0])
    (tmp_path / "home").mkdir(exist_ok=True)
    told = dpsynth("leak-scan", "--canaries", tmp_path / "canaries.txt", code=0)
    assert "were not searched" in told.output


# The address.


@pytest.mark.parametrize(
    "address",
    [
        "/mnt/private",
        "file:///mnt/private",
        "memory://x",
        "az://box/x",
        "s3://",
        "s3://k:s@b/x",
        "s3://b/x?y",
    ],
)
def test_an_address_that_is_no_object_store_is_refused_and_not_shown(
    installation, monkeypatch, address
):
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", address)
    with pytest.raises(PrivacyError, match="expected s3://bucket/prefix or gs://") as told:
        read(SensitiveStore())
    assert "k:s@" not in str(told.value)


@pytest.mark.parametrize("variable", ["DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL"])
@pytest.mark.parametrize(
    ("private", "shared", "apart"),
    [
        ("s3://box/a", "s3://box/a", False),
        ("s3://box/a/b", "s3://box/a/", False),
        ("s3://box/a", "s3://box/a/b", False),
        ("s3://box/a", "s3://box", False),
        ("s3://box//c/../a", "s3://k:s@box/a/b", False),
        ("s3://box/ab", "s3://box/a", True),
        ("s3://box/a", "s3://other/a", True),
        ("s3://box/a", "/mnt/store", True),
    ],
)
def test_the_prefix_lies_apart_from_what_others_read(
    installation, monkeypatch, variable, private, shared, apart
):
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", private)
    monkeypatch.setenv(variable, shared)
    if apart:
        assert str(home().sensitive) == private
        return
    with pytest.raises(PrivacyError, match=f"a prefix apart from {variable}"):
        _ = home().sensitive


def test_google_storage_without_its_library_is_one_line(installation, monkeypatch):
    if importlib.util.find_spec("gcsfs") is not None:
        pytest.skip("gcsfs is installed here")
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", "gs://box/private")
    for refused in (lambda: read(SensitiveStore()), lambda: fill(SensitiveStore())):
        with pytest.raises(StoreUnavailableError, match="Install the extra `s3` or `gcs`") as told:
            refused()
        assert "\n" not in str(told.value)


def test_unfinished_work_in_an_object_store_asks_for_no_disk(installation, monkeypatch):
    asked = {}
    for address in ("", "s3://box/private"):
        monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", address)
        needs = ReleaseStore()._needs(Room(release=100, kept=10, corpus=1), None)
        asked[address] = {name: size for name, _, size in needs}
    assert asked[""].pop("unfinished draws") == 120
    assert asked["s3://box/private"] == asked[""]
    assert asked[""]["plain files"] == 120
