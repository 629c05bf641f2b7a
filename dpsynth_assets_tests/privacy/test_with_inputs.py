import pytest

from dpsynth_assets.privacy.accounting import (
    epsilon_of,
    epsilon_of_fixed,
    epsilon_with_inputs,
    filter_epsilon,
    privacy_profile,
    profile_with_inputs,
)
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    PoissonGaussianEvent,
)

DELTA, BUDGET = 1e-6, 4.0
HISTOGRAM = DiscreteLaplaceEvent(scale=10.0)
TOKENS = BoundedRangeEvent(eta=0.1, count=100)
TRAINING = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.0, steps=500)
COUNTS = DiscreteGaussianEvent(noise_std=10.0)


@pytest.mark.parametrize("event", [HISTOGRAM, TOKENS, TRAINING, COUNTS])
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_one_charge_was_fixed_before_it_was_drawn(event, accountant):
    exact = epsilon_of_fixed([event], DELTA, accountant)
    for charges in ([event], [event, POST_PROCESSING]):
        assert epsilon_with_inputs(charges, DELTA, accountant, BUDGET) == exact


def test_several_charges_of_a_plan_were_fixed_together():
    charges = [HISTOGRAM, TOKENS]
    exact = epsilon_of_fixed(charges, DELTA, "tight")
    assert epsilon_with_inputs(charges, DELTA, "tight", BUDGET) == exact
    assert profile_with_inputs(charges, [1.0], DELTA, "tight", BUDGET) == privacy_profile(
        charges, [1.0], "tight"
    )


@pytest.mark.parametrize("charges", [[HISTOGRAM, TOKENS], [COUNTS, TRAINING], [HISTOGRAM, COUNTS]])
def test_several_charges_under_the_filter_are_added_up_as_the_filter_adds_them(charges):
    stated = epsilon_with_inputs(charges, DELTA, "zcdp", BUDGET)
    assert stated == filter_epsilon(charges, DELTA, BUDGET)
    assert stated >= epsilon_of_fixed(charges, DELTA, "zcdp")
    assert stated >= epsilon_of(charges, DELTA, "zcdp")
    # The profile is of the same order: it passes δ where ε is what is stated.
    (at,) = profile_with_inputs(charges, [stated], DELTA, "zcdp", BUDGET)
    assert at == pytest.approx(DELTA, rel=1e-6)


def test_neither_the_best_order_nor_basic_composition_is_picked_after_the_outputs():
    training = [COUNTS, TRAINING]
    assert epsilon_with_inputs(training, DELTA, "zcdp", BUDGET) > epsilon_of(
        training, DELTA, "zcdp"
    )
    pure = [HISTOGRAM, DiscreteLaplaceEvent(scale=20.0)]
    assert epsilon_with_inputs(pure, DELTA, "zcdp", BUDGET) > epsilon_of_fixed(pure, DELTA, "zcdp")


def test_nothing_paid_costs_nothing():
    assert epsilon_with_inputs([POST_PROCESSING], DELTA, "zcdp", BUDGET) == 0
    assert profile_with_inputs([], [1.0], DELTA, "zcdp", BUDGET) == [0.0]
