"""Parts in the sensitive store: whole or absent, for the owner alone, refused as whole records."""

import base64
import json
import os
import stat
import time

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.methods.inputs import SortStep
from dpsynth_assets.orchestration.assets import dataset as asset
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.secret_detection.finding import find_secrets
from dpsynth_assets.sensitive import part_tasks
from dpsynth_assets.sensitive.fingerprints import FOLDER
from dpsynth_assets.sensitive.part_tasks import find_in_parts
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets.sensitive.purging import PurgeRule, purge
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets_tests.parts.conftest import SECRET, Watching, declared, silent
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
    store_records(declared(tmp_path, **changes, parts=4), store, ONE)
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
    assert store.parts("letters").places == (store.base / "letters",)


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


# Secrets found part by part: the dictionary of the whole, for the owner alone.


KINDS = [
    {"name": "number", "detector": "regex", "pattern": r"\b\d+\b", "max_records": 1},
    {"name": "place", "detector": "regex", "pattern": "orchard|harbour", "max_records": 4},
    {"name": "any", "detector": "regex", "pattern": "violin", "each": "kind", "max_records": 9},
    {"name": "rare", "detector": "rare_words", "words": 7, "quantile": 0.4, "max_records": 3},
    {"name": "none", "detector": "regex", "pattern": "zeppelin", "max_records": 3},
]
DECLARED = SecretsSpec.model_validate({"kinds": KINDS})
PARTS = 5
TIGHT = {"epsilon": 8, "delta": 1e-6, "accountant": "tight"}


@pytest.fixture
def places(tmp_path, store):
    store_records(declared(tmp_path, parts=PARTS), store, LocalWorkers(1))
    return store.parts("letters").places


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_found_in_parts_is_what_is_found_in_the_whole(tmp_path, store, places, count):
    before = set(store.base.rglob("*"))
    records = read_private_records(declared(tmp_path)).records
    whole, told = find_secrets(records, DECLARED), []
    with LocalWorkers(count).opened() as workers:
        parted = find_in_parts(DECLARED, places, workers, told.append)
    assert parted.secrets.equals(whole.secrets)
    assert set(whole.secrets["kind"]) == {"number", "place", "any", "rare"}
    assert parted.over_their_caps(DECLARED) == whole.over_their_caps(DECLARED)
    assert told == [done / PARTS for done in range(1, PARTS + 1)]
    assert set(store.base.rglob("*")) == before, "no notes stay"


def test_an_encrypted_store_holds_no_secret(tmp_path, store, monkeypatch):
    monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", base64.b64encode(b"k" * 32).decode())
    spec = declared(tmp_path, parts=PARTS)
    store_records(spec, store, LocalWorkers(1))
    written = []
    writes = PrivateFiles.write_table

    def keeps(files, path, table):
        writes(files, path, table)
        written.append(path.read_bytes())

    monkeypatch.setattr(PrivateFiles, "write_table", keeps)
    found = find_in_parts(DECLARED, store.parts("letters").places, LocalWorkers(1), silent)
    assert found.secrets.height > 20
    assert len(written) == PARTS + 1
    assert not [content for content in written if b"orchard" in content or b"PAR1" in content]


def test_a_part_that_fails_leaves_no_notes_and_quotes_nothing(places, monkeypatch):
    works = part_tasks.find_in_part

    def fails_at_the_last(declared, here, part):
        if part == places[-1]:
            raise ValueError(SECRET)
        works(declared, here, part)

    monkeypatch.setattr(part_tasks, "find_in_part", fails_at_the_last)
    with pytest.raises(WorkerError, match="in a worker failed with ValueError") as refused:
        find_in_parts(DECLARED, places, LocalWorkers(1), silent)
    assert SECRET not in str(refused.value)
    names = {path.name for place in (*places, places[0].parent) for path in place.glob("*.parquet")}
    assert names == {"source.parquet", "held_out.parquet"}


def test_what_workers_are_given_and_send_holds_no_record(places):
    workers = Watching()
    find_in_parts(DECLARED, places, workers, silent)
    assert {result for *_, result in workers.seen} == {None}
    assert len(workers.seen) == PARTS
    assert not [given for given, *_ in workers.seen if SECRET.split()[0] in given]


def test_values_of_columns_are_found_beside_all_records(tmp_path, store):
    kind = {"name": "person", "detector": "column", "column": "who", "max_records": 3}
    named = SecretsSpec.model_validate({"kinds": [kind]})
    spec = declared(tmp_path, parts=PARTS, secrets={"kinds": [kind]}, budget=TIGHT)
    store_records(spec, store, LocalWorkers(1))
    asset._find(spec, named, store, LocalWorkers(1), silent)
    dictionary = pl.read_parquet(store.folder("letters") / "secrets_dictionary.parquet")
    assert dictionary["kind"].unique().to_list() == ["person"]


def test_metadata_tells_declared_numbers_and_recall_and_no_count():
    recall = [{"recall": 1.0, "recall_at_least": 0.9876}, {"recall": None, "recall_at_least": None}]
    some = SecretsSpec.model_validate({"kinds": KINDS[:2]})
    rows = [row.data for row in asset._metadata(some, recall)["dpsynth/secret_kinds"].records]
    assert [row.pop("recall") for row in rows] == ["1.000 (at least 0.987)", "not measured"]
    fields = {"kind": "name"} | {name: name for name in rows[0] if name != "kind"}
    for row, kind in zip(rows, some.kinds, strict=True):
        assert row == {shown: getattr(kind, own) for shown, own in fields.items()}
    assert rows[0].keys() == {"kind", "detector", "prior", "posterior", "max_records"}
