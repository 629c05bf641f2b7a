import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.accounting import (
    composed_pld,
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
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.renyi import zcdp_delta, zcdp_epsilon, zcdp_rho

LAPLACE = DiscreteLaplaceEvent(scale=10.0)
TOKENS = BoundedRangeEvent(eta=0.1875, count=40)
GAUSSIAN = GaussianEvent(noise_multiplier=3.0)
PURE = PureEvent(epsilon=0.04, count=30)
TRAINING = PoissonGaussianEvent(sampling_probability=0.05, noise_multiplier=1.5, steps=200)
EVERY_KIND = [LAPLACE, TOKENS, GAUSSIAN, PURE, TRAINING]

EVENTS = st.lists(st.sampled_from(EVERY_KIND), max_size=3)


@given(st.floats(1e-6, 30.0), st.floats(1e-12, 0.1))
@settings(max_examples=40)
def test_zcdp_epsilon_is_rounded_up_and_rho_down(rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    assert zcdp_epsilon(zcdp_rho(epsilon, delta), delta) <= epsilon * (1 + 1e-9)
    if epsilon > 1e-6:
        assert zcdp_rho(epsilon, delta) == pytest.approx(rho, rel=1e-6)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
@given(events=EVENTS, extra=st.sampled_from(EVERY_KIND))
@settings(max_examples=8, deadline=None)
def test_another_event_never_lowers_epsilon_and_order_is_free(accountant, events, extra):
    total = epsilon_of([*events, extra], 1e-6, accountant)
    assert total >= epsilon_of(events, 1e-6, accountant)
    assert total == epsilon_of([ComposedEvent(events=(extra, *events))], 1e-6, accountant)


@given(events=EVENTS)
@settings(max_examples=15, deadline=None)
def test_tight_never_exceeds_zcdp(events):
    assert epsilon_of(events, 1e-6, "tight") <= epsilon_of(events, 1e-6, "zcdp") * (1 + 1e-9)


def test_one_bin_shift_dominates_a_shift_spread_over_bins():
    # L1 sensitivity 2 may be (2) or (1, 1): the one-dimensional event must cover both.
    spread = composed_pld([LAPLACE, LAPLACE], 1e-6)
    single = composed_pld([DiscreteLaplaceEvent(scale=10.0, sensitivity=2)], 1e-6)
    for epsilon in np.linspace(0.0, 0.2, 21):
        assert spread.get_delta_for_epsilon(epsilon) <= single.get_delta_for_epsilon(epsilon) + 1e-9


def test_gaussians_alone_are_composed_exactly():
    # Also a sample of everything is a Gaussian: no loss of the grid, at a δ that PLDs cannot read.
    events = [GAUSSIAN, PoissonGaussianEvent(sampling_probability=1.0, noise_multiplier=4, steps=3)]
    exact = gaussian_epsilon(math.sqrt(1 / 9 + 3 / 16), 1e-30)
    assert exact <= epsilon_of(events, 1e-30, "tight") <= exact * (1 + 1e-9)


def test_pure_releases_never_cost_more_than_their_sum():
    for events in ([PURE], [PURE, LAPLACE], [PureEvent(epsilon=1e-5, count=3)]):
        total = sum(e.count * e.epsilon if isinstance(e, PureEvent) else e.epsilon for e in events)
        assert epsilon_of(events, 1e-6, "tight") <= float(total) * (1 + 1e-9)


def test_many_pure_releases_reach_optimal_composition():
    # Optimal homogeneous composition, by its own sum over the number of positive losses.
    count, epsilon, total = 60, 0.1, 2.0
    odds = math.exp(epsilon)
    exact = (
        sum(
            math.comb(count, k) * max(0.0, odds**k - math.exp(total) * odds ** (count - k))
            for k in range(count + 1)
        )
        / (1 + odds) ** count
    )
    delta = privacy_profile([PureEvent(epsilon=epsilon, count=count)], [total], "tight")[0]
    assert exact <= delta <= exact * (1 + 1e-6)


def test_equal_events_cost_what_one_event_that_counts_them_costs():
    pairs = [
        ([PureEvent(epsilon=0.04)] * 30, PURE),
        ([PoissonGaussianEvent(**{**vars(TRAINING), "steps": 100})] * 2, TRAINING),
    ]
    for several, one in pairs:
        for accountant in ("zcdp", "tight"):
            whole = epsilon_of([one], 1e-6, accountant)
            assert epsilon_of(several, 1e-6, accountant) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_events_that_never_happened_cost_nothing(accountant):
    never = [
        PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=1.0, steps=0),
        PureEvent(epsilon=1.0, count=0),
        BoundedRangeEvent(eta=1.0, count=0),
    ]
    assert epsilon_of([], 1e-6, accountant) == 0.0
    assert epsilon_of(never, 1e-6, accountant) == 0.0
    assert privacy_profile(never, [0.0], accountant) == [0.0]


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (GAUSSIAN, 1e-20),  # Floats cannot resolve δ.
        (GaussianEvent(noise_multiplier=0.01), 1e-6),
        (PoissonGaussianEvent(sampling_probability=0.5, noise_multiplier=0.01, steps=3), 1e-6),
        (PureEvent(epsilon=5.0, count=1000), 1e-6),
        (BoundedRangeEvent(eta=2 * 10 / (1023 * 1.5), count=70_000), 1e-6),
    ],
)
def test_what_no_grid_can_hold_falls_back_to_zcdp(event, delta):
    for events in ([event, LAPLACE], [event, TRAINING]):
        tight = epsilon_of(events, delta, "tight")
        assert tight == pytest.approx(epsilon_of(events, delta, "zcdp"), rel=5e-3)
        assert tight >= epsilon_of([event], delta, "tight") * (1 - 1e-9)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_protection_of_secrets_never_enters_a_total(accountant):
    secret = MixtureGaussianEvent(noise_std=1.0, shifts=(0.0, 1.0), probabilities=(0.9, 0.1))
    for call in (
        lambda: epsilon_of([LAPLACE, secret], 1e-6, accountant),
        lambda: epsilon_of_fixed([secret], 1e-6, accountant),
        lambda: filter_epsilon([secret], 1e-6, 1.0),
        lambda: privacy_profile([ComposedEvent(events=(secret,))], [1.0], accountant),
    ):
        with pytest.raises(ValueError, match="secret"):
            call()


@given(st.lists(st.sampled_from([LAPLACE, TOKENS, GAUSSIAN, PURE]), max_size=6))
@settings(max_examples=25, deadline=None)
def test_filter_admits_zcdp_releases_exactly_as_the_zcdp_reading_does(events):
    for budget in (0.5, 1.0, 3.0, epsilon_of(events, 1e-6, "zcdp") or 1.0):
        admitted = filter_epsilon(events, 1e-6, budget) <= budget
        assert admitted == (epsilon_of(events, 1e-6, "zcdp") <= budget)


@given(events=EVENTS, extra=st.sampled_from(EVERY_KIND))
@settings(max_examples=30, deadline=None)
def test_filter_reading_never_falls_and_is_never_below_the_best_order(events, extra):
    reading = filter_epsilon([*events, extra], 1e-6, 4.0)
    assert reading >= filter_epsilon(events, 1e-6, 4.0)
    assert reading >= epsilon_of([*events, extra], 1e-6, "zcdp") * (1 - 0.02)


@pytest.mark.parametrize("event", EVERY_KIND)
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_profile_falls_and_meets_epsilon(event, accountant):
    epsilon = epsilon_of([event], 1e-6, accountant)
    grid = [0.0, epsilon / 2, epsilon, 2 * epsilon]
    deltas = privacy_profile([event], grid, accountant)
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[2] <= 1e-6 * 1.01
    assert privacy_profile([event], [], accountant) == []


def test_a_coarser_grid_reads_no_less():
    for events in ([TRAINING], [TRAINING, LAPLACE, PURE]):
        fine = epsilon_of(events, 1e-6, "tight")
        assert fine <= epsilon_of(events, 1e-6, "tight", discretization=1e-3) <= 1.01 * fine


def test_fixed_composition_never_exceeds_the_filter_nor_pure_basic_composition():
    pure = ComposedEvent(events=(DiscreteLaplaceEvent(scale=20.0),) * 2)
    tokens = BoundedRangeEvent(eta=0.2, count=50)
    assert epsilon_of_fixed([pure], 1e-6, "zcdp") == pytest.approx(0.1)
    for events in ([pure], [tokens], [pure, tokens], []):
        for accountant in ("zcdp", "tight"):
            fixed = epsilon_of_fixed(events, 1e-6, accountant)
            assert fixed <= epsilon_of(events, 1e-6, accountant)
    both = [pure, PureEvent(epsilon=0.02, count=5)]
    assert epsilon_of_fixed(both, 1e-6, "zcdp") == pytest.approx(0.2)
    together = epsilon_of_fixed([pure, tokens], 1e-6, "zcdp")
    assert together <= 0.1 * (1 + 1e-9) + epsilon_of([tokens], 1e-6, "zcdp")
    assert together >= epsilon_of([tokens], 1e-6, "zcdp")


# A release and what it rests on

BUDGET = 4.0
COUNTS = DiscreteGaussianEvent(noise_std=10.0)


@pytest.mark.parametrize("event", [LAPLACE, TOKENS, TRAINING, COUNTS])
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_one_charge_was_fixed_before_it_was_drawn(event, accountant):
    exact = epsilon_of_fixed([event], 1e-6, accountant)
    for charges in ([event], [event, POST_PROCESSING]):
        assert epsilon_with_inputs(charges, 1e-6, accountant, BUDGET) == exact
    if accountant == "tight":
        plan = [LAPLACE, event]
        exact = epsilon_of_fixed(plan, 1e-6, "tight")
        assert epsilon_with_inputs(plan, 1e-6, "tight", BUDGET) == exact
        profile = profile_with_inputs(plan, [1.0], 1e-6, "tight", BUDGET)
        assert profile == privacy_profile(plan, [1.0], "tight")


@pytest.mark.parametrize("charges", [[LAPLACE, TOKENS], [COUNTS, TRAINING], [LAPLACE, COUNTS]])
def test_several_charges_under_the_filter_are_added_up_as_the_filter_adds_them(charges):
    stated = epsilon_with_inputs(charges, 1e-6, "zcdp", BUDGET)
    assert stated == filter_epsilon(charges, 1e-6, BUDGET)
    assert stated >= epsilon_of_fixed(charges, 1e-6, "zcdp")
    assert stated >= epsilon_of(charges, 1e-6, "zcdp")
    # The profile is of the same order: it passes δ where ε is what is stated.
    (at,) = profile_with_inputs(charges, [stated], 1e-6, "zcdp", BUDGET)
    assert at == pytest.approx(1e-6, rel=1e-6)


def test_neither_the_best_order_nor_basic_composition_is_picked_after_the_outputs():
    training = [COUNTS, TRAINING]
    assert epsilon_with_inputs(training, 1e-6, "zcdp", BUDGET) > epsilon_of(training, 1e-6, "zcdp")
    pure = [LAPLACE, DiscreteLaplaceEvent(scale=20.0)]
    assert epsilon_with_inputs(pure, 1e-6, "zcdp", BUDGET) > epsilon_of_fixed(pure, 1e-6, "zcdp")


def test_nothing_paid_costs_nothing():
    assert epsilon_with_inputs([POST_PROCESSING], 1e-6, "zcdp", BUDGET) == 0
    assert profile_with_inputs([], [1.0], 1e-6, "zcdp", BUDGET) == [0.0]
