"""Secrets found part by part: the dictionary of the whole, for the owner alone."""

import base64

import polars as pl
import pytest

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.orchestration.assets import dataset as asset
from dpsynth_assets.secret_detection.finding import find_secrets
from dpsynth_assets.sensitive import part_tasks
from dpsynth_assets.sensitive.part_tasks import find_in_parts
from dpsynth_assets.sensitive.private_files import PrivateFiles
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets_tests.parts.conftest import SECRET, Watching, declared, silent
from dpsynth_assets_tests.stored import read_private_records

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
def test_what_is_found_in_parts_is_what_is_found_in_the_whole(tmp_path, places, count):
    records = read_private_records(declared(tmp_path)).records
    whole, told = find_secrets(records, DECLARED), []
    with LocalWorkers(count).opened() as workers:
        parted = find_in_parts(DECLARED, places, workers, told.append)
    assert parted.secrets.equals(whole.secrets)
    assert set(whole.secrets["kind"]) == {"number", "place", "any", "rare"}
    assert parted.over_their_caps(DECLARED) == whole.over_their_caps(DECLARED)
    assert told == [done / PARTS for done in range(1, PARTS + 1)]


def test_no_notes_stay(store, places):
    before = set(store.base.rglob("*"))
    find_in_parts(DECLARED, places, LocalWorkers(1), silent)
    assert set(store.base.rglob("*")) == before


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


def test_the_asset_keeps_one_dictionary_for_any_number_of_parts(tmp_path, store):
    folder, kept = store.folder("letters"), []
    for parts in (1, PARTS):
        spec = declared(tmp_path, parts=parts)
        store_records(spec, store, LocalWorkers(1))
        asset._find(spec, DECLARED, store, LocalWorkers(1), silent)
        names = ("secrets_dictionary.parquet", "secrets_summary.json")
        kept.append([(folder / name).read_bytes() for name in names])
    assert kept[0] == kept[1]


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
