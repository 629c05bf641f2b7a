"""Laws of the chain, on both databases: changes are refused, and every edit is named."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from dpsynth_assets.cli.ledger import app
from dpsynth_assets.privacy.errors import BudgetExceededError, LedgerIntegrityError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import GENESIS, Ledger, LedgerEntry, PlannedRelease
from dpsynth_assets.privacy.ledger.chain import entry_hash, sealed
from dpsynth_assets.privacy.ledger.database import TABLE
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    edit,
    make_request,
    make_terms,
    release,
    sqlite_url,
)

ROWS = 7
COLUMNS = [name for name in LedgerEntry._fields if name not in ("seq", "kind")]
OTHERS = ", ".join(COLUMNS)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def ledger(url):
    """Entries 1 and 2 adaptive, 3 and 4 ex-post, 5 and 6 of a plan; 7 was never committed."""
    ledger = Ledger(url)
    release(ledger)
    ex_post = make_request(cohort="mail", guarantee=GuaranteeType.EX_POST, event=None)
    reservation = ledger.reserve(ex_post, make_terms(accepts_ex_post=True))
    stored = {"artifact_digest": "d2", "artifact_uri": "median.parquet"}
    ledger.commit(reservation, **stored, ex_post_epsilon=0.1)
    request = make_request(cohort="planned")
    plan = [PlannedRelease(request.asset, HALF_RHO)]
    reservation = ledger.reserve(request, make_terms(accountant="tight"), plan)
    ledger.commit(reservation, **stored)
    ledger.reserve(make_request(release="2"), make_terms(epsilon=20.0))
    return ledger


@pytest.fixture
def tamper(url, tmp_path):
    """Runs statements with the triggers out of the way, and puts the triggers back."""

    def run(*statements):
        if url.startswith("sqlite"):
            edit(tmp_path, *statements)
            return
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE privacy_ledger DISABLE TRIGGER USER")
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("ALTER TABLE privacy_ledger ENABLE TRIGGER USER")

    return run


@pytest.fixture
def found(url):
    """Numbers of the entries that verification names, alike from Python and the terminal."""

    def verify(witness=None):
        report = Ledger(url).verify(witness)
        assert not report.ok
        arguments = ["verify", *(["--head", witness] if witness else [])]
        told = CliRunner(env={"DPSYNTH_LEDGER_URL": url}).invoke(app, arguments)
        assert told.exit_code == 1
        assert told.output.splitlines() == [str(problem) for problem in report.problems]
        return {problem.seq for problem in report.problems}

    return verify


REFUSED = [
    "UPDATE privacy_ledger SET event_json = NULL",
    "DELETE FROM privacy_ledger",
    f"DELETE FROM privacy_ledger WHERE seq = {ROWS}",
    "INSERT INTO privacy_ledger SELECT * FROM privacy_ledger WHERE seq = 1 "
    "ON CONFLICT (seq) DO UPDATE SET asset = 'forged'",
]
OF_ONE_DATABASE = {
    "sqlite": ["INSERT OR REPLACE INTO privacy_ledger SELECT * FROM privacy_ledger WHERE seq = 1"],
    "postgresql": ["TRUNCATE privacy_ledger"],
}


def test_triggers_refuse_every_change(url, ledger):
    for statement in [*REFUSED, *OF_ONE_DATABASE[sa.make_url(url).get_backend_name()]]:
        with (
            pytest.raises(sa.exc.DBAPIError, match="append-only"),
            sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection,
        ):
            connection.exec_driver_sql(statement)
    assert ledger.verify().ok


def test_of_many_racing_for_the_last_budget_one_wins(url, ledger):
    def race(name):
        try:
            request = make_request(cohort="raced", release=name)
            Ledger(url).reserve(request, make_terms(epsilon=6.0))
        except BudgetExceededError:
            return "refused"
        return "won"

    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(race, "abcd"))
    assert outcomes == ["refused", "refused", "refused", "won"]
    assert ledger.spend("raced").reserved_uncommitted == 1
    assert ledger.verify().ok


def literal(value):
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | float) else f"'{value}'"


def altered(name, value):
    """SQL for another value that the column accepts."""
    if name == "ex_post_epsilon":
        return "0.25" if value is None else literal(value / 2)
    return "'forged'" if value is None else literal(f"{value[:-1]}~")


def two_of(entries, name):
    """Two rows for each column, so that columns together go through every row."""
    place = COLUMNS.index(name)
    return {entries[place % ROWS], entries[(3 * place + 1) % ROWS]}


@pytest.mark.parametrize("name", COLUMNS)
def test_an_altered_column_of_any_row_is_found(ledger, tamper, found, name):
    for entry in two_of(ledger.entries(), name):
        value = getattr(entry, name)
        where = f"WHERE seq = {entry.seq}"
        tamper(f"UPDATE privacy_ledger SET {name} = {altered(name, value)} {where}")
        assert entry.seq in found()
        tamper(f"UPDATE privacy_ledger SET {name} = {literal(value)} {where}")
    assert ledger.verify().ok, "the table was not put back"


def renumbered(seq, to):
    return f"UPDATE privacy_ledger SET seq = {to} WHERE seq = {seq}"


def removed(seq):
    return f"DELETE FROM privacy_ledger WHERE seq = {seq}"


def slipped_in(seq):
    others = OTHERS.replace("reservation", "'forged'")
    return (
        f"INSERT INTO privacy_ledger (seq, kind, {OTHERS}) SELECT {seq}, kind, {others} "
        "FROM privacy_ledger WHERE seq = 1"
    )


def with_later_ones_moved_up(seq):
    return [removed(seq), *(renumbered(n, n - 1) for n in range(seq + 1, ROWS + 1))]


def swapped(one, two):
    return [renumbered(one, 99), renumbered(two, one), renumbered(99, two)]


EDITS = [
    ([f"UPDATE privacy_ledger SET kind = 'commit' WHERE seq = {ROWS}"], {ROWS}),
    *(([renumbered(seq, seq + 100)], {seq + 100}) for seq in (1, 4, ROWS)),
    *(([slipped_in(seq)], {seq}) for seq in (0, -5)),
    *(([removed(seq)], {seq + 1}) for seq in (1, 4, ROWS - 1)),
    *((with_later_ones_moved_up(seq), {seq}) for seq in (1, 4, ROWS - 1)),
    *((swapped(*pair), set(pair)) for pair in ((1, 2), (1, 3), (2, 5), (6, 7))),
]


@pytest.mark.parametrize(("statements", "named"), EDITS)
def test_a_moved_removed_or_added_row_is_found(ledger, tamper, found, statements, named):
    tamper(*statements)
    assert named <= found()


def test_an_altered_row_that_was_hashed_anew_is_found_at_the_next(ledger, tamper, found):
    forged = sealed(ledger.entries()[1]._replace(artifact_digest="forged"))
    values = f"artifact_digest = 'forged', hash = '{forged.hash}'"
    tamper(f"UPDATE privacy_ledger SET {values} WHERE seq = 2")
    assert found() == {3}


@pytest.mark.parametrize("seq", [1, 4, ROWS - 1])
def test_a_commit_turned_into_a_charge_or_back_is_refused_by_the_table(ledger, tamper, seq):
    kind = "commit" if seq % 2 else "reserve"
    with pytest.raises(Exception, match=r"(?i)unique"):
        tamper(f"UPDATE privacy_ledger SET kind = '{kind}' WHERE seq = {seq}")


@pytest.mark.parametrize("count", [1, 2, ROWS])
def test_removed_last_rows_are_found_against_a_witnessed_head(ledger, tamper, found, count):
    witness = ledger.head()
    assert ledger.verify(witness).ok
    tamper(f"DELETE FROM privacy_ledger WHERE seq > {ROWS - count}")
    assert ledger.verify().ok, "without a witness a shorter ledger is a valid one"
    assert found(witness) == {0}


def test_a_rewritten_tail_is_found_against_a_witnessed_head(url, ledger, tamper, found):
    witness = ledger.head()
    tamper(f"DELETE FROM privacy_ledger WHERE seq = {ROWS}")
    fresh = Ledger(url)
    fresh.reserve(make_request(release="cheaper"), make_terms(epsilon=20.0))
    assert fresh.verify().ok
    assert found(witness) == {0}


# The chain


def test_an_untouched_ledger_verifies(ledger):
    report = ledger.verify()
    assert (report.ok, report.entries, report.head) == (True, ROWS, ledger.head())


def test_an_empty_ledger_verifies(tmp_path):
    report = Ledger(sqlite_url(tmp_path)).verify(GENESIS)
    assert (report.ok, report.entries, report.head) == (True, 0, GENESIS)


def test_a_witnessed_head_stays_valid_as_the_ledger_grows(ledger):
    witness = ledger.head()
    release(ledger, make_terms(epsilon=20.0), release="4")
    assert ledger.verify(witness).ok


def test_missing_triggers_are_found(url, ledger):
    of_a_table = "" if url.startswith("sqlite") else "ON privacy_ledger"
    with sa.create_engine(url, poolclass=sa.pool.NullPool).begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER privacy_ledger_no_delete {of_a_table}")
    assert [str(problem) for problem in ledger.verify().problems] == [
        "append-only triggers are missing: privacy_ledger_no_delete"
    ]


def test_a_tampered_ledger_admits_nothing(url, ledger, tamper):
    tamper("UPDATE privacy_ledger SET event_json = NULL WHERE seq = 1")
    fresh = Ledger(url)
    with pytest.raises(LedgerIntegrityError, match="entry 1 "):
        fresh.reserve(make_request(release="4"), make_terms(epsilon=20.0))
    assert len(fresh.entries()) == ROWS


def test_a_rolled_back_ledger_admits_nothing_to_a_process_that_knew_more(url, ledger, tamper):
    ledger.head()
    tamper("DELETE FROM privacy_ledger WHERE seq > 2")
    release(Ledger(url), make_terms(epsilon=20.0), release="4")
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
