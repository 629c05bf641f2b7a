"""The same laws on PostgreSQL: a server of our own, or the database DPSYNTH_TEST_POSTGRES names."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, release


@pytest.fixture
def ledger(postgres_url):
    return Ledger(postgres_url)


@pytest.fixture
def execute(postgres_url):
    def run(statement):
        with sa.create_engine(postgres_url).begin() as connection:
            connection.exec_driver_sql(statement)

    return run


def test_releases_are_charged_reused_and_verified(ledger, postgres_url):
    release(ledger)
    assert Ledger(postgres_url).reserve(make_request(), make_terms()).reused
    report = ledger.verify(ledger.head())
    assert (report.ok, report.entries, report.problems) == (True, 2, ())


def test_an_ex_post_bound_keeps_every_bit(ledger):
    terms, request = (
        make_terms(accepts_ex_post=True),
        make_request(guarantee=GuaranteeType.EX_POST, event=None),
    )
    reservation = ledger.reserve(request, terms)
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u", ex_post_epsilon=0.1 + 0.2)
    assert ledger.entries()[-1].ex_post_epsilon == 0.1 + 0.2
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE privacy_ledger SET asset = 'forged'",
        "DELETE FROM privacy_ledger",
        "TRUNCATE privacy_ledger",
        "INSERT INTO privacy_ledger SELECT * FROM privacy_ledger WHERE seq = 1 "
        "ON CONFLICT (seq) DO UPDATE SET asset = 'forged'",
    ],
)
def test_triggers_refuse_every_change(ledger, execute, statement):
    release(ledger)
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        execute(statement)
    assert ledger.verify().ok


def test_an_edit_behind_disabled_triggers_is_found(ledger, execute):
    release(ledger)
    execute("ALTER TABLE privacy_ledger DISABLE TRIGGER ALL")
    execute("UPDATE privacy_ledger SET asset = 'forged' WHERE seq = 1")
    assert {0, 1} <= {problem.seq for problem in ledger.verify().problems}


def test_of_many_racing_for_the_last_budget_one_wins(ledger, postgres_url):
    release(ledger)

    def race(name):
        try:
            Ledger(postgres_url).reserve(make_request(release=name), make_terms(epsilon=8.0))
        except BudgetExceededError:
            return "refused"
        return "won"

    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(race, "abcd"))
    assert outcomes == ["refused", "refused", "refused", "won"]
    assert ledger.verify().ok
