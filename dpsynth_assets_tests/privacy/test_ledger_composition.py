"""Laws of composition: fixed plans, ex-post releases kept apart, disjoint cohorts."""

from fractions import Fraction

import pytest

from dpsynth_assets.privacy import renyi
from dpsynth_assets.privacy.accounting import epsilon_of, filter_epsilon
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError, PrivacyError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    event_from_json,
    event_to_json,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import Ledger, PlannedRelease
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.export import history
from dpsynth_assets.privacy.ledger.statement import dataset_spend
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon, zcdp_rho
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
    with pytest.raises(PlanChangedError, match="Expected a planned release") as refusal:
        ledger.reserve(request_outside, tight(), [HISTOGRAM])
    assert ledger.preview(request_outside, tight(), [HISTOGRAM]).refusal == str(refusal.value)


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


def test_an_ex_post_release_ends_the_guarantee_and_pays_for_its_event_when_it_is_reserved(ledger):
    terms = make_terms(accepts_ex_post=True)
    reservation = ledger.reserve(make_request(guarantee=GuaranteeType.EX_POST), terms)
    spend = ledger.spend("tickets")
    assert (spend.rho, spend.total_guarantee) == (Fraction(1, 2), "none (ex-post only)")
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    assert ledger.spend("tickets").ex_post_epsilon_max == float("inf")


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
    assert spend.guaranteed_epsilon == 0.0
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


def test_cohorts_of_two_rules_would_add_up():
    accounts = [
        CohortAccount(cohort, "tickets", opened=make_terms(partition=rule), latest=make_terms())
        for cohort, rule in (("tickets_a", "month of created"), ("tickets_b", "week of created"))
    ]
    assert dataset_spend("tickets", accounts[:1] * 2).composition == "parallel"
    assert dataset_spend("tickets", accounts).composition == "sequential"


# What is guaranteed is not what an odometer reads

FIRST, SECOND = GaussianEvent(noise_multiplier=2.2), GaussianEvent(noise_multiplier=5.0)
A, B = "tickets/a/corpus", "tickets/b/corpus"


def charge(ledger, asset, event, terms, release="1"):
    plan = [PlannedRelease(A, FIRST)] if terms.accountant == "tight" else None
    ledger.reserve(make_request(asset=asset, event=event, release=release), terms, plan)


def test_a_filter_guarantees_its_budget_and_reads_less(ledger):
    charge(ledger, A, FIRST, make_terms(epsilon=4.0))
    spend = ledger.spend("tickets")
    assert (spend.guaranteed_epsilon, spend.delta, spend.basis) == (4.0, 1e-6, "filter")
    assert spend.epsilon == epsilon_of([FIRST], 1e-6, "zcdp") < 4.0


def test_the_largest_budget_counts_and_a_lowered_one_lowers_nothing(ledger):
    charge(ledger, A, FIRST, make_terms(epsilon=8.0))
    charge(ledger, B, SECOND, make_terms(epsilon=5.0))
    assert ledger.spend("tickets", make_terms(epsilon=4.0)).guaranteed_epsilon == 8.0


def test_a_plan_guarantees_all_copies_that_may_still_follow(ledger):
    """Who looks at one round decides on the next: ε of the charged rounds is no guarantee."""
    terms = make_terms(epsilon=9.0, accountant="tight")
    most = max(n for n in range(1, 60) if epsilon_of([FIRST] * n, 1e-6, "tight") <= 9.0)
    for copies in range(1, most + 1):
        charge(ledger, A, FIRST, terms, release=str(copies))
        spend = ledger.spend("tickets")
        assert spend.basis == "plan"
        assert spend.epsilon == epsilon_of([FIRST] * copies, 1e-6, "tight")
        assert spend.guaranteed_epsilon == epsilon_of([FIRST] * most, 1e-6, "tight") <= 9.0
    with pytest.raises(BudgetExceededError):
        charge(ledger, A, FIRST, terms, release="one more")
    assert ledger.spend("tickets").guaranteed_epsilon == ledger.spend("tickets").epsilon


def test_a_plan_of_which_very_many_copies_may_follow_guarantees_the_budget(ledger):
    event = GaussianEvent(noise_multiplier=200.0)
    terms = make_terms(epsilon=8.0, accountant="tight")
    ledger.reserve(make_request(asset=A, event=event), terms, [PlannedRelease(A, event)])
    assert ledger.spend("tickets").guaranteed_epsilon == 8.0


def test_after_a_switch_of_accountants_delta_is_doubled_everywhere(ledger):
    charge(ledger, A, FIRST, make_terms(accountant="tight"))
    assert ledger.spend("tickets").delta == 1e-6
    charge(ledger, B, SECOND, make_terms())
    spend = ledger.spend("tickets")
    assert (spend.guaranteed_epsilon, spend.delta) == (make_terms().epsilon, 2e-6)
    assert spend.basis == "plan, then filter"
    assert ledger.dataset_spend("tickets").delta == 2e-6
    assert [line.delta for line in history(ledger).lines] == [1e-6, 2e-6]


def test_a_plan_dearer_than_every_budget_is_still_covered_after_a_switch(ledger, monkeypatch):
    """A later version of the accounting may find a plan dearer than the budget it was under."""
    charge(ledger, A, FIRST, make_terms(accountant="tight"))
    charge(ledger, B, SECOND, make_terms())
    monkeypatch.setattr("dpsynth_assets.privacy.ledger.statement.plan_epsilon", lambda *_: 1e3)
    assert ledger.spend("tickets").guaranteed_epsilon == 1e3


# The adaptive filter with sampled events: one order, fixed by the budget alone

BUDGET = 8.0
TRAINING = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.0, steps=500)


def test_the_statement_shows_the_reading_and_leaves_what_the_filter_leaves(ledger):
    release(ledger, event=TRAINING)
    spend = ledger.spend("tickets")
    assert spend.epsilon == pytest.approx(epsilon_of([TRAINING], DELTA, "zcdp"))
    left = BUDGET - filter_epsilon([TRAINING], DELTA, BUDGET)
    assert spend.remaining_epsilon == pytest.approx(left)
    assert spend.rho == 0


def test_the_filter_refuses_what_the_best_order_would_admit_and_shows_its_own_number(ledger):
    terms = make_terms(epsilon=1.02 * epsilon_of([TRAINING], DELTA, "zcdp"))
    told = ledger.preview(training(1), terms)
    assert told.total_epsilon < terms.epsilon < told.filter_epsilon
    with pytest.raises(BudgetExceededError) as refusal:
        ledger.reserve(training(1), terms)
    assert "at the one order of a filter of this budget" in str(refusal.value)
    assert f"(ε={rounded_down(told.filter_epsilon, '.4f')}" in str(refusal.value)


def training(number):
    return make_request(event=TRAINING, release=str(number))


def test_the_order_depends_on_the_budget_and_on_nothing_released(ledger):
    order = renyi.filter_order(BUDGET, DELTA)
    for name, event in enumerate([TRAINING, HALF_RHO, TRAINING]):
        release(ledger, event=event, release=str(name))
    told = ledger.preview(training("next"), make_terms())
    events = [TRAINING, HALF_RHO, TRAINING, TRAINING]
    divergence = sum(renyi.renyi_divergence(event, order) for event in events)
    expected = renyi.epsilon_at_order(divergence, order, DELTA)
    assert told.filter_epsilon == pytest.approx(expected)
    assert told.total_epsilon == pytest.approx(epsilon_of(events, DELTA, "zcdp"))
    assert told.filter_epsilon >= expected


@pytest.mark.parametrize("short_of", [1 - 1e-9, 1 + 1e-9])
def test_zcdp_charges_alone_are_decided_by_their_exact_rho(ledger, short_of):
    noise_multiplier = (2 * zcdp_rho(BUDGET, DELTA) * short_of) ** -0.5
    told = ledger.preview(
        make_request(event=GaussianEvent(noise_multiplier=noise_multiplier)), make_terms()
    )
    assert told.admitted == (short_of < 1)
    rho = float_up(GaussianEvent(noise_multiplier=noise_multiplier).rho)
    assert told.filter_epsilon == told.total_epsilon == zcdp_epsilon(rho, DELTA)


def test_the_sum_depends_neither_on_the_order_of_charges_nor_on_what_is_composed(tmp_path):
    events = (TRAINING, HALF_RHO, GaussianEvent(noise_multiplier=3.0), TRAINING)
    spends = []
    for name, charged in enumerate([events, events[::-1], [ComposedEvent(events=events)]]):
        ledger = Ledger(sqlite_url(tmp_path / str(name)))
        for number, event in enumerate(charged):
            release(ledger, event=event, release=str(number))
        spends.append(ledger.spend("tickets"))
    assert spends[0] == spends[1]
    assert (spends[2].epsilon, spends[2].rho) == (spends[0].epsilon, spends[0].rho)


# Rows that are written from earlier releases charge nothing

STAGE = "tickets/ctcl/finetuned_generator"
ROWS = "tickets/ctcl/candidate_corpus"
EVENT = GaussianEvent(noise_multiplier=2.0)
PAID = [PlannedRelease(asset=STAGE, event=EVENT)]


@pytest.fixture(params=["zcdp", "tight"])
def terms(request):
    return make_terms(accountant=request.param)


def pay(ledger, terms, **changes):
    reservation = ledger.reserve(make_request(**changes), terms, PAID)
    if not reservation.reused:
        ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    return reservation


def write_rows(ledger, terms, rows):
    parameters = {"rows": rows}
    return pay(ledger, terms, asset=ROWS, event=POST_PROCESSING, parameters=parameters)


def test_any_number_of_corpora_costs_what_their_stage_cost(ledger, terms):
    pay(ledger, terms, asset=STAGE, event=EVENT)
    paid = ledger.spend("tickets", terms).epsilon
    entries = len(ledger.entries())
    for rows in (100, 1_000, 10_000):
        assert not write_rows(ledger, terms, rows).reused
    assert ledger.spend("tickets", terms).epsilon == paid
    assert len(ledger.entries()) == entries + 6
    assert ledger.verify().ok


def test_rows_are_free_when_nothing_is_left(ledger):
    terms = make_terms(epsilon=2.0)
    while ledger.preview(make_request(release=str(len(ledger.entries()))), terms).admitted:
        pay(ledger, terms, release=str(len(ledger.entries())))
    assert not write_rows(ledger, terms, 10).reused


def test_rows_are_free_after_a_fixed_plan_changed(ledger):
    terms = make_terms(accountant="tight")
    pay(ledger, terms, asset=STAGE, event=EVENT)
    paid = ledger.spend("tickets", terms).epsilon
    ledger.reserve(make_request(asset=ROWS, event=POST_PROCESSING), terms, [*PAID, *PAID])
    assert ledger.spend("tickets", terms).epsilon == paid
    assert ledger.verify().ok
    with pytest.raises(PlanChangedError, match=r"zcdp.*counts ε="):
        ledger.reserve(make_request(asset=STAGE, event=EVENT, release="2"), terms, [*PAID, *PAID])


def test_an_ex_post_release_is_no_free_row_of_a_changed_plan(ledger):
    terms = make_terms(accountant="tight", accepts_ex_post=True)
    pay(ledger, terms, asset=STAGE, event=EVENT)
    drawn = make_request(asset=ROWS, event=None, guarantee=GuaranteeType.EX_POST)
    with pytest.raises(PlanChangedError):
        ledger.reserve(drawn, terms, [*PAID, PlannedRelease(asset=ROWS, event=None)])


def test_rows_keep_a_cohort_on_its_fixed_plan(ledger):
    terms = make_terms(accountant="tight")
    write_rows(ledger, terms, 10)
    with pytest.raises(PlanChangedError):
        ledger.reserve(
            make_request(asset=STAGE, event=GaussianEvent(noise_multiplier=1.0)), terms, PAID
        )
    assert pay(ledger, terms, asset=STAGE, event=EVENT)


def test_only_empty_compositions_are_free_and_survive_the_ledger_as_such():
    for event in (POST_PROCESSING, ComposedEvent(events=(POST_PROCESSING,))):
        assert is_post_processing(event_from_json(event_to_json(event)))
    for event in (None, EVENT, ComposedEvent(events=(POST_PROCESSING, EVENT))):
        assert not is_post_processing(event)
