"""Laws of the chain: history is append-only, and every edit of it is found."""

import sqlite3

import pytest

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import GENESIS, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.chain import verify_chain
from dpsynth_assets.privacy.ledger.database import TABLE
from dpsynth_assets.privacy.ledger.export import from_json, to_csv, to_json
from dpsynth_assets_tests.privacy.ledger_cases import (
    edit,
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)


@pytest.fixture
def ledger(tmp_path):
    """Three releases: entries 1 to 6."""
    ledger = Ledger(sqlite_url(tmp_path))
    for name in ("1", "2", "3"):
        release(ledger, make_terms(epsilon=20.0), release=name)
    return ledger


def broken_at(ledger):
    return [problem.seq for problem in ledger.verify().problems]


def test_an_untouched_ledger_verifies(ledger):
    report = ledger.verify()
    assert (report.ok, report.entries, report.head) == (True, 6, ledger.head())


def test_an_empty_ledger_verifies(tmp_path):
    report = Ledger(sqlite_url(tmp_path)).verify(GENESIS)
    assert (report.ok, report.entries, report.head) == (True, 0, GENESIS)


@pytest.mark.parametrize("column", [f for f in LedgerEntry._fields if f not in ("seq", "kind")])
def test_an_altered_column_is_found(tmp_path, ledger, column):
    value = "3.5" if column == "ex_post_epsilon" else "'forged'"
    edit(tmp_path, f"UPDATE privacy_ledger SET {column} = {value} WHERE seq = 3")
    assert 3 in broken_at(ledger)


def test_a_charge_turned_into_a_commit_is_found(tmp_path, ledger):
    edit(
        tmp_path,
        "DELETE FROM privacy_ledger WHERE seq = 4",
        "UPDATE privacy_ledger SET kind = 'commit' WHERE seq = 3",
    )
    assert 3 in broken_at(ledger)


def test_a_deleted_row_is_found(tmp_path, ledger):
    edit(tmp_path, "DELETE FROM privacy_ledger WHERE seq = 3")
    assert 4 in broken_at(ledger)


def test_a_deleted_and_renumbered_row_is_found(tmp_path, ledger):
    edit(
        tmp_path,
        "DELETE FROM privacy_ledger WHERE seq IN (3, 4)",
        "UPDATE privacy_ledger SET seq = seq - 2 WHERE seq > 4",
    )
    assert 3 in broken_at(ledger)


def test_reordered_rows_are_found(tmp_path, ledger):
    edit(
        tmp_path,
        "UPDATE privacy_ledger SET seq = 99 WHERE seq = 1",
        "UPDATE privacy_ledger SET seq = 1 WHERE seq = 3",
        "UPDATE privacy_ledger SET seq = 3 WHERE seq = 99",
    )
    assert {1, 3} <= set(broken_at(ledger))


def test_a_removed_tail_is_found_against_a_witnessed_head(tmp_path, ledger):
    witness = ledger.head()
    assert ledger.verify(witness).ok
    edit(tmp_path, "DELETE FROM privacy_ledger WHERE seq > 4")
    assert ledger.verify().ok
    assert not ledger.verify(witness).ok


def test_a_witnessed_head_stays_valid_as_the_ledger_grows(ledger):
    witness = ledger.head()
    release(ledger, make_terms(epsilon=20.0), release="4")
    assert ledger.verify(witness).ok


def test_missing_triggers_are_found(tmp_path, ledger):
    connection = sqlite3.connect(sqlite_file(tmp_path))
    connection.execute("DROP TRIGGER privacy_ledger_no_delete")
    assert [str(problem) for problem in ledger.verify().problems] == [
        "append-only triggers are missing: privacy_ledger_no_delete"
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE privacy_ledger SET event_json = NULL",
        "DELETE FROM privacy_ledger",
        "DELETE FROM privacy_ledger WHERE seq = 6",
        "INSERT OR REPLACE INTO privacy_ledger SELECT * FROM privacy_ledger WHERE seq = 1",
        "REPLACE INTO privacy_ledger SELECT * FROM privacy_ledger WHERE seq = 6",
    ],
)
def test_triggers_refuse_every_change(tmp_path, ledger, statement):
    connection = sqlite3.connect(sqlite_file(tmp_path))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()
    assert ledger.verify().ok


def test_a_tampered_ledger_admits_nothing(tmp_path, ledger):
    edit(tmp_path, "UPDATE privacy_ledger SET event_json = NULL WHERE seq = 1")
    fresh = Ledger(sqlite_url(tmp_path))
    with pytest.raises(LedgerIntegrityError, match="entry 1 "):
        fresh.reserve(make_request(release="4"), make_terms(epsilon=20.0))
    assert len(fresh.entries()) == 6


def test_a_rolled_back_ledger_admits_nothing_to_a_process_that_knew_more(tmp_path, ledger):
    ledger.head()
    edit(tmp_path, "DELETE FROM privacy_ledger WHERE seq > 2")
    release(Ledger(sqlite_url(tmp_path)), make_terms(epsilon=20.0), release="4")
    with pytest.raises(LedgerIntegrityError, match="rolled back"):
        ledger.reserve(make_request(release="5"), make_terms(epsilon=20.0))


def test_an_export_in_json_restores_entries_and_verifies_alone(ledger):
    entries = from_json(to_json(ledger.entries()))
    assert entries == ledger.entries()
    assert verify_chain(entries, ledger.head()).ok


def test_an_export_in_csv_has_every_column_of_every_entry(ledger):
    lines = to_csv(ledger.entries()).splitlines()
    assert lines[0].split(",") == list(LedgerEntry._fields)
    assert len(lines) == 7


def test_columns_are_the_fields_in_their_hashed_order():
    assert tuple(TABLE.columns.keys()) == LedgerEntry._fields
