"""Whole counts with integer Gaussian noise: their exact loss by a route that shares no code.

It sums over the integers, coordinate by coordinate.
"""

import itertools
import math

import numpy as np
import pytest

from dpsynth_assets.privacy.accounting import epsilon_of, gaussian_mu_of, privacy_profile
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.gaussian_dp import (
    SMOOTH_STD,
    dominating_mu,
    gaussian_delta,
    gaussian_epsilon,
    integer_gaussian_delta,
    integer_gaussian_epsilon,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.lattice import noise_for_gaussian
from dpsynth_assets_tests.pairs import pairwise

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
DELTAS = (1e-3, 1e-6, 1e-10)


def losses(noise_std, shifts):
    """Sorted losses and probabilities where bins move by `shifts`: one convolution a bin."""
    reach = math.ceil(14 * noise_std) + max(map(abs, shifts))
    values = np.arange(-reach, reach + 1)
    noise = np.exp(-(values**2) / (2.0 * noise_std**2))
    noise /= noise.sum()
    law, least = np.ones(1), 0
    for shift in shifts:
        spread = np.zeros(2 * reach * abs(shift) + 1)
        spread[:: abs(shift)] = noise
        law, least = np.convolve(law, spread), least - reach * abs(shift)
    inner = np.arange(len(law)) + least
    square = sum(shift**2 for shift in shifts)
    return (square + 2.0 * inner) / (2.0 * noise_std**2), law


def delta(noise_std, shifts, epsilon):
    loss, law = losses(noise_std, shifts)
    kept = loss > epsilon
    return float((law[kept] * -np.expm1(epsilon - loss[kept])).sum())


@pytest.mark.parametrize(
    ("noise_std", "rounds", "relation", "records"),
    pairwise([1.0, 1.3, 2.0, 3.7, 10.0], [1, 2, 5, 10], [ADD_REMOVE, REPLACE_ONE], [1, 2, 3]),
)
def test_the_charged_profile_is_the_sum_over_all_integers(noise_std, rounds, relation, records):
    event = NoisyHistogram(
        noise="gaussian", scale=noise_std, relation=relation, max_records_per_unit=records
    ).event()
    shifts = [records] * rounds * relation.records_changed
    for bound in DELTAS:
        epsilon = epsilon_of([event] * rounds, bound, "tight")
        assert delta(noise_std, shifts, epsilon) <= bound
        assert epsilon == 0 or delta(noise_std, shifts, epsilon * (1 - 1e-6) - 1e-9) > bound
    epsilons = [0.0, 0.1, 1.0, 3.0]
    charged = privacy_profile([event] * rounds, epsilons, "tight")
    exact = [delta(noise_std, shifts, epsilon) for epsilon in epsilons]
    assert charged == pytest.approx(exact, rel=1e-9, abs=1e-13)
    assert all(ours >= theirs for ours, theirs in zip(charged, exact, strict=True))


@pytest.mark.parametrize("noise_std", [1.0, 1.6, 4.0])
def test_no_way_to_spread_a_unit_s_records_is_easier_to_detect(noise_std):
    # All ways for 3 records to sit in at most 3 bins, leave them, or move between them.
    ways = [way for way in itertools.product(range(4), repeat=3) if 0 < sum(way) <= 3]
    moves = [tuple(np.subtract(a, b)) for a in [*ways, (0, 0, 0)] for b in [*ways, (0, 0, 0)]]
    for relation, spread in ((ADD_REMOVE, ways), (REPLACE_ONE, moves)):
        event = NoisyHistogram(
            noise="gaussian", scale=noise_std, relation=relation, max_records_per_unit=3
        ).event()
        distinct = {tuple(sorted(abs(int(s)) for s in way if s)) for way in spread}
        for shifts in distinct - {()}:
            for epsilon in np.linspace(0, 4, 23):
                exact = delta(noise_std, shifts, epsilon)
                assert exact <= integer_gaussian_delta(event, float(epsilon)) + 1e-15


@pytest.mark.parametrize(("shift", "count"), [(1, 1), (3, 1), (1, 2), (2, 20)])
@pytest.mark.parametrize("noise_std", [1.0, 1.5, 2.6, 10.0, 60.0])
def test_the_dominating_gaussian_dominates_and_hardly_more(noise_std, shift, count):
    event = DiscreteGaussianEvent(noise_std=noise_std, shift=shift, count=count)
    mu, ideal = dominating_mu(event), math.sqrt(2 * float(event.rho))
    for epsilon in np.linspace(0, ideal**2 / 2 + 8 * ideal, 60):
        exact = integer_gaussian_delta(event, float(epsilon))
        assert exact <= gaussian_delta(mu, float(epsilon)) * (1 + 1e-9)
    assert ideal < mu <= ideal * (1 + 0.05 / noise_std**2) + 1e-12


def test_large_noise_is_read_off_a_closed_form_that_joins_the_sum():
    below, above = (
        DiscreteGaussianEvent(noise_std=SMOOTH_STD * factor, shift=300)
        for factor in (0.9999999, 1.0)
    )
    assert dominating_mu(above) == pytest.approx(dominating_mu(below), rel=3e-6)
    for bound in DELTAS:
        exact = integer_gaussian_epsilon(above, bound)
        assert exact <= epsilon_of([above], bound, "tight") <= exact * (1 + 1e-5)


def test_a_hundred_thousand_rounds_and_huge_noise_are_priced():
    rounds = DiscreteGaussianEvent(noise_std=400.0, count=100_000)
    huge = DiscreteGaussianEvent(noise_std=1e9, shift=10**8)
    for event in (rounds, huge):
        mu = math.sqrt(2 * float(event.rho))
        continuous = gaussian_epsilon(mu, 1e-6)
        assert continuous <= epsilon_of([event], 1e-6, "tight") <= continuous * (1 + 1e-5)
    little = DiscreteGaussianEvent(noise_std=1.0, count=10_000)
    assert epsilon_of([little], 1e-6, "tight") <= epsilon_of([little], 1e-6, "zcdp")


@pytest.mark.parametrize(
    "other",
    [
        GaussianEvent(noise_multiplier=1.2),
        DiscreteGaussianEvent(noise_std=1.7, count=2),
        PureEvent(epsilon=0.3, count=4),
        BoundedRangeEvent(eta=0.1, count=50),
    ],
)
def test_beside_another_release_counts_keep_their_own_loss(other):
    event = DiscreteGaussianEvent(noise_std=1.5)
    both = epsilon_of([event, other], 1e-6, "tight")
    assert both > epsilon_of([event], 1e-6, "tight")
    assert both > epsilon_of([other], 1e-6, "tight")
    # Never below continuous noise by more than rounding, and below the dominating Gaussian.
    most = GaussianEvent(noise_multiplier=1 / dominating_mu(event))
    assert both <= epsilon_of([most, other], 1e-6, "tight") * (1 + 1e-9)


def test_two_kinds_of_counts_compose_to_the_convolution_of_their_losses():
    first, second = losses(1.5, [1]), losses(2.0, [1, 1])
    loss = np.add.outer(first[0], second[0]).ravel()
    law = np.multiply.outer(first[1], second[1]).ravel()
    events = [DiscreteGaussianEvent(noise_std=1.5), DiscreteGaussianEvent(noise_std=2.0, count=2)]
    for bound in (1e-3, 1e-6, 1e-9):
        epsilon = epsilon_of(events, bound, "tight")
        for factor, fits in ((1, True), (1 - 1e-4, False)):
            kept = loss > epsilon * factor
            exact = float((law[kept] * -np.expm1(epsilon * factor - loss[kept])).sum())
            assert (exact <= bound) is fits
    mu = gaussian_mu_of(events)
    assert mu is not None
    assert epsilon_of(events, 1e-6, "tight") < gaussian_epsilon(mu, 1e-6)


@pytest.mark.parametrize(("steps", "shifts"), [(1.0, (1,)), (2.0, (1, 1)), (5.0, (3, 2, 1))])
def test_vectors_on_a_lattice_cost_no_more_than_the_gaussian_that_is_charged(steps, shifts):
    mu = math.hypot(*shifts) / steps
    noise_std = noise_for_gaussian(steps)
    for epsilon in np.linspace(0, mu**2 / 2 + 5 * mu, 40):
        exact = delta(noise_std, shifts, float(epsilon))
        assert exact <= gaussian_delta(mu, float(epsilon)) * (1 + 1e-9)


@pytest.mark.parametrize("fields", [{"noise_std": 0}, {"shift": 0}, {"count": -1}, {"shift": 1.5}])
def test_settings_outside_their_domain_are_refused(fields):
    with pytest.raises(ValueError, match="Expected"):
        DiscreteGaussianEvent(**{"noise_std": 2.0, **fields})
