"""Parts in the sensitive store: whole or absent, for the owner alone, refused as whole records."""

import json
import os
import stat
import time

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.inputs import SortStep
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive import part_tasks
from dpsynth_assets.sensitive.fingerprints import FOLDER
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets_tests.parts.conftest import SECRET, Watching, declared
from dpsynth_assets_tests.stored import (
    paid_by,
    read_paid,
    read_private_records,
    read_table,
    write_array,
    write_embeddings,
    write_records,
    write_text,
)

ONE, TWO = LocalWorkers(1), LocalWorkers(2)


def read(store, spec, split="source"):
    return store.read_internal(spec.name, split).records


def files(store, name="letters"):
    return sorted(
        path.relative_to(store.base / name).as_posix()
        for path in (store.base / name).rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize(("parts", "workers"), [(7, ONE), (2, TWO)], ids=["one", "two workers"])
def test_what_is_read_whole_is_what_lies_whole(tmp_path, store, parts, workers):
    spec = declared(tmp_path, parts=parts)
    store_records(spec, store, workers)
    whole = read_private_records(spec)
    assert read(store, spec).equals(whole.records)
    assert read(store, spec, "held_out").equals(whole.held_out)
    assert not [name for name in files(store) if "piece" in name or "prints" in name]


def test_nobody_else_may_read_parts(tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, ONE)
    for path in (store.base / "letters").rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_workers_are_given_holds_no_record(tmp_path, store):
    workers = Watching()
    store_records(declared(tmp_path, parts=3), store, workers)
    assert workers.seen
    assert not [given for given, *_ in workers.seen if SECRET in given]


def test_the_same_records_again_keep_their_parts_and_embeddings(tmp_path, store):
    spec = declared(tmp_path, parts=3)
    store_records(spec, store, ONE)
    before = store.parts("letters").places
    (before[0] / "source_embeddings.npy").write_bytes(b"made before")
    store_records(spec, store, ONE)
    assert store.parts("letters").places == before
    assert (before[0] / "source_embeddings.npy").exists()


def test_other_records_take_the_place_of_all_parts(tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, ONE)
    before = store.parts("letters").places
    for place in before:
        write_text(place, "source_embeddings.made_by", '{"arithmetic": "int8"}')
    assert store.embeddings_made_by("letters", "source") == {"arithmetic": "int8"}
    (tmp_path / "letters.csv").unlink()
    spec = declared(tmp_path, rows=90, parts=3)
    store_records(spec, store, ONE)
    assert not any(place.exists() for place in before)
    assert store.embeddings_made_by("letters", "source") is None
    assert read(store, spec).equals(read_private_records(spec).records)


def test_one_part_takes_the_place_of_records_in_the_folder_itself(tmp_path, store):
    """As versions before 0.3.0 left them; equal records stay where they are, with embeddings."""
    spec, whole = declared(tmp_path), read_private_records(declared(tmp_path))
    for split, frame in (("source", whole.records), ("held_out", whole.held_out)):
        write_records(store, "letters", split, frame)
    write_embeddings(store, "letters", "source", np.eye(2, 3, dtype=np.float32), "v", {"a": "b"})
    kept = files(store)
    store_records(spec, store, ONE)
    assert files(store) == kept
    (tmp_path / "letters.csv").unlink()
    store_records(declared(tmp_path, rows=90), store, ONE)
    assert not [name for name in files(store) if "/" not in name and name != "parts.json"]
    assert len(store.parts("letters").places) == 1


def test_the_stored_fingerprints_do_not_depend_on_parts(tmp_path, store):
    source = declared(tmp_path).source.path
    pl.read_csv(source).with_row_index("number").write_csv(source)
    columns = {"text": "text", "labels": ["label"], "id": "number"}
    changes = {"columns": columns, "privacy_unit": {}}
    store_records(declared(tmp_path, **changes), store, ONE)
    places = [store.base / FOLDER / f"letters.{kind}" for kind in ("npy", "ids.npy")]
    whole = [place.read_bytes() for place in places]
    store_records(declared(tmp_path, **changes, parts=4), store, TWO)
    assert [place.read_bytes() for place in places] == whole


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, store, monkeypatch):
    spec = declared(tmp_path, parts=3)
    store_records(spec, store, ONE)
    kept = files(store)

    def fails(spec, part):
        raise ValueError(SECRET)

    monkeypatch.setattr(part_tasks, "make_canonical", fails)
    with pytest.raises(WorkerError) as refused:
        store_records(spec, store, ONE)
    assert SECRET not in str(refused.value)
    assert files(store) == kept


def test_purge_removes_parts(tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, ONE)
    purge(store, PurgeRule(dataset="letters"), lambda _: False)
    assert files(store) == []
    assert store.parts("letters").places == (store.base / "letters",)


def test_purge_by_age_takes_texts_by_their_own_age_and_with_them_what_names_them(tmp_path, store):
    rule, old = PurgeRule(older_than_seconds=30 * 86400), time.time() - 40 * 86400
    store_records(declared(tmp_path, parts=2), store, ONE)
    manifest = store.base / "letters" / "parts.json"
    os.utime(manifest, (old, old))
    kept = files(store)
    assert purge(store, rule, lambda _: False) == []
    assert files(store) == kept
    for path in (store.base / "letters").rglob("*"):
        os.utime(path, (old, old))
    write_array(store.parts("letters").places[0], "source_embeddings.npy", np.eye(2))
    folder = store.parts("letters").places[0].parent
    assert purge(store, rule, lambda _: False) == [manifest, folder]
    assert files(store) == []


def test_one_lost_file_of_a_part_is_found_before_a_charge(tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, ONE)
    store.require_records("letters")
    with pytest.raises(PrivacyError, match=r"shared/private_embeddings .*Nothing was charged"):
        store.require_records("letters", with_embeddings=True)
    (store.parts("letters").places[1] / "source.parquet").unlink()
    with pytest.raises(PrivacyError, match=r"source\.parquet of 'letters'.*Nothing was charged"):
        store.require_records("letters")


def test_a_charge_is_known_by_the_embeddings_of_every_part(tmp_path, store):
    store_records(declared(tmp_path, parts=2), store, ONE)
    known = []
    for made in ("int8", "float32"):
        for place in store.parts("letters").places:
            rows = read_table(place, "source.parquet").height
            write_array(place, "source_embeddings.npy", np.eye(rows))
            write_text(place, "source_embeddings.version", made)
        known.append(store.pay_for_records("letters", with_embeddings=True))
    assert known[0] != known[1]

    def read_while_another_run_embeds(private):
        write_text(place, "source_embeddings.version", "int8")
        return np.array([len(private.embeddings)])

    def sort(_, private):
        return {0: private.records.head(int(read_while_another_run_embeds(private)[0]))}

    store.passes("letters", paid_by()).begin({"records": known[1]})
    parts = read_paid(store, "letters", workers=ONE, with_embeddings=True).parts
    assert parts.summed(lambda private: np.array([len(private.embeddings)])) > 0
    for read in (
        lambda: parts.summed(read_while_another_run_embeds),
        lambda: [*parts.draw_passes([SortStep(sort, 1)], sort, [0], memory=1)],
    ):
        write_text(place, "source_embeddings.version", "float32")
        with pytest.raises(PrivacyError, match=r"as they were charged for, got others"):
            read()
    (place / "source_embeddings.version").unlink()
    with pytest.raises(PrivacyError, match=r"source_embeddings\.version .*Nothing was charged"):
        store.pay_for_records("letters", with_embeddings=True)


def test_the_manifest_says_nothing_of_the_records(tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, ONE)
    said = json.loads((store.base / "letters" / "parts.json").read_text())
    assert said.keys() == {"folder", "count"}
    assert said["count"] == 3
