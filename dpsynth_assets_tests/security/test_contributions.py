"""Which releases used a record: an answer for who knows its id, and nothing about any other."""

import json

import polars as pl
import pytest

from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms
from dpsynth_assets_tests.security.conftest import RECORDS
from dpsynth_assets_tests.stored import read_paid, write_records


@pytest.fixture
def table(store):
    read_paid(store, "letters", "first", with_embeddings=False)
    write_records(store, "letters", "source", RECORDS.head(1))
    read_paid(store, "letters", "second", with_embeddings=False)
    return store.contributions("letters")


def reservations(reads):
    return [each.reservation for each in reads]


def test_a_release_notes_whom_it_reads_before_its_mechanism_sees_them(table):
    assert reservations(table.reads_of("record", "record-a")) == ["first", "second"]
    assert reservations(table.reads_of("record", "record-b")) == ["first"]
    assert reservations(table.reads_of("unit", "user-2")) == ["first"]


def test_an_absent_id_and_an_id_of_the_other_kind_give_the_answer_of_no_reads(table, store):
    assert store.contributions("memos").reads_of("record", "record-a") == []
    for kind, name in (("record", "nobody"), ("unit", "nobody"), ("unit", "record-a")):
        assert table.reads_of(kind, name) == []


def test_the_table_holds_no_id_and_is_the_owners_alone(table, store):
    folder = store.base / "letters" / "contributions"
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert len(paths) == 5  # Key, two populations, two reads.
    for path in paths:
        assert path.stat().st_mode & 0o777 == 0o600
        content = path.read_bytes()
        assert not [i for i in (b"record-a", b"user-1") if i in content]
    for path in (folder, folder / "reads"):
        assert path.stat().st_mode & 0o777 == 0o700


def test_hashes_of_two_datasets_are_unrelated(store):
    for dataset in ("one", "two"):
        store.folder(dataset)
        store.contributions(dataset).note("r", RECORDS)
    first, second = (
        pl.read_parquet(next((store.base / name / "contributions").glob("*.parquet")))
        for name in ("one", "two")
    )
    assert not set(first["record"]) & set(second["record"])


def test_equal_populations_are_kept_once(store):
    for reservation in ("first", "second", "third"):
        read_paid(store, "letters", reservation, with_embeddings=False)
    folder = store.base / "letters" / "contributions"
    assert len(list(folder.glob("*.parquet"))) == 1
    assert len(store.contributions("letters").reads()) == 3


def test_the_command_answers_for_one_id_and_alike_for_an_absent_one(
    tmp_path, monkeypatch, store, ledger
):
    from dpsynth_assets.cli import audit

    spec = private(name="letters", columns={"id": "id"})
    monkeypatch.setattr(audit, "find_cohort", lambda name: spec)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    asked = make_request(
        cohort="letters",
        dataset="letters",
        asset="letters/mean/candidate_corpus",
        data_version="d7",
    )
    reservation = ledger.reserve(asked, make_terms(accepts_ex_post=False))
    store.contributions("letters").note(reservation.id, RECORDS)

    def ask(*arguments, **options):
        return dpsynth("audit", "used-by", "letters", *arguments, code=0, **options).stdout

    (use,) = json.loads(ask("--record", "-", "--json", input="record-a\n"))["releases"]
    assert (use["method"], use["data_version"], use["cohort"]) == ("mean", "d7", "letters")
    assert use["state"] == "charged only"
    assert "record-b" not in json.dumps(use)
    absent = ask("--record", "nobody")
    told = "No release read a source with this record or unit.\n"
    assert absent == ask("--unit", "nobody") == told
