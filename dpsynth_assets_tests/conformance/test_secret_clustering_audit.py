"""Audits of secret clustering: exact moves of the lattice statistics, and attacks on releases.

Exact parts compare integers. In the statistical ones every second cluster holds the one record of
a secret of its own, so that one release is thousands of independent trials. False alarm: at most
1e-6 for each audit if the claim holds.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.attacks.audits.statistics import audit_event_counts
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import secret_noise_std, shift_event
from dpsynth_assets.privacy.secret_protection import gaussian_budget, posterior_of_events
from dpsynth_assets.privacy.secret_sampling import SecretSampling
from dpsynth_assets.privacy.units import NeighboringRelation

PRIOR, POSTERIOR = 1e-2, 0.1
CLUSTERS, PUBLIC = 5_000, 4
ANGLES = np.linspace(0, 2 * np.pi, CLUSTERS, endpoint=False)
DIRECTIONS = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])


# ------------------------------------------------------------------------- exact: sensitivity


def small_clustering(centres, l2_bound=1.0):
    return SecretClustering(
        public_centres=centres,
        public_counts=np.full(len(centres), 3),
        l2_bound=l2_bound,
        sampling=SecretSampling.capped(probability=1.0, max_occurrences=1),
        noise_std=1.0,
        iterations=1,
    )


def one_record(mechanism):
    """B: lattice steps of one record."""
    return int(mechanism.private_statistics(np.zeros((1, 2)))[:, 0].sum())


def squared_move(mechanism, before, after):
    change = mechanism.private_statistics(before) - mechanism.private_statistics(after)
    return sum(int(step) ** 2 for step in change.reshape(-1))


point = st.tuples(st.floats(-3, 3), st.floats(-3, 3))
points = st.lists(point, min_size=1, max_size=4).map(np.array)


@settings(max_examples=150, deadline=None)
@given(points, points, points, st.floats(0.01, 100))
def test_removed_records_move_the_statistics_by_at_most_root_two_each(
    centres, others, secret, l2_bound
):
    mechanism = small_clustering(l2_bound * centres, l2_bound)
    everyone = l2_bound * np.vstack([others, secret])
    moved = squared_move(mechanism, everyone, l2_bound * others)
    assert moved <= 2 * (len(secret) * one_record(mechanism)) ** 2


@settings(max_examples=150, deadline=None)
@given(points, points, st.lists(st.tuples(point, point), min_size=1, max_size=4))
def test_replaced_records_move_the_statistics_by_at_most_two_each(centres, others, pairs):
    secret, instead = (np.array(side) for side in zip(*pairs, strict=True))
    mechanism = small_clustering(centres)
    moved = squared_move(mechanism, np.vstack([others, secret]), np.vstack([others, instead]))
    assert moved <= 4 * (len(secret) * one_record(mechanism)) ** 2


def test_both_bounds_are_attained():
    mechanism = small_clustering(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    right, left, nobody = np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]]), np.zeros((0, 2))
    unit = one_record(mechanism)
    assert squared_move(mechanism, right, nobody) == 2 * unit**2
    assert squared_move(mechanism, right, left) == 4 * unit**2


def published_statistics(centres, counts, private):
    """Algorithm 2 as printed: line 9 compares the sums that lines 5 and 10 overwrite."""
    sums, members = counts[:, None] * centres, np.zeros(len(centres))
    for record in private:
        nearest = np.argmin(np.linalg.norm(sums - record, axis=1))
        sums[nearest] += record
        members[nearest] += 1
    return np.column_stack([members, sums - counts[:, None] * centres])


def test_assignment_to_updated_centres_lets_one_record_move_many():
    # Planted bug: the secret's record, read first, drags its cluster away from forty records in
    # the middle, which all go to the other one.
    centres, counts = np.array([[0.1, 0.0], [-0.2, 0.0]]), np.ones(2)
    secret, others = np.array([[1.0, 0.0]]), np.zeros((40, 2))
    everyone = np.vstack([secret, others])
    with_secret = published_statistics(centres, counts, everyone)
    without = published_statistics(centres, counts, others)
    assert np.linalg.norm(with_secret - without) > 35 * math.sqrt(2)
    mechanism = small_clustering(centres)
    assert squared_move(mechanism, everyone, others) <= 2 * one_record(mechanism) ** 2


def test_public_centres_refitted_to_the_records_left_over_break_every_bound():
    # Planted bug: a record without its secret joins the public data, whose centre has no noise.
    public = np.array([[0.5, 0.0], [0.7, 0.0]])
    freed = np.vstack([public, [[0.0, 1.0]]])
    quiet = [small_clustering(data.mean(axis=0)[None]).event for data in (public, freed)]
    assert quiet[0] == quiet[1]  # the charge sees nothing
    assert not np.allclose(public.mean(axis=0), freed.mean(axis=0))


# --------------------------------------------------------------------- statistical: releases


def clustering(noise_std, probability=0.5):
    return SecretClustering(
        public_centres=DIRECTIONS,
        public_counts=np.full(CLUSTERS, PUBLIC),
        l2_bound=1.0,
        sampling=SecretSampling.capped(probability=probability, max_occurrences=1),
        noise_std=noise_std,
        iterations=1,
    )


def calibrated(probability=0.5):
    return secret_noise_std(
        count_probabilities=np.array([1 - probability, probability]),
        prior=PRIOR,
        posterior=POSTERIOR,
        steps=1,
        noise_floor=0.1,
    )


def refutes(event, noise_std, *, probability=0.5, copies=1, alarm_rate=0.1):
    """Adds count and sum along each centre, and cuts where noise alone would at `alarm_rate`."""
    private = np.repeat(DIRECTIONS[::2], copies, axis=0)
    clusters = clustering(noise_std, probability).release(private).value
    dp_counts = clusters.counts - PUBLIC
    weight = PUBLIC + np.maximum(dp_counts, 0.0)
    dp_sums = (clusters.centres * DIRECTIONS).sum(axis=1) * weight - PUBLIC
    found = dp_counts + dp_sums >= stats.norm.isf(alarm_rate) * noise_std * math.sqrt(2)

    def curve(rates):
        return np.array([posterior_of_events([event], rate) for rate in rates])

    hits, alarms = int(found[::2].sum()), int(found[1::2].sum())
    return audit_event_counts(hits, alarms, CLUSTERS // 2, curve).refuted


@pytest.mark.statistical
@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_a_release_reveals_no_more_than_its_event_says(probability):
    noise_std = calibrated(probability)
    event = clustering(noise_std, probability).event
    assert posterior_of_events([event], PRIOR) <= POSTERIOR
    assert not refutes(event, noise_std, probability=probability)


@pytest.mark.statistical
def test_a_secret_in_three_records_charged_as_one_is_caught():
    noise_std = calibrated()
    assert refutes(clustering(noise_std).event, noise_std, copies=3)
    several = SecretSampling.capped(probability=0.5, max_occurrences=3).count_probabilities
    honest = shift_event(count_probabilities=several, noise_std=noise_std, steps=1)
    assert not refutes(honest, noise_std, copies=3)


@pytest.mark.statistical
def test_a_single_gaussian_at_the_mean_shift_is_caught():
    # Planted bug, as in the paper's experiments: a record that is sampled with probability 0.2
    # and then moves the release by √2 is taken for one that moves it by 0.2 √2.
    mean = 0.2 * math.sqrt(2)
    noise_std = mean / gaussian_budget(PRIOR, POSTERIOR)
    single = MixtureGaussianEvent(noise_std=noise_std, shifts=(mean,), probabilities=(1,))
    assert posterior_of_events([single], PRIOR) <= POSTERIOR
    assert refutes(single, noise_std, probability=0.2, alarm_rate=1e-4)
    honest = clustering(noise_std, 0.2).event
    assert posterior_of_events([honest], PRIOR) > 1.8 * POSTERIOR
    assert not refutes(honest, noise_std, probability=0.2, alarm_rate=1e-4)


def test_a_mixture_against_noise_alone_is_caught_where_records_are_replaced():
    # Planted bug: factor 2 with the sampled mixture. A record of either content is sampled with
    # probability 0.1 and moves the release by +1 or −1 along the line between both: exactly
    # (1 − q) N(0) + q N(1) against (1 − q) N(0) + q N(−1).
    q, noise_std = 0.1, 0.1
    law = np.array([1 - q, q])
    sampled = MixtureGaussianEvent(noise_std=noise_std, shifts=(0, 2), probabilities=tuple(law))
    honest = shift_event(
        count_probabilities=law,
        noise_std=noise_std,
        steps=1,
        relation=NeighboringRelation.REPLACE_ONE,
    )
    for cut in (0.3, 0.2, -0.3):
        present, absent = (
            (1 - q) * stats.norm.sf(cut / noise_std) + q * stats.norm.sf((cut - at) / noise_std)
            for at in (1, -1)
        )
        assert present <= posterior_of_events([honest], absent)
        assert present > posterior_of_events([sampled], absent) * (1 + 1e-5)
