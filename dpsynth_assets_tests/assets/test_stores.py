"""Stores: owner-only, atomic, and closed to readers without a reservation.

What holds for releases and public values holds on a disk and in an object store: moto's S3 server
runs in a process of its own and is reached through s3fs, as a real one would be.
"""

import base64
import errno
import logging
import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import numpy as np
import polars as pl
import pytest

from dpsynth_assets.files.whole import Room
from dpsynth_assets.orchestration.resources.stores import (
    ArtifactIOManager,
    ReleaseStore,
    SensitiveStore,
)
from dpsynth_assets.privacy.errors import PrivacyError, UnaccountedReleaseError
from dpsynth_assets.privacy.events import POST_PROCESSING, GaussianEvent
from dpsynth_assets.releases import waiting
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.sensitive import private_files
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets.workers.local_processes import LocalWorkers
from dpsynth_assets_tests.stored import write_embeddings, write_records

RECORDS = pl.DataFrame(
    {"record_id": ["a", "b"], "unit_id": ["a", "b"], "text": ["one", "two"], "label": ["", ""]}
)


def read(sensitive, reservation="r1", event=None, *, with_embeddings=False, workers=None):
    """Reads the records for a reservation, of which `r1` alone is open."""
    ledger = SimpleNamespace(is_open=lambda name: name == "r1")
    paid = SimpleNamespace(id=reservation, request=SimpleNamespace(event=event or EVENT))
    return sensitive.read_for_release(
        "tickets", ledger=ledger, reservation=paid, with_embeddings=with_embeddings,
        workers=workers,
    )  # fmt: skip


@pytest.fixture
def sensitive(tmp_path):
    store = SensitiveStore.at(str(tmp_path / "sensitive"))
    write_records(store, "tickets", "source", RECORDS)
    store.read_records.note_read("tickets", "version 1", "declared", "rows")
    write_embeddings(store, "tickets", "source", np.eye(2, 3, dtype=np.float32))
    return store


EVENT = GaussianEvent(noise_multiplier=1.0)


def test_post_processing_cannot_read_private_records(sensitive):
    with pytest.raises(UnaccountedReleaseError, match="post-processing"):
        read(sensitive, event=POST_PROCESSING)


@pytest.mark.parametrize("workers", [None, LocalWorkers(1)])
def test_mechanism_cannot_read_without_an_open_reservation(sensitive, workers):
    with pytest.raises(UnaccountedReleaseError, match="open reservation"):
        read(sensitive, "closed", workers=workers)


def test_mechanism_reads_aligned_records_and_embeddings_with_its_reservation(sensitive):
    private = read(sensitive, with_embeddings=True)
    assert private.records.equals(RECORDS)
    assert private.embeddings.shape == (2, 3)
    assert "one" not in repr(private)


def test_the_records_that_a_mechanism_reads_are_those_of_their_version_from_then_on(sensitive):
    rows = sensitive.read_records
    rows.note_read("tickets", "version 1", "declared", "first")
    assert not rows.differ("tickets", "version 1", "second"), "nothing was paid for"
    read(sensitive)
    assert rows.differ("tickets", "version 1", "second")
    assert not rows.differ("tickets", "version 1", "first")
    rows.note_read("tickets", "version 1", "declared", "second")
    with pytest.raises(PrivacyError, match=r"raise source\.version") as told:
        sensitive.pay_for_records("tickets")
    assert "\n" not in str(told.value)


def test_embeddings_of_other_records_go_with_those_records(sensitive):
    """As many others: row by row the old embeddings would be taken for those of the new."""
    write_records(sensitive, "tickets", "source", RECORDS)
    sensitive.require_records("tickets", with_embeddings=True)
    write_records(sensitive, "tickets", "source", RECORDS.with_columns(text=pl.lit("three")))
    with pytest.raises(PrivacyError, match=r"private_embeddings.* Nothing was charged"):
        sensitive.pay_for_records("tickets", with_embeddings=True)
    write_embeddings(sensitive, "tickets", "source", np.eye(7, 3, dtype=np.float32))
    with pytest.raises(PrivacyError, match="one embedding per record"):
        sensitive.read_internal("tickets", "source", with_embeddings=True)


def test_a_flipped_byte_of_the_plain_records_is_noticed(sensitive):
    file = sensitive.folder("tickets") / "source.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(PrivacyError, match="as it was written, got other content"):
        sensitive.read_internal("tickets", "source")


def io_contexts(key):
    return dg.build_output_context(asset_key=dg.AssetKey(key)), dg.build_input_context(
        asset_key=dg.AssetKey(key), instance=dg.DagsterInstance.ephemeral()
    )


@pytest.mark.parametrize(
    "value", [RECORDS, np.arange(6).reshape(2, 3), {"a": [1, 2]}, [1, "two"]], ids=repr
)
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_values_come_back_from_the_io_manager_as_they_went(tmp_path, request, place, value):
    address = request.getfixturevalue("bucket") if place == "bucket" else str(tmp_path)
    manager = ArtifactIOManager.at(address)
    output, source = io_contexts(["public", "demo", "thing"])
    manager.handle_output(output, value)
    loaded = manager.load_input(source)
    if isinstance(value, pl.DataFrame):
        assert loaded.equals(value)
    else:
        np.testing.assert_array_equal(loaded, value)


def test_io_manager_refuses_what_only_a_pickle_could_hold_and_names_what_is_missing(tmp_path):
    output, source = io_contexts(["public", "demo", "thing"])
    manager = ArtifactIOManager.at(str(tmp_path))
    with pytest.raises(dg.Failure, match="pickles are not stored"):
        manager.handle_output(output, object())
    with pytest.raises(dg.Failure, match="Materialise public/demo/thing first"):
        manager.load_input(source)


def test_a_checkpoint_appears_whole_and_replaces_the_one_before(sensitive):
    kept = sensitive.checkpoint("tickets", SimpleNamespace(id="r2"))
    assert not kept.begun
    kept.begin()
    assert kept.begun
    kept.filled(lambda folder: (folder / "half.json").write_text("1"))
    assert kept.saved is None, "no checkpoint before it is saved"
    for step in (1, 2):
        before = kept.saved
        kept.save(kept.filled(lambda folder, step=step: (folder / "step").write_text(str(step))))
        assert [path.name for path in kept.saved.iterdir()] == ["step"]
        assert (kept.saved / "step").read_text() == str(step)
        assert before is None or not before.exists()
    assert stat.S_IMODE((kept.saved / "step").stat().st_mode) == 0o600
    kept.remove()
    assert kept.saved is None


@pytest.fixture
def made(tmp_path):
    """Files of a release: a model's weights in a folder."""
    folder = tmp_path / "made"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights.safetensors").write_bytes(b"12345678")
    return folder


def test_a_release_in_an_object_store_is_the_one_on_a_disk(bucket, tmp_path, made, own_home):
    local, remote = ReleaseStore.at(str(tmp_path / "releases")), ReleaseStore.at(bucket)
    assert not remote.has("r1")
    here, _ = local.save("r1", {"rows": 2}, RECORDS.select("text"), made)
    there, address = remote.save("r1", {"rows": 2}, RECORDS.select("text"), made)
    assert there == here
    assert address == f"{bucket}/r1"
    for store in (local, remote):
        facts, rows = store.load("r1")
        assert facts == {"rows": 2}
        assert rows.equals(RECORDS.select("text"))
        assert store.save("r2", {"rows": 3})[0] != here
    assert (remote.files("r1") / "model" / "weights.safetensors").read_bytes() == b"12345678"
    assert not remote.files("r1").joinpath("facts.json").exists()
    remote.save("r3", {"rows": 2}, None, made)
    for store in (local, remote):
        (store.folder("r1") / "files" / "model" / "weights.safetensors").write_bytes(b"forged")
        assert store.digest("r1") != here
    (remote.folder("r3") / "files" / "model" / "weights.safetensors").write_bytes(b"forged")
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        remote.files("r3")


def test_a_release_without_its_marker_is_not_there(bucket, monkeypatch):
    """What a run leaves that is killed between two files is taken for nothing, then replaced."""
    from dpsynth_assets.files.whole import MARKER

    store = ReleaseStore.at(bucket)
    fs = store.base.fs
    with monkeypatch.context() as patch:
        patch.setattr(fs, "pipe_file", _dies_at(MARKER, fs.pipe_file))
        with pytest.raises(KeyboardInterrupt):
            store.save("r1", {"rows": 1}, RECORDS.select("text"))
    assert fs.exists(f"{bucket}/r1/facts.json")
    assert not store.has("r1")
    with pytest.raises(StoreUnavailableError, match="Restore the folder"):
        store.load("r1")
    store.save("r1", {"rows": 2})
    assert store.has("r1")
    assert store.load("r1") == ({"rows": 2}, None)


def _dies_at(name, put):
    def pipe_file(path, content):
        if path.endswith(name):
            raise KeyboardInterrupt
        return put(path, content)

    return pipe_file


def test_a_store_out_of_reach_says_what_to_check_and_charges_nothing(bucket, monkeypatch):
    store = ReleaseStore.at("s3://no-such-bucket-anywhere/prefix")
    with pytest.raises(StoreUnavailableError, match="Check the address, the credentials"):
        store.check_room(Room())


@pytest.fixture
def disks(tmp_path, monkeypatch):
    """A home and a TMPDIR, and what statvfs says of the one disk that they lie on."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DAGSTER_HOME", "DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL"):
        monkeypatch.delenv(name, raising=False)
    blocks = SimpleNamespace(f_bavail=0, f_frsize=1 << 20, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _path: blocks)
    return blocks


ROOM = Room(release=10 << 20, kept=20 << 20, corpus=5 << 20)


@pytest.mark.parametrize("sealed", [False, True])
def test_what_a_release_takes_is_added_up_on_each_disk(tmp_path, disks, monkeypatch, sealed):
    store = ReleaseStore.at(str(tmp_path / "releases"))
    if sealed:  # Checkpoints lie in a plain place, too.
        monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", base64.b64encode(bytes(32)).decode())
        monkeypatch.setattr(private_files, "MEMORY", tmp_path)
    # Value; draw; candidate and publication.
    disks.f_bavail = needed = 16 + 10 + (1 + sealed) * (10 + 2 * 20) + 2 * 5
    store.check_room(ROOM, ledger=tmp_path / "ledger")
    disks.f_bavail -= 1
    with pytest.raises(StoreUnavailableError, match="Nothing was charged: free space") as told:
        store.check_room(ROOM, ledger=tmp_path / "ledger")
    assert f"Expected at least {needed} MiB" in str(told.value)
    assert f"got {needed - 1}." in str(told.value)
    assert "unfinished draws, runs, temporary files" in str(told.value)
    assert ("plain files" in str(told.value)) is sealed
    assert "\n" not in str(told.value)


def test_places_on_disks_of_their_own_are_asked_for_their_own_share(tmp_path, disks, monkeypatch):
    here, others = tmp_path.stat().st_dev, (Path("/dev/shm"), Path(__file__).parent)
    other = next((disk for disk in others if disk.is_dir() and disk.stat().st_dev != here), None)
    if other is None:  # Nothing is written there.
        pytest.skip("needs two file systems")
    monkeypatch.setenv("DPSYNTH_PUBLISH_URL", str(other / "published"))
    free = {tmp_path.stat().st_dev: 16 + 10 + (10 + 2 * 20) + 2 * 5, other.stat().st_dev: 16 + 5}
    told = {"f_frsize": 1 << 20, "f_flag": 0}
    blocks = lambda path: SimpleNamespace(f_bavail=free[Path(path).stat().st_dev], **told)  # noqa: E731
    monkeypatch.setattr(os, "statvfs", blocks)
    store = ReleaseStore.at(str(tmp_path / "releases"))
    store.check_room(ROOM)
    free[other.stat().st_dev] -= 1
    with pytest.raises(StoreUnavailableError, match=rf"at least 21 MiB .*{other} \(published\)"):
        store.check_room(ROOM)


def no_room(*_arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def out_of_reach(*_arguments):
    raise StoreUnavailableError("out of reach")


@pytest.mark.parametrize("refuses", [no_room, out_of_reach])
def test_a_finished_pass_waits_for_room_and_for_the_store(sensitive, monkeypatch, refuses):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.0)
    passes = sensitive.passes("tickets", SimpleNamespace(id="r1"))
    passes.begin()
    write, refused = PrivateFiles.write, [1, 2]

    def full_twice(files, path, content, **options):
        if refused:
            refused.pop()
            refuses()
        write(files, path, content, **options)

    monkeypatch.setattr(PrivateFiles, "write", full_twice)
    passes.save(0, {"tokens": [1]})
    assert not refused
    assert passes.load(0) == {"tokens": [1]}


def test_a_log_without_room_does_not_end_what_waits(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(waiting.LOGGER), "warning", no_room)
    waiting.say("waits for room")
    assert "waits for room" in capsys.readouterr().err


def test_a_failure_that_is_not_a_full_disk_is_not_waited_for():
    def denied():
        raise PermissionError(errno.EACCES, "denied")

    with pytest.raises(PermissionError):
        waiting.once_there_is_room(denied, "A value.")


@pytest.mark.parametrize(("written", "left"), [("write_text", []), ("write_bytes", [".format"])])
def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, written, left):
    store = ReleaseStore.at(str(tmp_path / "releases"))

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "secret name")

    monkeypatch.setattr(Path, written, full)
    with pytest.raises(StoreUnavailableError, match="No space left on device") as refusal:
        store.save("r1", {"rows": 2}, RECORDS.select("text"))
    assert "Free space" in str(refusal.value)
    assert "secret name" not in str(refusal.value)
    assert not store.has("r1")
    assert [each.name for each in (tmp_path / "releases").iterdir()] == left


def test_a_published_folder_is_copied_whole_with_its_label_last(bucket, monkeypatch, own_home):
    from dpsynth_assets.orchestration.assets.corpora import publish_copy
    from dpsynth_assets.paths import home
    from dpsynth_assets.report.cards import LABEL_FILE

    folder = home().released / "letters" / "mean"
    (folder / "data").mkdir(parents=True)
    for name in (LABEL_FILE, "README.md", "data/train.parquet", "data/old.parquet"):
        (folder / name).write_text(name)
    assert publish_copy(folder) is None
    monkeypatch.setenv("DPSYNTH_PUBLISH_URL", bucket)
    assert publish_copy(folder) == f"{bucket}/letters/mean"
    (folder / "data" / "old.parquet").unlink()
    order = []
    fs = ReleaseStore.at(bucket).base.fs
    put = fs.pipe_file
    monkeypatch.setattr(fs, "pipe_file", lambda path, data: order.append(path) or put(path, data))
    publish_copy(folder)
    assert order[-1].endswith(LABEL_FILE)
    names = {path.rsplit("/mean/")[1] for path in fs.find(f"{bucket}/letters/mean")}
    assert names == {LABEL_FILE, "README.md", "data/train.parquet"}
