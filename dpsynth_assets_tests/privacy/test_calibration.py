from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import (
    TOLERANCE,
    dp_sgd_noise_multiplier,
    smallest_multiplier,
    training_noise_multiplier,
)
from dpsynth_assets.privacy.events import (
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.renyi import least_sampled_epsilon


def steps_of(**changes):
    return PoissonGaussianEvent(
        **({"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 10} | changes)
    )


@pytest.mark.parametrize("others", [(), (PureEvent(epsilon=0.01, count=10),)])
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
@pytest.mark.parametrize("unit", [{}, {"max_records_per_unit": 3}, {"replaced": True}])
def test_training_noise_is_the_smallest_within_the_target(accountant, unit, others):
    plan = {"sampling_probability": 0.05, "steps": 200, **unit}
    found = dp_sgd_noise_multiplier(
        steps_of(**plan), target_epsilon=1.0, delta=1e-6, accountant=accountant, other_events=others
    )

    def epsilon(multiplier):
        event = replace(steps_of(**plan), noise_multiplier=multiplier)
        return epsilon_of([*others, event], 1e-6, accountant)

    assert epsilon(found) <= 1.0 < epsilon(found / (1 + 1.01 * TOLERANCE))


def test_others_over_the_target_are_refused():
    spent = [GaussianEvent(noise_multiplier=1.0)]
    with pytest.raises(ValueError, match="other_events"):
        dp_sgd_noise_multiplier(steps_of(), target_epsilon=1.0, delta=1e-6, other_events=spent)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_the_least_target_that_is_taken_finds_the_noise_that_is_needed(accountant):
    plan, steps = {"delta": 1e-6, "accountant": accountant}, steps_of(steps=100)
    least = least_sampled_epsilon(1e-6)
    needed = 0.1 * 10 / gaussian_mu(least, 1e-6)  # Many small steps: μ = q √T / σ.
    assert needed < dp_sgd_noise_multiplier(steps, target_epsilon=least, **plan) < 1.2 * needed
    with pytest.raises(ValueError, match=r"target_epsilon >= 0\.0021 .* got 0\.002:"):
        dp_sgd_noise_multiplier(steps, target_epsilon=0.002, **plan)
    found = dp_sgd_noise_multiplier(replace(steps, replaced=True), target_epsilon=0.001, **plan)
    needed = 2 * 0.1 * 10 / gaussian_mu(0.001, 1e-6)
    assert needed < found < 1.2 * needed / 0.1, "sound, and no more than without sampling"
    share = {**plan, "accountant": "zcdp", "budget_epsilon": 1.0}
    with pytest.raises(ValueError, match="raise target_epsilon"):
        training_noise_multiplier(steps, target_epsilon=0.001, **share)
    assert training_noise_multiplier(
        steps, target_epsilon=least, **share
    ) < 1.2 * 10 * 0.1 / gaussian_mu(least, 1e-6)


@given(st.floats(0.3, 3.0), st.floats(1e-4, 1e4), st.floats(0.0, 0.9))
def test_search_ends_a_hair_above_the_root_from_any_guess(power, guess, floor):
    found = smallest_multiplier(lambda sigma: floor + sigma**-power, guess, 1.0)
    root = (1.0 - floor) ** (-1 / power)
    assert root <= found * (1 + 1e-12)
    assert found <= root * (1 + 1.01 * TOLERANCE)
