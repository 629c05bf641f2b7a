"""Laws of the median audit: gaps equal brute force, γ bounds them all, planted bugs exceed it."""

import itertools

import numpy as np
import pytest
import torch

from dpsynth_assets.attacks import median_audit
from dpsynth_assets.attacks.median_audit import (
    MedianAudit,
    WatchedMedian,
    neighbour_sets,
    token_gaps,
)
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.privacy.oracles import median_oracle

BOUND, TEMPERATURE, VOCABULARY = 4.0, 1.3, 7
REPLACE_ONE, ADD_REMOVE = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_REMOVE
RELATIONS = list(NeighboringRelation)
COMING = (ADD_REMOVE, NeighboringRelation.ZERO_OUT)


def mechanism(relation=ADD_REMOVE, kind=MedianTokenMechanism, **more):
    return kind(clip_bound=BOUND, temperature=TEMPERATURE, relation=relation, **more)


def batches(size, count=20):
    """Logits with many ties in half of the batches."""
    generator = np.random.default_rng(size)
    for index in range(count):
        yield generator.normal(0, 3, (size, VOCABULARY)).round(index % 2 * 12)


def log_probabilities(clipped):
    edges = np.full((1, VOCABULARY), BOUND)
    scores = np.median(np.vstack([-edges, clipped, edges]), axis=0) / TEMPERATURE
    return scores - np.logaddexp.reduce(scores)


def brute_force(rows, token, relation, sets, added):
    """Every neighbour sorted anew: gaps without each set of rows, and with crafted rows."""
    clipped = clip_logits(rows, BOUND)
    up = np.full(VOCABULARY, -BOUND)
    up[token] = BOUND
    removed = [np.delete(clipped, chosen, axis=0) for chosen in sets]
    bases = removed if relation is REPLACE_ONE else [clipped]
    joined = len(sets[0]) if relation is REPLACE_ONE else added
    crafted = [np.vstack([base, *[extreme] * joined]) for extreme in (up, -up) for base in bases]
    own = log_probabilities(clipped)[token]

    def gaps(neighbours):
        return [own - log_probabilities(other)[token] for other in neighbours]

    return gaps(removed), gaps(crafted)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("relation", RELATIONS)
def test_gaps_equal_those_of_neighbours_sorted_anew(relation, size, most):
    sets = neighbour_sets(size, most)
    for rows in batches(size, 4):
        for token in (0, VOCABULARY - 1):
            found = token_gaps(rows, token, mechanism(relation, max_records_per_unit=most))
            expected = [brute_force(rows, token, relation, chosen, most) for chosen in sets]
            removed, crafted = (np.concatenate(part) for part in zip(*expected, strict=True))
            np.testing.assert_allclose(found.removed, removed, atol=1e-12)
            np.testing.assert_allclose(found.crafted, crafted, atol=1e-12)


def test_sets_of_a_unit_are_all_there_are_or_a_sample_that_is_always_the_same():
    single, pairs = neighbour_sets(6, 2)
    assert single.tolist() == [[row] for row in range(6)]
    assert {tuple(pair) for pair in pairs} == set(itertools.combinations(range(6), 2))
    assert [chosen.shape for chosen in neighbour_sets(40, 1, audited=9)] == [(9, 1)]
    _, sampled = neighbour_sets(100, 20)
    assert sampled.shape == (median_audit.FEWEST_SETS, 20)
    assert all(len(set(chosen)) == 20 for chosen in sampled.tolist())
    np.testing.assert_array_equal(sampled, neighbour_sets(100, 20)[1])
    assert neighbour_sets(3, 20)[1].tolist() == [[0, 1, 2]]  # a batch holds no more


@pytest.mark.parametrize("relation", RELATIONS)
def test_blocks_of_columns_do_not_change_the_gaps(relation, monkeypatch):
    rows = next(batches(6))
    whole = token_gaps(rows, 3, mechanism(relation))
    monkeypatch.setattr(median_audit, "BLOCK_ENTRIES", 12)
    for one, other in zip(whole, token_gaps(rows, 3, mechanism(relation)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


# Audits of draws


def audited(relation, gamma_of=None, size=6, rounds=40, most=1):
    """Audits draws of one batch; `gamma_of` replaces the γ that the mechanism reports."""
    tested = mechanism(relation, max_records_per_unit=most)
    audit = MedianAudit(tested)
    meter = PrivateTokenMeter(rounds, 1)

    def watch(batch, rows, token, gamma):
        audit.observe(batch, rows, token, gamma if gamma_of is None else gamma_of(rows, token))

    watched = mechanism(relation, WatchedMedian, max_records_per_unit=most, watch=watch)
    for rows in batches(size, rounds):
        batch_of_row = torch.zeros(size, dtype=torch.int64)
        watched.select(NextLogits(torch.as_tensor(rows), batch_of_row, np.array([0])), meter)
    return audit


@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 5, 6])
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_real_mechanism_passes(relation, size, most):
    audit = audited(relation, size=size, most=most)
    assert audit.finding().passed
    (batch,) = audit.batches
    assert (batch.contexts, batch.tokens) == (size, 40)
    assert 0 < batch.removed <= batch.crafted + 1e-9 <= batch.claimed + 2e-9
    assert 0 < batch.attained < 1
    assert batch.excess <= 1e-9


def gamma_of_changes(changes):
    def gamma_of(rows, token):
        gamma = median_oracle(rows, clip_bound=BOUND, temperature=TEMPERATURE, changes=changes)[1]
        return float(gamma[token])

    return gamma_of


def own_gap(rows, token):
    """Planted bug: only the drawn token's own median gap is charged, not that of all others."""
    column = np.sort(clip_logits(rows, BOUND)[:, token]) / TEMPERATURE
    middle = len(column) // 2
    return float((column[middle] - column[middle - 1]) / 2)


@pytest.mark.parametrize(
    ("relation", "gamma_of", "most", "passes"),
    [
        (ADD_REMOVE, own_gap, 1, False),
        # Each context alone is covered, two of one person's at once are not.
        *((relation, gamma_of_changes(1), 1, True) for relation in COMING),
        *((relation, gamma_of_changes(1), 2, False) for relation in COMING),
        *((relation, gamma_of_changes(2), 2, True) for relation in COMING),
        (REPLACE_ONE, gamma_of_changes(1), 1, False),
        (REPLACE_ONE, gamma_of_changes(2), 1, True),
        (REPLACE_ONE, gamma_of_changes(2), 2, False),
    ],
)
def test_a_gamma_that_covers_too_little_is_refuted(relation, gamma_of, most, passes):
    assert audited(relation, gamma_of, most=most).finding().passed is passes


def test_whole_draws_add_up_before_the_largest_context_is_taken():
    tested = mechanism()
    audit = MedianAudit(tested)
    rows = [np.eye(3, VOCABULARY) * 9, np.roll(np.eye(3, VOCABULARY) * 9, 1, axis=0)]
    sums = np.zeros(3)
    for logits in rows:
        audit.observe(4, logits, 0, 50.0)
        sums += token_gaps(logits, 0, tested).removed
    (batch,) = audit.batches
    assert batch.batch == 4
    assert batch.removed == pytest.approx(np.abs(sums).max())
    assert batch.claimed == 100.0


def test_a_batch_without_contexts_has_none_to_remove():
    audit = MedianAudit(mechanism())
    audit.observe(0, np.empty((0, VOCABULARY)), 1, 0.5)
    assert audit.batches == ()
    assert audit.finding().passed


def test_watching_does_not_change_what_the_mechanism_reports():
    rows = torch.zeros(6, VOCABULARY)
    rows[:, 2] = 60.0  # one token only: the draw is the same every time
    seen = []
    watched = mechanism(kind=WatchedMedian, watch=lambda *draw: seen.append(draw))
    logits = NextLogits(rows[:, 2:3], torch.tensor([1, 1, 1, 0, 0, 0]), np.array([0, 1]))
    drawn = [tested.select(logits, PrivateTokenMeter(1, 2)) for tested in (mechanism(), watched)]
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [(batch, len(logits), token) for batch, logits, token, _ in seen] == [
        (0, 3, 0),
        (1, 3, 0),
    ]


def test_logits_do_not_stand_in_a_repr():
    assert "9.25" not in repr(audited(ADD_REMOVE, lambda rows, token: 9.25))
