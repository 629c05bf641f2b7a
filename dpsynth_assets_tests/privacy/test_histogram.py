import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.histogram import (
    NoisyHistogram,
    l1_sensitivity,
    l2_sensitivity,
    scale_for,
)

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.sampled_from(NeighboringRelation),
)
def test_counts_of_neighbours_differ_by_at_most_the_sensitivity(rest, unit, relation):
    # The unit's records sit in bins a; the neighbour drops them or moves them to bins b.
    before = np.bincount([*rest, *(a for a, _ in unit)], minlength=5)
    moved = [b for _, b in unit] if relation is REPLACE_ONE else []
    after = np.bincount(np.array([*rest, *moved], dtype=int), minlength=5)
    change = np.abs(before - after)
    assert change.sum() <= l1_sensitivity(relation, len(unit))
    assert np.linalg.norm(change) <= l2_sensitivity(relation, len(unit))


@pytest.mark.parametrize(
    ("relation", "l1", "l2"),
    [(ADD_REMOVE, 1, 1.0), (ZERO_OUT, 1, 1.0), (REPLACE_ONE, 2, math.sqrt(2))],
)
def test_events_state_noise_relative_to_the_sensitivity(relation, l1, l2):
    for records in (1, 3):
        arguments = {"scale": 10.0, "relation": relation, "max_records_per_unit": records}
        laplace = NoisyHistogram(noise="laplace", **arguments).event()
        assert laplace == DiscreteLaplaceEvent(scale=10.0, sensitivity=l1 * records)
        gaussian = NoisyHistogram(noise="gaussian", **arguments).event()
        assert gaussian == DiscreteGaussianEvent(noise_std=10.0, shift=records, count=l1)
        assert float(gaussian.rho) == pytest.approx((l2 * records) ** 2 / 200)


def test_release_carries_its_cost_and_every_bin():
    release = NoisyHistogram(noise="laplace", scale=2.0, relation=ADD_REMOVE).release([5, 0, 7])
    assert release.value.shape == (3,)
    assert release.value.dtype == np.int64
    assert release.cost.guarantee is GuaranteeType.DP
    assert release.cost.event == DiscreteLaplaceEvent(scale=2.0)


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "variance"), [("laplace", 2 * 10.0**2), ("gaussian", 10.0**2)])
def test_the_noise_has_the_scale_that_is_priced(noise, variance):
    bins = np.full(40_000, 7)
    mechanism = NoisyHistogram(noise=noise, scale=10.0, relation=REPLACE_ONE)
    drawn = mechanism.release(bins).value - bins
    # Five standard errors of a Laplace variable's variance, sqrt(5 / 40,000), are 5.6 %.
    assert drawn.var() == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_large_counts_do_not_saturate(noise):
    count = 10**12
    release = NoisyHistogram(noise=noise, scale=5.0, relation=ADD_REMOVE).release([count])
    assert abs(int(release.value[0]) - count) < 1000


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_laplace_scale_meets_the_pure_epsilon(relation):
    scale = scale_for(NoisyHistogram(noise="laplace", scale=1.0, relation=relation), 0.1, 1e-6)
    event = NoisyHistogram(noise="laplace", scale=scale, relation=relation).event()
    assert isinstance(event, DiscreteLaplaceEvent)
    assert 0.1 * (1 - 1e-9) <= event.epsilon <= 0.1


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_gaussian_scale_is_the_smallest_that_meets_epsilon(accountant):
    histogram = NoisyHistogram(noise="gaussian", scale=1.0, relation=REPLACE_ONE)
    scale = scale_for(histogram, 0.5, 1e-6, accountant)

    def epsilon(value):
        event = NoisyHistogram(noise="gaussian", scale=value, relation=REPLACE_ONE).event()
        return epsilon_of([event], 1e-6, accountant)

    assert epsilon(scale) <= 0.5 < epsilon(scale * 0.999)


def test_fractional_counts_are_refused_without_showing_them():
    with pytest.raises(ValueError, match="whole counts") as refusal:
        NoisyHistogram(noise="laplace", scale=1.0, relation=ADD_REMOVE).release([1234.5])
    assert "1234" not in str(refusal.value)


@pytest.mark.parametrize(
    ("noise", "scale"), [("laplace", 0.0), ("gaussian", 0.5), ("gaussian", math.inf), ("cauchy", 1)]
)
def test_settings_outside_their_domain_are_refused(noise, scale):
    with pytest.raises(ValueError, match="Expected"):
        NoisyHistogram(noise=noise, scale=scale, relation=ADD_REMOVE).event()
    with pytest.raises(ValueError, match="Expected"):
        NoisyHistogram(noise=noise, scale=scale, relation=ADD_REMOVE)
