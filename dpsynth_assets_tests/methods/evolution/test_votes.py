from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates
from dpsynth_assets.privacy import nearest
from dpsynth_assets.privacy.voting import NO_VOTE


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


def test_blocks_and_windows_leave_no_trace(monkeypatch):
    vectors, candidates = unit_rows(500, 16, 0), unit_rows(40, 16, 1)
    own, theirs = np.arange(500) % 3, np.arange(40) % 3
    whole = nearest_candidates(vectors, own, candidates, theirs)
    monkeypatch.setattr(nearest, "WINDOW_ROWS", 37)
    monkeypatch.setattr(nearest, "SCORES_AT_A_TIME", 50)
    monkeypatch.setattr(nearest, "_PAIRS_AT_A_TIME", 3)
    assert nearest_candidates(vectors, own, candidates, theirs).tolist() == whole.tolist()


def test_equal_candidates_give_their_votes_to_the_first():
    candidates = np.tile(unit_rows(1, 8, 0), (5, 1))
    found = nearest_candidates(unit_rows(30, 8, 1), np.zeros(30, int), candidates, np.zeros(5, int))
    assert found.tolist() == [0] * 30


def test_candidates_of_one_length_are_told_apart_and_signs_of_zero_are_not():
    candidates = np.zeros((4, 6), np.float32)
    candidates[0, 0], candidates[1, 0], candidates[2:, 1] = 1.0, -1.0, 1.0
    candidates[3, 2] = -0.0  # equal to the one before it, in other bytes
    vectors = np.repeat(candidates, 5, axis=0) + unit_rows(20, 6, 0) * np.float32(0.05)
    found = nearest_candidates(vectors, np.zeros(20, int), candidates, np.zeros(4, int))
    assert found.tolist() == [0] * 5 + [1] * 5 + [2] * 10


def test_what_float32_cannot_tell_apart_is_decided_exactly_and_alike_at_every_place():
    # Candidates a few units in the last place apart: a float32 product orders them by chance.
    base = unit_rows(1, 384, 0)[0]
    nudged = np.tile(base, (60, 1))
    rng = np.random.default_rng(1)
    for row in nudged:
        at = rng.integers(0, 384, 3)
        row[at] = np.nextafter(row[at], np.float32(1.0))
    vectors = np.tile(base, (97, 1)) + unit_rows(97, 384, 2) * np.float32(1e-3)
    labels, theirs = np.zeros(97, int), np.zeros(60, int)
    found = nearest_candidates(vectors, labels, nudged, theirs)
    assert found.tolist() == by_definition(vectors, labels, nudged, theirs).tolist()
    for start in (1, 5, 31, 96):  # a record that leaves moves no other record's vote
        part = nearest_candidates(vectors[start:], labels[start:], nudged, theirs)
        assert part.tolist() == found[start:].tolist()


def test_one_record_more_changes_the_histogram_by_one_vote():
    vectors, candidates = unit_rows(300, 24, 3), unit_rows(50, 24, 4)
    own, theirs = np.arange(300) % 4, np.arange(50) % 4
    votes_of = [
        np.bincount(nearest_candidates(vectors[:n], own[:n], candidates, theirs), minlength=50)
        for n in (299, 300)
    ]
    assert np.abs(votes_of[1] - votes_of[0]).sum() == 1


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_a_broken_embedding_moves_nobody_elses_vote(broken):
    vectors, candidates = unit_rows(40, 16, 5), unit_rows(9, 16, 6)
    labels, theirs = np.zeros(40, int), np.zeros(9, int)
    sound = nearest_candidates(vectors, labels, candidates, theirs)
    vectors[7] = broken
    with np.errstate(all="raise"):  # not even a warning tells
        found = nearest_candidates(vectors, labels, candidates, theirs)
    others = np.arange(40) != 7
    assert found[others].tolist() == sound[others].tolist()
    assert 0 <= found[7] < 9


def test_a_broken_embedding_does_not_hide_a_tie_beside_it():
    candidates = unit_rows(2, 8, 3)
    candidates[1] = np.nextafter(candidates[0], np.float32(2.0))
    tied = np.nextafter(candidates[1], np.float32(2.0))[None]  # Nearer to the second.
    vectors = np.concatenate([tied, np.full((1, 8), np.nan, np.float32)])
    zeros = np.zeros(2, dtype=int)
    alone = nearest_candidates(vectors[:1], zeros[:1], candidates, zeros)
    together = nearest_candidates(vectors, zeros, candidates, zeros)
    assert alone.tolist() == [1]
    assert together[0] == 1


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


def test_records_may_lie_in_a_file_whose_pages_are_given_back(tmp_path, monkeypatch):
    vectors, candidates = unit_rows(5_000, 32, 0), unit_rows(20, 32, 1)
    np.save(tmp_path / "records.npy", vectors)
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    labels, theirs = np.arange(5_000) % 2, np.arange(20) % 2
    monkeypatch.setattr(nearest, "WINDOW_ROWS", 1_000)
    found = nearest_candidates(mapped, labels, candidates, theirs)
    assert found.tolist() == nearest_candidates(vectors, labels, candidates, theirs).tolist()
    lines = Path("/proc/self/smaps").read_text().split("records.npy", 1)[1].splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    assert resident * 1024 < vectors.nbytes / 2


def test_progress_tells_shares_alone():
    told = []
    nearest_candidates(
        unit_rows(9, 4, 0), np.zeros(9, int), unit_rows(2, 4, 1), np.zeros(2, int),
        progress=told.append,
    )  # fmt: skip
    assert told == [1.0]


@pytest.mark.parametrize(
    ("vectors", "labels", "candidates", "theirs"),
    [
        (np.zeros((3, 4)), np.zeros(3), np.zeros((2, 5)), np.zeros(2)),
        (np.zeros((3, 4)), np.zeros(2), np.zeros((2, 4)), np.zeros(2)),
        (np.zeros((3, 4)), np.zeros(3), np.zeros((2, 4)), np.zeros(3)),
        (np.zeros(3), np.zeros(3), np.zeros((2, 4)), np.zeros(2)),
        (np.zeros((3, 4)), np.zeros(3), np.full((2, 4), np.nan), np.zeros(2)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(vectors, labels, candidates, theirs):
    with pytest.raises(ValueError, match="Expected"):
        nearest_candidates(vectors, labels, candidates, theirs)
