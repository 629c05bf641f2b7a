"""Two ways in which other ledgers lost what was spent, run against ours.

F7: a generator resumed on an earlier run's folder reports the ε of the new parameters alone, so
that three iterations at ε = 10 read as ε = 0.5 once resumed under a smaller budget.
F21: a float ledger lets charges through that are too small to change its sum.
"""

from fractions import Fraction

import pytest

from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.charges import RHO_GRID_BITS, FilterSum
from dpsynth_assets.privacy.renyi import float_up, zcdp_rho
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    make_request,
    make_terms,
    release,
    sqlite_url,
)

DELTA = 1e-6
SPENDTHRIFT = GaussianEvent(noise_multiplier=0.5)


def test_f7_a_resumed_run_under_a_smaller_budget_is_refused_and_hides_nothing(tmp_path, ledger):
    release(ledger, make_terms(epsilon=40.0), event=SPENDTHRIFT)
    before, resumed = ledger.spend("tickets"), Ledger(sqlite_url(tmp_path))
    with pytest.raises(BudgetExceededError, match=r"remaining ε=0\.00 of 0\.50"):
        release(resumed, make_terms(epsilon=0.5), event=GaussianEvent(noise_multiplier=10.0))
    after = resumed.spend("tickets", make_terms(epsilon=0.5))
    assert after.epsilon == before.epsilon > 10
    assert after.remaining_epsilon == 0.0


TINY = [
    GaussianEvent(noise_multiplier=3e161),
    PureEvent(epsilon=3e-162),
    BoundedRangeEvent(eta=6e-162, count=1),
    ComposedEvent(events=(GaussianEvent(noise_multiplier=3e161),)),
    GaussianEvent(noise_multiplier=1.7e308),
    PureEvent(epsilon=5e-324),
]
"""Events of subnormal ρ, 1e-323 and less, and of less than any float: they vanish in a sum."""


@pytest.mark.parametrize("event", TINY)
def test_f21_no_charge_is_too_small_to_count(ledger, event):
    assert float(event.rho) <= 1e-323
    release(ledger, event=event)
    alone = ledger.spend("tickets")
    assert alone.epsilon > 0
    assert alone.to_json()["rho"] > 0
    assert alone.remaining_epsilon < alone.budget_epsilon
    release(ledger, event=HALF_RHO, release="2")
    assert ledger.spend("tickets").rho >= HALF_RHO.rho + event.rho


@pytest.mark.parametrize("event", TINY)
def test_f21_a_budget_that_is_spent_to_the_last_bit_refuses_a_tiny_charge(event):
    rho = zcdp_rho(8.0, DELTA)
    spent = FilterSum(units=int(Fraction(rho) * 2**RHO_GRID_BITS))
    total = spent.plus(make_request(event=event).event_json)
    assert total.units > spent.units
    assert float_up(Fraction(total.units, 1 << RHO_GRID_BITS)) > rho
    assert total.filter_epsilon(DELTA, 8.0) >= spent.filter_epsilon(DELTA, 8.0)


def test_f21_sampled_charges_of_any_size_are_kept():
    tiny = PoissonGaussianEvent(sampling_probability=1e-9, noise_multiplier=1e9, steps=1)
    event_json = make_request(event=tiny).event_json
    total = FilterSum()
    for _ in range(1000):
        total.add(event_json)
    assert total.sampled == {event_json: 1000}
    assert total.filter_epsilon(DELTA, 8.0) > FilterSum().filter_epsilon(DELTA, 8.0)
