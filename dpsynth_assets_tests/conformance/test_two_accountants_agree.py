"""Independent routes to one number bracket each other, for every kind of event.

Routes: quadrature of the hockey-stick divergence of the very pair (one step), the exact Gaussian,
loss distributions (ours and the library's), zCDP, and for token draws the optimal adaptive
composition with an explicit adversary. An upper bound below a lower one, or two exact ones apart,
is an error in one of them. Rényi divergences: `privacy/test_renyi.py`.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsynth_assets.privacy.accounting import composed_pld, epsilon_of, privacy_profile
from dpsynth_assets.privacy.bounded_range import bounded_range_epsilon
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.gaussian_dp import compose_mu, gaussian_epsilon
from dpsynth_assets.privacy.pld import event_pld, pld_epsilon

EPSILONS = [0.0, 0.05, 0.2, 0.5, 1.0, 2.0]
DELTA = 1e-6


def sampled(**changes):
    fields = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 1}
    return PoissonGaussianEvent(**{**fields, **changes})


def mixture(shifts, chances, sigma, points):
    density = np.zeros_like(points)
    for shift, chance in zip(shifts, chances, strict=True):
        density += chance * norm.pdf(points, shift, sigma)
    return density


def hockey_sticks(upper, lower, area):
    """The larger of both directions at each of EPSILONS, by the midpoint rule."""
    pairs = [(upper, lower), (lower, upper)]
    return [
        max(np.maximum(p - math.exp(epsilon) * q, 0).sum() * area for p, q in pairs)
        for epsilon in EPSILONS
    ]


# One step each: event, (shifts, chances) of the two mixtures, noise.
PAIRS = {
    "sampled": (sampled(), ([0, 1], [0.9, 0.1]), ([0], [1.0]), 1.0),
    "rarely sampled": (
        sampled(sampling_probability=0.003, noise_multiplier=0.6),
        ([0, 1], [0.997, 0.003]),
        ([0], [1.0]),
        0.6,
    ),
    "three records a unit": (
        sampled(max_records_per_unit=3, noise_multiplier=2.0),
        ([0, 1, 2, 3], binom.pmf(range(4), 3, 0.1)),
        ([0], [1.0]),
        2.0,
    ),
    "replaced": (
        sampled(replaced=True),
        ([0, 1], [0.9, 0.1]),
        ([0, -1], [0.9, 0.1]),
        1.0,
    ),
    "whole": (sampled(sampling_probability=1.0), ([1], [1.0]), ([0], [1.0]), 1.0),
    "gaussian": (GaussianEvent(noise_multiplier=1.5), ([1], [1.0]), ([0], [1.0]), 1.5),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_step_is_the_quadrature_of_its_pair(name):
    event, first, second, sigma = PAIRS[name]
    points = np.linspace(-9 * sigma - 3, 9 * sigma + 3, 400_001)
    exact = hockey_sticks(
        mixture(*first, sigma, points), mixture(*second, sigma, points), points[1] - points[0]
    )
    for bound, area in zip(privacy_profile([event], EPSILONS, "tight"), exact, strict=True):
        assert area * (1 - 1e-7) <= bound + 1e-12
        assert bound <= area * (1 + 1e-5) + 1e-9


@pytest.mark.parametrize("records", [2, 4])
def test_replaced_units_of_several_records_cost_no_less_than_their_worst_pair(records):
    # All records of the unit equal, all of the other one opposite: binomial shifts both ways.
    chances = binom.pmf(range(records + 1), records, 0.1)
    shifts = np.arange(records + 1)
    points = np.linspace(-30, 30, 200_001)
    first, second = (mixture(sign * shifts, chances, 2.0, points) for sign in (1, -1))
    exact = hockey_sticks(first, second, points[1] - points[0])
    event = sampled(replaced=True, noise_multiplier=2.0, max_records_per_unit=records)
    bounds = privacy_profile([event], EPSILONS, "tight")
    assert all(area <= bound + 1e-9 for area, bound in zip(exact, bounds, strict=True))


GRID = np.linspace(-8, 9, 851)
PLANE = np.meshgrid(GRID, GRID)


def density(a, b):
    """Noise of σ = 1 in the plane, around one place."""
    x, y = PLANE
    return np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) / (2 * math.pi)


def assert_costs_at_least(event, first, second):
    exact = hockey_sticks(first, second, (GRID[1] - GRID[0]) ** 2)
    bounds = privacy_profile([event], EPSILONS, "tight")
    assert all(area <= bound + 1e-5 for area, bound in zip(exact, bounds, strict=True))


@pytest.mark.parametrize("length", [0.5, 1.0])
@pytest.mark.parametrize("angle", [0.0, 1.0, math.pi / 2, 2.5])
def test_records_that_are_not_opposite_cost_no_more_when_replaced(angle, length):
    first, second = (
        0.9 * density(0, 0) + 0.1 * density(*place)
        for place in ((1, 0), (length * math.cos(angle), length * math.sin(angle)))
    )
    assert_costs_at_least(sampled(replaced=True), first, second)


@pytest.mark.parametrize("angle", [0.7, math.pi / 2, math.pi])
def test_records_that_are_not_equal_cost_no_more_in_one_unit(angle):
    c, s = math.cos(angle), math.sin(angle)
    unit = 0.81 * density(0, 0) + 0.09 * (density(1, 0) + density(c, s)) + 0.01 * density(1 + c, s)
    assert_costs_at_least(sampled(max_records_per_unit=2), unit, density(0, 0))


@pytest.mark.parametrize("event", [PureEvent(epsilon=0.7), DiscreteLaplaceEvent(scale=1 / 0.7)])
def test_one_pure_release_is_its_two_point_pair(event):
    odds = math.exp(0.7)
    exact = [max(0.0, (odds - math.exp(epsilon)) / (1 + odds)) for epsilon in EPSILONS]
    bounds = privacy_profile([event], EPSILONS, "tight")
    assert bounds == pytest.approx(exact, rel=1e-6, abs=2e-13)
    assert all(area <= bound + 1e-15 for area, bound in zip(exact, bounds, strict=True))


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (8.0, 10), (60.0, 1000)])
def test_the_loss_distribution_of_a_gaussian_is_just_above_the_exact_one(sigma, count):
    exact = gaussian_epsilon(compose_mu([1 / sigma] * count), DELTA)
    # Two kinds of plan for the same releases: one wide Gaussian, or as many sampled whole.
    pld = event_pld(GaussianEvent(noise_multiplier=sigma / math.sqrt(count)), DELTA)
    steps = event_pld(sampled(sampling_probability=1.0, noise_multiplier=sigma, steps=count), DELTA)
    for reading in (pld_epsilon(pld, DELTA), pld_epsilon(steps, DELTA)):
        assert exact <= reading <= exact * (1 + 1e-4)


@pytest.mark.parametrize(("eta", "count"), [(0.1875, 50), (0.5, 20), (1.5, 4)])
def test_token_draws_lie_between_an_adversary_and_zcdp(eta, count):
    event = BoundedRangeEvent(eta=eta, count=count)
    adversary = bounded_range_epsilon(eta, count, DELTA, upper=False)
    optimal = epsilon_of([event], DELTA, "tight")
    assert adversary <= optimal <= epsilon_of([event], DELTA, "zcdp")
    assert optimal <= count * eta
    as_pld = pld_epsilon(composed_pld([event], DELTA), DELTA)
    assert adversary <= as_pld <= optimal * (1 + 1e-9)


def test_a_unit_of_several_records_is_group_privacy():
    # k records always drawn together: μ becomes kμ; a Gaussian of a k-th of the noise.
    group = sampled(sampling_probability=1.0, noise_multiplier=6.0, max_records_per_unit=3)
    single = GaussianEvent(noise_multiplier=2.0)
    for accountant in ("zcdp", "tight"):
        assert epsilon_of([group], DELTA, accountant) == pytest.approx(
            epsilon_of([single], DELTA, accountant), rel=1e-9
        )
