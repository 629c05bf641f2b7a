"""Two ways in which other ledgers lost what was spent, run against ours.

F7: a generator resumed on an earlier run's folder reports the ε of the new parameters alone, so
that three iterations at ε = 10 read as ε = 0.5 once resumed under a smaller budget.
F21: a float ledger lets charges through that are too small to change its sum.
"""

from fractions import Fraction

import pytest

from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.charges import RHO_GRID_BITS, FilterSum
from dpsynth_assets.privacy.renyi import float_up, zcdp_rho
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url
from dpsynth_assets_tests.stored import release_once

DELTA = 1e-6
SPENDTHRIFT = GaussianEvent(noise_multiplier=0.5)
FRUGAL = GaussianEvent(noise_multiplier=10.0)


def run(folder, event=FRUGAL, terms=None, **changes):
    """One run of a mechanism in a fresh process, on whatever earlier runs left in the folder."""

    def draw(_reservation):
        cost = Cost(guarantee=GuaranteeType.DP, event=event)
        return Release(value=StageRelease(facts={"drawn": str(event)}), cost=cost)

    ledger = Ledger(sqlite_url(folder))
    release_once(
        ledger=ledger,
        store=ReleaseStore.at(str(folder / "releases")),
        request=make_request(event=event, **changes),
        terms=terms or make_terms(epsilon=40.0),
        plan=(),
        draw=draw,
    )
    return ledger.spend("tickets")


def test_f7_a_resumed_run_under_a_smaller_budget_is_refused_and_hides_nothing(tmp_path):
    before = run(tmp_path, SPENDTHRIFT)
    with pytest.raises(BudgetExceededError, match=r"remaining ε=0\.00 of 0\.50"):
        run(tmp_path, FRUGAL, make_terms(epsilon=0.5))
    after = Ledger(sqlite_url(tmp_path)).spend("tickets", make_terms(epsilon=0.5))
    assert after.epsilon == before.epsilon > 10
    assert after.remaining_epsilon == 0.0


# Events of subnormal ρ: 1e-323 and less. Their floats vanish in any sum.
SUBNORMAL = [
    GaussianEvent(noise_multiplier=3e161),
    PureEvent(epsilon=3e-162),
    BoundedRangeEvent(eta=6e-162, count=1),
    ComposedEvent(events=(GaussianEvent(noise_multiplier=3e161),)),
]
BELOW_FLOATS = [GaussianEvent(noise_multiplier=1.7e308), PureEvent(epsilon=5e-324)]


@pytest.mark.parametrize("event", [*SUBNORMAL, *BELOW_FLOATS])
def test_f21_no_charge_is_too_small_to_count(tmp_path, event):
    assert float(event.rho) <= 1e-323
    alone = run(tmp_path / "alone", event)
    assert alone.epsilon > 0
    assert alone.to_json()["rho"] > 0
    assert alone.remaining_epsilon < alone.budget_epsilon
    before = run(tmp_path, SPENDTHRIFT)
    after = run(tmp_path, event)
    assert after.rho > before.rho
    assert after.rho >= SPENDTHRIFT.rho + event.rho
    assert after.epsilon >= before.epsilon


@pytest.mark.parametrize("event", [*SUBNORMAL, *BELOW_FLOATS])
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
    assert total.epsilon(DELTA) >= 0.0
    assert total.filter_epsilon(DELTA, 8.0) > FilterSum().filter_epsilon(DELTA, 8.0)
