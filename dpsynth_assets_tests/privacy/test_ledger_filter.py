"""Laws of the adaptive filter with sampled events: one order, fixed by the budget alone."""

import pytest

from dpsynth_assets.privacy import renyi
from dpsynth_assets.privacy.accounting import epsilon_of, filter_epsilon
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon, zcdp_rho
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    make_request,
    make_terms,
    release,
    sqlite_url,
)

DELTA = 1e-6
BUDGET = 8.0
TRAINING = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.0, steps=500)


def test_what_is_shown_is_the_best_order_and_what_is_compared_is_the_budgets(ledger):
    release(ledger, event=HALF_RHO)
    told = ledger.preview(make_request(event=TRAINING, release="2"), make_terms())
    events = [HALF_RHO, TRAINING]
    assert told.total_epsilon == pytest.approx(epsilon_of(events, DELTA, "zcdp"))
    assert told.filter_epsilon == pytest.approx(filter_epsilon(events, DELTA, BUDGET))
    assert told.total_epsilon < told.filter_epsilon


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


def test_parts_of_a_composed_event_are_charged_as_if_alone(tmp_path, ledger):
    release(ledger, event=ComposedEvent(events=(TRAINING, HALF_RHO, TRAINING)))
    apart = Ledger(sqlite_url(tmp_path / "apart"))
    for name, event in enumerate([TRAINING, HALF_RHO, TRAINING]):
        release(apart, event=event, release=str(name))
    assert ledger.spend("tickets").epsilon == apart.spend("tickets").epsilon


def test_the_sum_does_not_depend_on_the_order_of_charges(tmp_path):
    events = [TRAINING, HALF_RHO, GaussianEvent(noise_multiplier=3.0), TRAINING]
    spends = []
    for folder, order in (("one", events), ("two", events[::-1])):
        ledger = Ledger(sqlite_url(tmp_path / folder))
        for name, event in enumerate(order):
            release(ledger, event=event, release=str(name))
        spends.append(ledger.spend("tickets"))
    assert spends[0] == spends[1]
