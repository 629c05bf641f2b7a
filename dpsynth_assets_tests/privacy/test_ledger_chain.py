"""Laws of the chain: history is append-only, and sums are taken of a verified history only."""

import hashlib
import json
import sqlite3

import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import GENESIS, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.chain import entry_hash
from dpsynth_assets.privacy.ledger.database import TABLE
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


def test_an_untouched_ledger_verifies(ledger):
    report = ledger.verify()
    assert (report.ok, report.entries, report.head) == (True, 6, ledger.head())


def test_an_empty_ledger_verifies(tmp_path):
    report = Ledger(sqlite_url(tmp_path)).verify(GENESIS)
    assert (report.ok, report.entries, report.head) == (True, 0, GENESIS)


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


TEXTS = st.none() | st.text()


@given(texts=st.lists(TEXTS, min_size=22, max_size=22), bound=st.none() | st.floats(0, 1e300))
def test_the_hash_is_over_canonical_json_of_the_row(texts, bound):
    entry = LedgerEntry(7, *texts, bound, "f" * 64, "")
    row = json.dumps(list(entry[:-1]), separators=(",", ":"), allow_nan=False)
    assert entry_hash(entry) == hashlib.sha256(row.encode()).hexdigest()


def test_columns_are_the_fields_in_their_hashed_order():
    assert tuple(TABLE.columns.keys()) == LedgerEntry._fields
