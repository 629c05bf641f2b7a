"""Exact audits of secret clustering: how far records move the lattice statistics.

Attacks on releases are the audit `secret-clustering`.
"""

import numpy as np
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling, shift_event
from dpsynth_assets.privacy.secret_protection import posterior_of_events


def small_clustering(centres, l2_bound=1.0):
    return SecretClustering(
        public_centres=centres,
        public_counts=np.full(len(centres), 3),
        l2_bound=l2_bound,
        sampling=SecretSampling.capped(probability=1.0, max_occurrences=1),
        noise_std=1.0,
    )


def one_record(mechanism):
    """B: lattice steps of one record."""
    return int(mechanism._statistics.of(np.zeros((1, 2)))[:, 0].sum())


def squared_move(mechanism, before, after):
    change = mechanism._statistics.of(before) - mechanism._statistics.of(after)
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
