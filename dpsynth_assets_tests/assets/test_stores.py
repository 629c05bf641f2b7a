"""Stores: owner-only, atomic, and closed to readers without a reservation."""

import stat
from types import SimpleNamespace

import dagster as dg
import numpy as np
import polars as pl
import pytest

from dpsynth_assets.io_managers import ArtifactIOManager
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import POST_PROCESSING, GaussianEvent
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore

RECORDS = pl.DataFrame(
    {"record_id": ["a", "b"], "unit_id": ["a", "b"], "text": ["one", "two"], "label": ["", ""]}
)


class LedgerOf:
    """Says which reservations are open."""

    def __init__(self, *open_ids):
        self._open = set(open_ids)

    def is_open(self, reservation_id):
        return reservation_id in self._open


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def sensitive(tmp_path):
    store = SensitiveStore(root=str(tmp_path / "sensitive"))
    store.write_records("tickets", "source", RECORDS)
    store.write_embeddings("tickets", "source", np.eye(2, 3, dtype=np.float32))
    return store


def test_private_files_are_readable_by_their_owner_alone(sensitive):
    folder = sensitive.folder("tickets")
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


EVENT = GaussianEvent(noise_multiplier=1.0)


def test_post_processing_cannot_read_private_records(sensitive):
    free = SimpleNamespace(id="r1", request=SimpleNamespace(event=POST_PROCESSING))
    with pytest.raises(UnaccountedReleaseError, match="post-processing"):
        sensitive.read_for_release(
            "tickets", ledger=LedgerOf("r1"), reservation=free, with_embeddings=False
        )


def test_mechanism_cannot_read_without_an_open_reservation(sensitive):
    closed = SimpleNamespace(id="closed")
    with pytest.raises(UnaccountedReleaseError, match="open reservation"):
        sensitive.read_for_release(
            "tickets", ledger=LedgerOf("other"), reservation=closed, with_embeddings=False
        )


def test_mechanism_reads_aligned_records_and_embeddings_with_its_reservation(sensitive):
    private = sensitive.read_for_release(
        "tickets",
        ledger=LedgerOf("r1"),
        reservation=SimpleNamespace(id="r1", request=SimpleNamespace(event=EVENT)),
        with_embeddings=True,
    )
    assert private.records.equals(RECORDS)
    assert private.embeddings.shape == (2, 3)


def test_embeddings_of_other_records_are_refused(sensitive):
    sensitive.write_records("tickets", "source", RECORDS.head(1))
    with pytest.raises(ValueError, match="private_embeddings"):
        sensitive.read_internal(
            "tickets", "source", purpose="internal evaluation", with_embeddings=True
        )


def test_private_inputs_do_not_print_their_records(sensitive):
    private = sensitive.read_internal("tickets", "source", purpose="embed records")
    assert "one" not in repr(private)


def test_missing_records_say_what_to_materialise(tmp_path):
    store = SensitiveStore(root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Materialise tickets/shared/private_records"):
        store.read_internal("tickets", "source", purpose="embed records")


def test_release_is_stored_whole_or_not_at_all(tmp_path):
    store = ReleaseStore(root=str(tmp_path))
    assert not store.has("r1")
    digest, uri = store.save("r1", {"rows": 2}, RECORDS.select("text"))
    assert store.has("r1")
    assert uri == str(store.folder("r1"))
    facts, rows = store.load("r1")
    assert facts == {"rows": 2}
    assert rows.equals(RECORDS.select("text"))
    assert store.digest("r1") == digest


def test_digest_changes_with_any_byte_of_a_release(tmp_path):
    store = ReleaseStore(root=str(tmp_path))
    first, _ = store.save("r1", {"rows": 2})
    second, _ = store.save("r2", {"rows": 3})
    assert first != second


def test_missing_release_says_how_to_go_on(tmp_path):
    with pytest.raises(FileNotFoundError, match="Restore the folder"):
        ReleaseStore(root=str(tmp_path)).load("gone")


def io_contexts(key):
    return dg.build_output_context(asset_key=dg.AssetKey(key)), dg.build_input_context(
        asset_key=dg.AssetKey(key)
    )


@pytest.mark.parametrize(
    "value", [RECORDS, np.arange(6).reshape(2, 3), {"a": [1, 2]}, [1, "two"]], ids=repr
)
def test_values_come_back_from_the_io_manager_as_they_went(tmp_path, value):
    manager = ArtifactIOManager(base_dir=str(tmp_path))
    output, source = io_contexts(["public", "demo", "thing"])
    manager.handle_output(output, value)
    loaded = manager.load_input(source)
    if isinstance(value, pl.DataFrame):
        assert loaded.equals(value)
    else:
        np.testing.assert_array_equal(loaded, value)


def test_io_manager_refuses_what_only_a_pickle_could_hold(tmp_path):
    manager = ArtifactIOManager(base_dir=str(tmp_path))
    with pytest.raises(TypeError, match="pickles are not stored"):
        manager.handle_output(io_contexts(["thing"])[0], object())


def test_missing_value_names_the_asset_to_materialise(tmp_path):
    manager = ArtifactIOManager(base_dir=str(tmp_path))
    with pytest.raises(dg.Failure, match="Materialise public/demo/thing first"):
        manager.load_input(io_contexts(["public", "demo", "thing"])[1])


def test_a_checkpoint_appears_whole_and_replaces_the_one_before(sensitive):
    kept = sensitive.checkpoint("tickets", SimpleNamespace(id="r2"))
    assert not kept.begun
    kept.begin()
    assert kept.begun
    assert kept.saved is None
    for step in (1, 2):
        scratch = kept.scratch()
        (scratch / "step.json").write_text(str(step))
        before = kept.saved
        kept.save(scratch)
        assert (kept.saved / "step.json").read_text() == str(step)
        assert before is None or not before.exists()
    assert stat.S_IMODE((kept.saved / "step.json").stat().st_mode) == 0o600
    kept.remove()
    assert kept.saved is None


def test_an_unsaved_scratch_folder_is_no_checkpoint(sensitive):
    kept = sensitive.checkpoint("tickets", SimpleNamespace(id="r3"))
    kept.begin()
    (kept.scratch() / "half.json").write_text("1")
    assert sensitive.checkpoint("tickets", SimpleNamespace(id="r3")).saved is None
    assert list(kept.scratch().iterdir()) == []


def test_files_of_a_release_are_part_of_its_digest(tmp_path):
    store = ReleaseStore(root=str(tmp_path / "releases"))
    files = tmp_path / "made"
    (files / "model").mkdir(parents=True)
    (files / "model" / "weights.safetensors").write_bytes(b"1")
    digest, _ = store.save("r1", {"steps": 3}, None, files)
    kept = store.files("r1") / "model" / "weights.safetensors"
    assert kept.read_bytes() == b"1"
    kept.write_bytes(b"2")
    assert store.digest("r1") != digest
