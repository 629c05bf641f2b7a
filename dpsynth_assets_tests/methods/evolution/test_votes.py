import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.methods.evolution.population import (
    NO_PARENT,
    chosen,
    random_population,
    select,
    vote_entropy,
    with_variations,
)
from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates
from dpsynth_assets.privacy.histogram import NO_VOTE


def unit_rows(count, dimension, seed):
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(vectors, vector_labels, candidates, candidate_labels):
    """Compares every pair in float64; the first of equally near candidates wins."""
    x, c = vectors.astype(np.float64), candidates.astype(np.float64)
    distances = (x**2).sum(1)[:, None] + (c**2).sum(1) - 2 * x @ c.T
    distances[vector_labels[:, None] != candidate_labels] = np.inf
    choices = distances.argmin(axis=1)
    return np.where(np.isfinite(distances.min(axis=1)), choices, NO_VOTE)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 25), st.integers(1, 4))
def test_every_record_votes_for_the_nearest_candidate_of_its_label(seed, records, size, labels):
    rng = np.random.default_rng(seed)
    vectors, candidates = unit_rows(records, 12, seed), unit_rows(size, 12, seed + 1)
    candidates *= rng.uniform(0.3, 1.0, (size, 1)).astype(np.float32)  # means of variations
    own, theirs = rng.integers(0, labels, records), rng.integers(0, labels, size)
    found = nearest_candidates(vectors, own, candidates, theirs)
    assert found.tolist() == by_definition(vectors, own, candidates, theirs).tolist()


def test_records_in_the_order_of_their_labels_vote_as_before(tmp_path):
    vectors, candidates = unit_rows(200, 12, 5), unit_rows(30, 12, 6)
    own, theirs = np.arange(200) % 5 - 1, np.arange(30) % 3
    moved = VotingRecords.in_label_order(vectors, own)
    assert (np.diff(moved.labels) >= 0).all()

    def votes(vectors, labels, norms=None):
        choices = nearest_candidates(vectors, labels, candidates, theirs, norms=norms)
        return np.bincount(choices + 1).tolist()

    assert votes(moved.vectors, moved.labels, moved.norms) == votes(vectors, own)
    np.save(tmp_path / "records.npy", vectors)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    kept = VotingRecords.in_label_order(mapped, own)
    assert (kept.vectors is mapped, kept.norms) == (True, None)


def test_labels_without_candidates_give_no_vote():
    found = nearest_candidates(
        unit_rows(4, 6, 0), np.array([0, 1, -1, 0]), unit_rows(2, 6, 1), np.array([0, 2])
    )
    assert found.tolist() == [0, NO_VOTE, NO_VOTE, 0]
    assert nearest_candidates(
        np.empty((0, 6), np.float32), np.empty(0, int), unit_rows(2, 6, 1), np.zeros(2, int)
    ).shape == (0,)


def test_variations_know_their_parents_and_their_round():
    first = random_population(("a", "b", "c"), np.array([0, 1, 1]))
    assert first["parent"].to_list() == [NO_PARENT] * 3
    grown = with_variations(chosen(first, np.array([2, 0])), ("c1", "a1"), np.array([0, 1]), 4)
    assert grown["text"].to_list() == ["c", "a", "c1", "a1"]
    assert grown["label"].to_list() == [1, 0, 1, 0]
    assert grown["parent"].to_list() == [0, 1, 0, 1]
    assert grown["born"].to_list() == [0, 0, 4, 4]


LABELS = np.array([0, 1, 0, 1, 0])


def test_the_best_of_each_label_survive_and_the_earlier_of_equals():
    votes = np.array([2, -5, 7, -1, 7])  # Negative noisy votes are no error.
    assert select(votes, LABELS, np.array([2, 1])).tolist() == [2, 4, 3]
    assert select(np.zeros(5), LABELS, np.array([9, 1])).tolist() == [0, 2, 4, 1]


@pytest.mark.parametrize(
    ("votes", "bits"), [([4, 4, 4, 4], 2.0), ([9, -2, 0], 0.0), ([-1, -1], 0.0), ([], 0.0)]
)
def test_entropy_counts_positive_votes(votes, bits):
    assert vote_entropy(np.array(votes)) == pytest.approx(bits)
