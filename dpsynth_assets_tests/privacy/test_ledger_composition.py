"""Laws of composition: fixed plans, ex-post releases kept apart, disjoint cohorts."""

from fractions import Fraction

import pytest

from dpsynth_assets.cli.ledger import show
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError, PrivacyError
from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import PlannedRelease
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.statement import dataset_spend
from dpsynth_assets.privacy.renyi import zcdp_epsilon
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    make_request,
    make_terms,
    release,
    sqlite_url,
)

DELTA = 1e-6
HISTOGRAM = PlannedRelease("tickets/histogram", GaussianEvent(noise_multiplier=10.0))
CORPUS = PlannedRelease("tickets/corpus", GaussianEvent(noise_multiplier=2.0))
PLAN = [HISTOGRAM, CORPUS]
EVENTS = [HISTOGRAM.event, CORPUS.event]


def tight(**changes):
    return make_terms(accountant="tight", **changes)


def planned(line, **changes):
    return make_request(asset=line.asset, event=line.event, **changes)


def ex_post_request(**changes):
    return make_request(guarantee=GuaranteeType.EX_POST, event=None, **changes)


def test_the_rest_of_the_plan_costs_nothing_more(ledger):
    ledger.reserve(planned(HISTOGRAM), tight(), PLAN)
    told = ledger.preview(planned(CORPUS), tight(), PLAN)
    assert told.total_epsilon == told.spent_epsilon
    ledger.reserve(planned(CORPUS), tight(), PLAN)
    assert ledger.spend("tickets").epsilon == epsilon_of(EVENTS, DELTA, "tight")


def test_a_planned_release_charged_twice_charges_the_plan_twice(ledger):
    for name in ("1", "2"):
        ledger.reserve(planned(HISTOGRAM, release=name), tight(epsilon=20.0), PLAN)
    spend = ledger.spend("tickets")
    assert spend.epsilon == epsilon_of(EVENTS * 2, DELTA, "tight")
    assert spend.accountant == "tight"


def test_a_plan_that_does_not_fit_is_refused_at_its_first_charge(ledger):
    whole = epsilon_of(EVENTS, DELTA, "tight")
    alone = epsilon_of([HISTOGRAM.event], DELTA, "tight")
    with pytest.raises(BudgetExceededError):
        ledger.reserve(planned(HISTOGRAM), tight(epsilon=(whole + alone) / 2), PLAN)
    assert ledger.entries() == []


def test_a_release_may_stand_in_the_plan_more_than_once(ledger):
    plan = [HISTOGRAM, HISTOGRAM]
    for name in ("1", "2"):
        ledger.reserve(planned(HISTOGRAM, release=name), tight(), plan)
    assert ledger.spend("tickets").epsilon == epsilon_of([HISTOGRAM.event] * 2, DELTA, "tight")


def test_another_plan_is_refused_and_the_same_in_another_order_is_not(ledger):
    ledger.reserve(planned(HISTOGRAM), tight(), PLAN)
    ledger.reserve(planned(CORPUS), tight(), PLAN[::-1])
    with pytest.raises(PlanChangedError, match="accountant: zcdp"):
        ledger.reserve(planned(HISTOGRAM, release="2"), tight(), [HISTOGRAM])
    assert len(ledger.entries()) == 2


@pytest.mark.parametrize(
    "request_outside",
    [planned(CORPUS, release="2"), make_request(asset=HISTOGRAM.asset, event=HALF_RHO)],
)
def test_a_release_outside_the_plan_is_refused(ledger, request_outside):
    with pytest.raises(PlanChangedError, match="Expected a planned release"):
        ledger.reserve(request_outside, tight(), [HISTOGRAM])


def test_a_fixed_plan_needs_a_plan_and_an_unplanned_past_excludes_one(ledger):
    with pytest.raises(PlanChangedError, match="got none"):
        ledger.reserve(planned(HISTOGRAM), tight())
    release(ledger)
    with pytest.raises(PlanChangedError, match="without a plan already"):
        ledger.reserve(planned(HISTOGRAM), tight(), PLAN)


def test_a_committed_release_is_reused_even_after_the_plan_grew(ledger):
    reservation = ledger.reserve(planned(HISTOGRAM), tight(), [HISTOGRAM])
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    assert ledger.reserve(planned(HISTOGRAM), tight(), PLAN).reused


def test_a_cohort_may_leave_its_plan_for_the_filter(ledger):
    ledger.reserve(planned(HISTOGRAM), tight(), PLAN)
    ledger.reserve(make_request(), make_terms())
    spend = ledger.spend("tickets")
    assert spend.accountant == "zcdp"
    assert spend.epsilon == zcdp_epsilon(float(spend.rho), DELTA)
    assert spend.rho >= HISTOGRAM.event.rho + Fraction(1, 2)


def test_a_preview_tells_a_changed_plan_without_raising(ledger):
    told = ledger.preview(planned(CORPUS), tight(), [HISTOGRAM])
    assert not told.admitted
    assert "Expected a planned release" in told.refusal


def test_an_ex_post_release_must_be_accepted(ledger):
    with pytest.raises(PrivacyError, match="accept ex-post releases"):
        ledger.reserve(ex_post_request(), make_terms())
    assert ledger.entries() == []


def test_ex_post_bounds_never_enter_the_dp_sum(ledger):
    terms = make_terms(accepts_ex_post=True)
    release(ledger, terms)
    before = ledger.spend("tickets")
    for name, bound in (("a", 1.5), ("b", 2.5)):
        reservation = ledger.reserve(ex_post_request(release=name), terms)
        ledger.commit(reservation, artifact_digest="d", artifact_uri="u", ex_post_epsilon=bound)
    after = ledger.spend("tickets")
    assert (after.epsilon, after.rho) == (before.epsilon, before.rho)
    assert after.ex_post_epsilon_max == 2.5
    assert (before.total_guarantee, after.total_guarantee) == ("dp", "none (ex-post only)")


def test_a_reserved_ex_post_release_already_ends_the_dp_guarantee(ledger):
    ledger.reserve(ex_post_request(), make_terms(accepts_ex_post=True))
    assert ledger.spend("tickets").total_guarantee == "none (ex-post only)"


def test_an_unstated_ex_post_bound_is_infinite(ledger):
    release(ledger, make_terms(accepts_ex_post=True), guarantee=GuaranteeType.EX_POST, event=None)
    assert ledger.spend("tickets").ex_post_epsilon_max == float("inf")


def test_the_event_of_an_ex_post_release_is_charged(ledger):
    release(ledger, make_terms(accepts_ex_post=True), guarantee=GuaranteeType.EX_POST)
    assert ledger.spend("tickets").rho == Fraction(1, 2)


def test_only_an_ex_post_release_may_state_a_finite_bound(ledger):
    reservation = ledger.reserve(make_request(), make_terms())
    with pytest.raises(PrivacyError, match="Leave it out"):
        ledger.commit(reservation, artifact_digest="d", artifact_uri="u", ex_post_epsilon=1.0)
    reservation = ledger.reserve(ex_post_request(), make_terms(accepts_ex_post=True))
    for bound in (-1.0, float("nan"), float("inf")):
        with pytest.raises(PrivacyError, match="finite ex_post_epsilon"):
            ledger.commit(reservation, artifact_digest="d", artifact_uri="u", ex_post_epsilon=bound)


def spend_of_two_windows(ledger, cohorts=("tickets/01", "tickets/02"), **terms):
    release(ledger, make_terms(**terms), cohort=cohorts[0])
    release(ledger, make_terms(**terms), cohort=cohorts[1], event=DiscreteLaplaceEvent(scale=10.0))
    parts = [ledger.spend(cohort).epsilon for cohort in cohorts]
    return ledger.dataset_spend("tickets"), parts


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
def test_disjoint_cohorts_cost_their_maximum(ledger, relation):
    total, parts = spend_of_two_windows(ledger, relation=NeighboringRelation(relation))
    assert (total.composition, total.epsilon, total.delta) == ("parallel", max(parts), DELTA)


@pytest.mark.parametrize(
    "terms",
    [
        {"relation": NeighboringRelation.REPLACE_ONE},
        {"unit": PrivacyUnit(column="customer", max_records=2)},
        {"cohorts": ("tickets", "tickets/02")},
    ],
)
def test_cohorts_that_one_unit_may_span_add_up(ledger, terms):
    total, parts = spend_of_two_windows(ledger, **terms)
    assert total.composition == "sequential"
    assert Fraction(total.epsilon) >= sum(map(Fraction, parts))
    assert total.epsilon == pytest.approx(sum(parts))
    assert total.delta == pytest.approx(2 * DELTA)


def test_one_ex_post_cohort_ends_the_guarantee_of_its_dataset(ledger):
    terms = make_terms(accepts_ex_post=True)
    release(ledger, terms, cohort="tickets/01")
    ledger.reserve(ex_post_request(cohort="tickets/02"), terms)
    assert ledger.dataset_spend("tickets").total_guarantee == "none (ex-post only)"


def test_cohorts_that_protect_different_things_have_no_joint_guarantee(ledger):
    release(ledger, cohort="tickets/01")
    other = make_terms(relation=NeighboringRelation.ZERO_OUT)
    release(ledger, other, cohort="tickets/02")
    assert ledger.dataset_spend("tickets").total_guarantee.startswith("none (cohorts differ")


def test_other_datasets_do_not_count(ledger):
    release(ledger)
    assert ledger.dataset_spend("mail").epsilon == 0.0


def test_an_unknown_cohort_has_spent_nothing_of_the_given_terms(ledger):
    spend = ledger.spend("tickets", make_terms())
    assert (spend.epsilon, spend.remaining_epsilon, spend.delta) == (0.0, 8.0, DELTA)
    assert ledger.spend("tickets").remaining_epsilon is None


# Cohorts that part a dataset


def test_two_rules_may_not_part_one_dataset(ledger):
    def ask(cohort, partition):
        release(ledger, make_terms(partition=partition), cohort=cohort, event=HISTOGRAM.event)

    ask("tickets_2026_01", "month of created")
    ask("tickets_2026_02", "month of created")
    for other in ("week of created", None):
        with pytest.raises(PrivacyError, match="partitioned by month of created"):
            ask("tickets_2026_w05", other)
    assert ledger.dataset_spend("tickets").composition == "parallel"


def test_a_dataset_charged_as_a_whole_may_not_be_parted_afterwards(ledger):
    release(ledger)
    with pytest.raises(PrivacyError, match="partitioned by no rule"):
        release(ledger, make_terms(partition="month of created"), cohort="tickets_2026_01")


def test_show_tells_what_disjoint_cohorts_cost_together(ledger, tmp_path, monkeypatch, capsys):
    terms = make_terms(partition="month of created")
    for cohort, releases in (("tickets_2026_01", 1), ("tickets_2026_02", 3)):
        for number in range(releases):
            asked = {"cohort": cohort, "release": f"{number}", "event": HISTOGRAM.event}
            release(ledger, terms, **asked)
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    show(last=5)
    printed = capsys.readouterr().out
    assert "in parallel: the largest cohort" in printed
    total = ledger.dataset_spend("tickets")
    assert total.epsilon == ledger.spend("tickets_2026_02").epsilon
    assert epsilon_up(total.epsilon) in printed


def test_cohorts_of_two_rules_would_add_up():
    accounts = [
        CohortAccount(cohort, "tickets", opened=make_terms(partition=rule), latest=make_terms())
        for cohort, rule in (("tickets_a", "month of created"), ("tickets_b", "week of created"))
    ]
    assert dataset_spend("tickets", accounts[:1] * 2).composition == "parallel"
    assert dataset_spend("tickets", accounts).composition == "sequential"
