import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.accounting import (
    composed_pld,
    epsilon_of,
    epsilon_of_fixed,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from dpsynth_assets.privacy.bounded_range import bounded_range_epsilon
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
)

AGNEWS_DELTA = 108_000**-1.1
LAPLACE = DiscreteLaplaceEvent(scale=10.0)
TOKENS = BoundedRangeEvent(eta=0.1875, count=40)
GAUSSIAN = GaussianEvent(noise_multiplier=3.0)

EVENTS = st.lists(st.sampled_from([LAPLACE, TOKENS, GAUSSIAN]), max_size=3)


def test_theorem_1_of_amin_2024_is_reproduced():
    # r = 100, s = 255, c = 10, tau = 2, sigma = 0.2, delta = 1e-6: first form of Theorem 1.
    rho = 100 * (0.5 * (10 / (255 * 2.0)) ** 2 + 2 / (255 * 0.2) ** 2)
    assert zcdp_epsilon(rho, 1e-6) == pytest.approx(2.096275304423021, abs=1e-6)
    assert zcdp_delta(rho, 3.0) == pytest.approx(6.9590384669070015e-12, rel=1e-6)


def test_zcdp_conversion_matches_dp_accounting():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(dp_accounting.ZCDpEvent(rho=1.64))
    ours = zcdp_epsilon(1.64, 2.9e-6)
    assert ours <= accountant.get_epsilon(2.9e-6) + 1e-9
    assert ours == pytest.approx(accountant.get_epsilon(2.9e-6), rel=1e-3)


@given(st.floats(1e-6, 30.0), st.floats(1e-12, 0.1))
def test_zcdp_epsilon_is_rounded_up_and_rho_down(rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    assert zcdp_epsilon(zcdp_rho(epsilon, delta), delta) <= epsilon * (1 + 1e-9)
    if epsilon > 1e-6:
        assert zcdp_rho(epsilon, delta) == pytest.approx(rho, rel=1e-6)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_no_event_costs_nothing(accountant):
    assert epsilon_of([], 1e-6, accountant) == 0.0
    assert epsilon_of([BoundedRangeEvent(eta=1.0, count=0)], 1e-6, accountant) == 0.0


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
@given(events=EVENTS, extra=st.sampled_from([LAPLACE, TOKENS, GAUSSIAN]))
@settings(max_examples=15, deadline=None)
def test_another_event_never_lowers_epsilon_and_order_is_free(accountant, events, extra):
    total = epsilon_of([*events, extra], 1e-6, accountant)
    assert total >= epsilon_of(events, 1e-6, accountant)
    assert total == epsilon_of([ComposedEvent(events=(extra, *events))], 1e-6, accountant)


@given(events=EVENTS)
@settings(max_examples=15, deadline=None)
def test_tight_never_exceeds_zcdp(events):
    assert epsilon_of(events, 1e-6, "tight") <= epsilon_of(events, 1e-6, "zcdp") * (1 + 1e-9)


def test_tight_composes_histogram_and_tokens_of_the_paper():
    # 367 tokens and Laplace(10): printed as 9.9 + 0.1; 9.907 by zCDP, 9.283 by optimal composition.
    events = [LAPLACE, BoundedRangeEvent(eta=0.1875, count=367)]
    assert epsilon_of(events, AGNEWS_DELTA, "tight") == pytest.approx(9.283, abs=5e-3)
    assert epsilon_of(events, AGNEWS_DELTA, "zcdp") == pytest.approx(9.907, abs=1e-3)


def test_tight_is_not_below_an_explicit_adversary():
    adversary = bounded_range_epsilon(0.1875, 367, AGNEWS_DELTA, upper=False)
    assert adversary <= epsilon_of([BoundedRangeEvent(eta=0.1875, count=367)], 2.9e-6, "tight")


@pytest.mark.parametrize(("noise_multiplier", "count"), [(1.0, 1), (10.0, 1), (8.03, 10)])
def test_tight_gaussian_matches_the_analytic_mechanism(noise_multiplier, count):
    import dp_accounting

    exact = dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(count), 1e-6)
    ours = epsilon_of([GaussianEvent(noise_multiplier=noise_multiplier)] * count, 1e-6, "tight")
    assert exact <= ours <= exact * (1 + 1e-4)


def test_token_block_as_a_loss_distribution_keeps_its_epsilon():
    pld = composed_pld([BoundedRangeEvent(eta=0.1875, count=100)], 1e-6)
    alone = bounded_range_epsilon(0.1875, 100, 1e-6)
    lower = bounded_range_epsilon(0.1875, 100, 1e-6, upper=False)
    assert lower <= pld.get_epsilon_for_delta(1e-6) <= alone


def test_laplace_never_exceeds_its_pure_epsilon():
    assert epsilon_of([LAPLACE], 1e-6, "tight") <= 0.1 * (1 + 1e-9)


def test_one_bin_shift_dominates_a_shift_spread_over_bins():
    # L1 sensitivity 2 may be (2) or (1, 1): the one-dimensional event must cover both.
    spread = composed_pld([LAPLACE, LAPLACE], 1e-6)
    single = composed_pld([DiscreteLaplaceEvent(scale=10.0, sensitivity=2)], 1e-6)
    for epsilon in np.linspace(0.0, 0.2, 21):
        assert spread.get_delta_for_epsilon(epsilon) <= single.get_delta_for_epsilon(epsilon) + 1e-9


def test_long_blocks_fall_back_to_zcdp():
    event = BoundedRangeEvent(eta=2 * 10 / (1023 * 1.5), count=70_000)
    assert epsilon_of([event], 1e-6, "tight") == pytest.approx(
        epsilon_of([event], 1e-6, "zcdp"), rel=1e-6
    )
    mixed = epsilon_of([event, LAPLACE], 1e-6, "tight")
    assert mixed <= epsilon_of([event, LAPLACE], 1e-6, "zcdp") * 1.001


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_outside_the_open_unit_interval_is_refused(delta):
    with pytest.raises(ValueError, match="0 < delta < 1"):
        epsilon_of([LAPLACE], delta, "zcdp")


def test_unknown_accountant_is_refused():
    with pytest.raises(ValueError, match="accountant"):
        epsilon_of([LAPLACE], 1e-6, "moments")


def test_fixed_composition_never_exceeds_the_filter_nor_pure_basic_composition():
    pure = ComposedEvent(events=(DiscreteLaplaceEvent(scale=20.0),) * 2)
    tokens = BoundedRangeEvent(eta=0.2, count=50)
    assert epsilon_of_fixed([pure], 1e-6, "zcdp") == pytest.approx(0.1)
    for events in ([pure], [tokens], [pure, tokens], []):
        for accountant in ("zcdp", "tight"):
            fixed = epsilon_of_fixed(events, 1e-6, accountant)
            assert fixed <= epsilon_of(events, 1e-6, accountant)
    together = epsilon_of_fixed([pure, tokens], 1e-6, "zcdp")
    assert together <= 0.1 * (1 + 1e-9) + epsilon_of([tokens], 1e-6, "zcdp")
    assert together >= epsilon_of([tokens], 1e-6, "zcdp")
