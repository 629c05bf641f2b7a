"""There is one format of the ledger: another is refused as it is, and ours stays as it is fixed."""

import json
import shutil
import sqlite3
from dataclasses import asdict

import pytest
import sqlalchemy as sa

from dpsynth_assets.privacy.errors import FormatError, PrivacyError
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, SecretTerms
from dpsynth_assets.privacy.ledger.accounts import Book
from dpsynth_assets.privacy.ledger.chain import sealed, verify_chain
from dpsynth_assets.privacy.ledger.schema import LedgerEntry
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.privacy.ledger_cases import (
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)

TERMS = (
    '{"accepts_ex_post":false,"accountant":"zcdp","approvals":null,"delta":1e-06,"epsilon":8.0,'
    '"partition":null,"public_facts":[],"relation":"add-remove","secret":null,'
    '"unit":{"column":null,"max_records":1}}'
)
KEY = "116f410c43f58654e187aa743e7fd6ea4016b5aa32a4c89327431b1a62c68fab"
TERM_NAMES = [*json.loads(TERMS), "column", "max_records", "prior", "occurrences", "others"]
HASH = "5a2943675a6da47cdaabced9a05ccf5b48a8f4aedce8e9ff79676ae34cb1b1df"


def told(url):
    with pytest.raises(FormatError) as refused:
        Ledger(url)
    assert "\n" not in str(refused.value)
    return str(refused.value)


DROPPED = "DROP TABLE privacy_ledger"


@pytest.mark.parametrize(
    ("statements", "got"),
    [
        (["PRAGMA user_version = 0"], "none"),
        (["PRAGMA user_version = 2"], "2"),
        (
            [f"ALTER TABLE privacy_ledger DROP COLUMN {name}" for name in ("actor", "signature")],
            "1 with other columns, from before version 0.3",
        ),
        # A file that lost its table, or of another program, is no unspent ledger.
        ([DROPPED, "PRAGMA user_version = 7"], "7, without a table privacy_ledger"),
        (
            [DROPPED, "PRAGMA user_version = 0", "CREATE TABLE ours (a)"],
            "none, without a table privacy_ledger",
        ),
    ],
)
def test_a_file_of_another_format_is_refused_and_neither_written_to_nor_replaced(
    tmp_path, monkeypatch, statements, got
):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    release(Ledger(sqlite_url(tmp_path)))
    copy = shutil.copy(sqlite_file(tmp_path), tmp_path / "copy.sqlite")
    with sqlite3.connect(sqlite_file(tmp_path)) as database:
        for statement in statements:
            database.execute(statement)
    before = sqlite_file(tmp_path).read_bytes()
    said = told(sqlite_url(tmp_path))
    assert "Expected format 1 in the ledger at sqlite" in said
    assert f"got {got}: it is left as it is" in said
    for arguments in (["restore", str(copy)], ["accept"]):
        shown = dpsynth("ledger", *arguments, "--because", "a test", "--yes", code=2)
        assert "Expected format 1" in shown.output
    assert sqlite_file(tmp_path).read_bytes() == before


@pytest.mark.parametrize(("mark", "got"), [("NULL", "none"), ("'2'", "2")])
def test_a_table_of_another_format_is_refused_and_not_written_to(postgres_url, mark, got):
    ledger = Ledger(postgres_url)
    release(ledger)
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql(f"COMMENT ON TABLE privacy_ledger IS {mark}")
    before = ledger.entries()
    assert f"got {got}: it is left as it is" in told(postgres_url)
    assert ledger.entries() == before


def entry(**changes):
    fields = {
        "seq": 1,
        "recorded_at": "2026-01-01T00:00:00+00:00",
        "kind": "reserve",
        "reservation": "4b7a7b7e51230de9aab02b870b79d403",
        "key": KEY,
        "cohort": "tickets",
        "dataset": "tickets",
        "asset": "tickets/mean/corpus",
        "mechanism": "mean",
        "guarantee": "dp",
        "event_json": '{"noise_multiplier":1.0,"type":"gaussian"}',
        "parameters_json": '{"clip_bound":10.0}',
        "code_version": "1",
        "data_version": "2026-01",
        "release": "1",
        "actor": "alice",
        "terms_json": TERMS,
        "previous_hash": "0" * 64,
    }
    return sealed(LedgerEntry(**{**fields, **changes}))


def test_an_entry_of_format_1_keeps_its_key_and_its_hash():
    """A change here is another format: raise FORMAT."""
    assert (BudgetTerms.from_json(TERMS), make_terms().to_json()) == (make_terms(), TERMS)
    assert entry().request() == make_request()
    assert make_request().key(make_terms().relation, make_terms().unit) == KEY
    assert entry().hash == HASH
    assert verify_chain([entry()], HASH).ok


def without(name):
    """The terms without a field, of the whole or of a part of it."""
    fields = {**json.loads(TERMS), "secret": asdict(SecretTerms(prior=0.1, posterior=0.2))}
    part = next(part for part in (fields, fields["unit"], fields["secret"]) if name in part)
    del part[name]
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"terms_json": None}, "no terms or no event"),
        ({"event_json": None}, "no terms or no event"),
        ({"event_json": json.dumps({"type": "truncated_poisson_gaussian"})}, "cannot read"),
        ({"kind": "decision"}, "got 'decision'"),
        ({"kind": "recovery"}, "is of kind recovery but contains a charge"),
        *(({"terms_json": without(name)}, f"others: {name}") for name in TERM_NAMES),
        ({"terms_json": json.dumps({**json.loads(TERMS), "monthly_epsilon": 2.0})}, "monthly"),
    ],
)
def test_an_entry_that_does_not_say_all_it_spent_is_refused(changes, said):
    """Read without it, more would seem to be left."""
    other = entry(**changes)
    (problem,) = verify_chain([other]).problems
    with pytest.raises(PrivacyError, match=said) as refused:
        Book().post(other)
    assert problem.message in str(refused.value)
    assert "Nothing" in str(refused.value)
    assert "\n" not in str(refused.value)
