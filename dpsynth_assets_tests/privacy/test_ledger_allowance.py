"""Laws of the monthly allowance: exact composition, month by month, whatever the clock says."""

import contextlib
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dpsynth_assets.cli.ledger import show
from dpsynth_assets.privacy.accounting import epsilon_of, filter_epsilon, zcdp_epsilon
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.privacy.errors import BudgetExceededError, PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING, GaussianEvent, PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, PlannedRelease
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.months import month_after, month_at
from dpsynth_assets.privacy.ledger.statement import dataset_spend
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

DELTA = 1e-6
ONE = GaussianEvent(noise_multiplier=10.0)  # ρ = 1/200
NOVEMBER, DECEMBER = datetime(2026, 11, 30, 23, 59, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def worth(charges: int) -> float:
    """ε of so many charges of ONE, as the filter adds them."""
    return zcdp_epsilon(charges * float(ONE.rho), DELTA) * (1 + 1e-9)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: datetime = NOVEMBER) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(tmp_path, clock):
    return Ledger(sqlite_url(tmp_path), clock)


def terms(charges: int = 2, **changes) -> BudgetTerms:
    """An allowance of so many charges of ONE a month."""
    return make_terms(monthly_epsilon=worth(charges), **changes)


def charge(ledger: Ledger, name: str, allowed: BudgetTerms | None = None, **changes) -> str:
    asked = make_request(event=ONE, release=name, **changes)
    return ledger.reserve(asked, allowed or terms()).id


def test_a_month_holds_its_allowance_and_not_one_charge_more(ledger):
    charge(ledger, "1")
    charge(ledger, "2")
    with pytest.raises(BudgetExceededError, match="monthly allowance of cohort 'tickets'"):
        charge(ledger, "3")
    assert len(ledger.entries()) == 2


def test_the_refusal_says_what_is_left_when_to_come_back_and_shows_a_difference(ledger):
    charge(ledger, "1", terms(1))
    with pytest.raises(BudgetExceededError) as refusal:
        charge(ledger, "2", terms(1))
    message = str(refusal.value)
    assert "2026-11 would come to" in message
    assert "2026-12-01 (UTC)" in message
    assert message.count("\n") == 0


def test_the_next_month_opens_a_new_allowance_within_the_same_total(ledger, clock):
    allowed = terms(2, epsilon=worth(3))
    charge(ledger, "1", allowed)
    charge(ledger, "2", allowed)
    clock.now = DECEMBER
    charge(ledger, "3", allowed)
    with pytest.raises(BudgetExceededError, match="would overspend cohort"):
        charge(ledger, "4", allowed)


@pytest.mark.parametrize("back", [timedelta(days=1), timedelta(days=40), timedelta(days=4000)])
def test_a_clock_set_back_grants_nothing(ledger, clock, back):
    clock.now = DECEMBER
    charge(ledger, "1")
    charge(ledger, "2")
    clock.now = DECEMBER - back
    with pytest.raises(BudgetExceededError, match="2026-12 would come to"):
        charge(ledger, "3")


def test_what_is_charged_while_the_clock_is_back_counts_in_the_latest_month(ledger, clock):
    clock.now = DECEMBER
    charge(ledger, "1")
    clock.now = NOVEMBER
    charge(ledger, "2")
    clock.now = DECEMBER + timedelta(days=3)
    with pytest.raises(BudgetExceededError):
        charge(ledger, "3")


def test_another_cohorts_entry_moves_the_month_for_all_and_nobody_else_pays_for_it(ledger, clock):
    clock.now = DECEMBER
    charge(ledger, "1", cohort="mail", dataset="mail")
    clock.now = NOVEMBER
    charge(ledger, "1")
    charge(ledger, "2")
    assert ledger.spend("tickets", terms()).month == "2026-12"
    with pytest.raises(BudgetExceededError):
        charge(ledger, "3")


def test_a_clock_that_runs_back_and_forth_never_grants_more_than_the_months_it_has_seen(
    ledger, clock
):
    admitted = 0
    moments = [DECEMBER, NOVEMBER, DECEMBER + timedelta(days=40), NOVEMBER, DECEMBER, NOVEMBER]
    for number, moment in enumerate(moments * 4):
        clock.now = moment
        try:
            charge(ledger, f"{number}", terms(1))
        except BudgetExceededError:
            continue
        admitted += 1
    assert admitted == 2  # December and January; November was over when it was asked.


def test_a_month_is_a_month_of_utc():
    tokyo = timezone(timedelta(hours=9))
    assert month_at(datetime(2026, 12, 1, 5, tzinfo=tokyo)) == "2026-11"
    assert (month_after("2026-11"), month_after("2026-12")) == ("2026-12-01", "2027-01-01")


def test_the_month_is_composed_by_the_filter_of_its_own_allowance(ledger):
    sampled = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.0, steps=50)
    for name in ("1", "2"):
        ledger.reserve(
            make_request(event=sampled, release=name), make_terms(monthly_epsilon=3.0, epsilon=9.0)
        )
    spend = ledger.spend("tickets")
    assert spend.month_epsilon == filter_epsilon([sampled, sampled], DELTA, 3.0)
    assert spend.month_remaining_epsilon == pytest.approx(3.0 - spend.month_epsilon)


PLAN = [
    PlannedRelease("tickets/histogram", GaussianEvent(noise_multiplier=30.0)),
    PlannedRelease("tickets/corpus", GaussianEvent(noise_multiplier=8.0)),
]


def test_a_fixed_plan_pays_for_whole_copies_by_the_month(ledger, clock):
    events = [line.event for line in PLAN]
    allowed = make_terms(
        accountant="tight", monthly_epsilon=epsilon_of(events, DELTA, "tight"), epsilon=20.0
    )

    def round_of(name):
        for line in PLAN:
            ledger.reserve(
                make_request(asset=line.asset, event=line.event, release=name), allowed, PLAN
            )

    round_of("1")
    with pytest.raises(BudgetExceededError, match="monthly allowance"):
        ledger.reserve(
            make_request(asset=PLAN[0].asset, event=PLAN[0].event, release="2"), allowed, PLAN
        )
    clock.now = DECEMBER
    round_of("2")
    spend = ledger.spend("tickets")
    assert spend.month_epsilon == epsilon_of(events, DELTA, "tight")
    assert spend.epsilon == epsilon_of(events * 2, DELTA, "tight")


def test_what_costs_nothing_is_admitted_after_the_allowance_is_spent(ledger):
    charge(ledger, "1", terms(1))
    free = make_request(event=POST_PROCESSING, asset="tickets/ctcl/candidate_corpus")
    ledger.reserve(free, terms(1))
    stored = make_request(event=ONE, release="1")
    ledger.commit(ledger.pending(stored)[0], artifact_digest="d", artifact_uri="u")
    assert ledger.reserve(stored, terms(1)).reused


def test_an_allowance_may_be_lowered_below_what_was_spent_and_then_admits_nothing(ledger):
    charge(ledger, "1")
    assert ledger.preview(make_request(event=ONE, release="2"), terms(1)).refusal
    assert ledger.spend("tickets", terms(1)).month_remaining_epsilon >= 0.0


def test_ex_post_releases_have_no_part_in_an_allowance(ledger):
    allowed = terms(1, accepts_ex_post=True)
    charge(ledger, "1", allowed)
    request = make_request(guarantee=GuaranteeType.EX_POST, event=None, release="2")
    assert ledger.preview(request, allowed).admitted


def test_of_many_that_ask_at_once_as_many_are_admitted_as_the_allowance_holds(tmp_path, clock):
    url, admitted = sqlite_url(tmp_path), []
    Ledger(url, clock)

    def ask(number):
        with contextlib.suppress(BudgetExceededError):
            admitted.append(charge(Ledger(url, clock), f"{number}", terms(3)))

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(admitted) == 3


def test_terms_without_an_allowance_are_written_as_they_always_were():
    assert "monthly" not in make_terms().to_json()
    assert "partition" not in make_terms().to_json()
    allowed = terms(partition="month of created")
    assert BudgetTerms.from_json(allowed.to_json()) == allowed


@pytest.mark.parametrize("void", [0.0, -1.0, float("inf"), float("nan")])
def test_an_allowance_that_bounds_nothing_is_refused(void):
    with pytest.raises(ValueError, match="monthly_epsilon"):
        make_terms(monthly_epsilon=void)


def test_show_tells_the_month_beside_the_total(ledger, tmp_path, capsys):
    charge(ledger, "1")
    show(ledger=sqlite_url(tmp_path), last=5)
    printed = capsys.readouterr().out
    assert "Monthly allowances" in printed
    assert declared(worth(2)) in printed


def test_two_rules_may_not_part_one_dataset(ledger):
    def ask(cohort, partition, **changes):
        return charge(ledger, "1", terms(partition=partition, **changes), cohort=cohort)

    ask("tickets_2026_01", "month of created")
    ask("tickets_2026_02", "month of created")
    for other in ("week of created", None):
        with pytest.raises(PrivacyError, match="partitioned by month of created"):
            ask("tickets_2026_w05", other)
    assert ledger.dataset_spend("tickets").composition == "parallel"


def test_a_dataset_charged_as_a_whole_may_not_be_parted_afterwards(ledger):
    charge(ledger, "1")
    with pytest.raises(PrivacyError, match="partitioned by no rule"):
        charge(ledger, "1", terms(partition="month of created"), cohort="tickets_2026_01")


def test_show_tells_what_disjoint_cohorts_cost_together(ledger, tmp_path, capsys):
    allowed = make_terms(partition="month of created", relation=NeighboringRelation.ADD_REMOVE)
    for cohort, releases in (("tickets_2026_01", 1), ("tickets_2026_02", 3)):
        for number in range(releases):
            charge(ledger, f"{number}", allowed, cohort=cohort)
    show(ledger=sqlite_url(tmp_path), last=5)
    printed = capsys.readouterr().out
    assert "in parallel: the largest cohort" in printed
    total = ledger.dataset_spend("tickets")
    assert total.epsilon == ledger.spend("tickets_2026_02").epsilon
    assert epsilon_up(total.epsilon) in printed


def test_cohorts_of_two_rules_would_add_up():
    accounts = [
        CohortAccount(cohort, "tickets", opened=terms(partition=rule), latest=terms())
        for cohort, rule in (("tickets_a", "month of created"), ("tickets_b", "week of created"))
    ]
    assert dataset_spend("tickets", accounts[:1] * 2).composition == "parallel"
    assert dataset_spend("tickets", accounts).composition == "sequential"
