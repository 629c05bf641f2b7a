"""Exact white-box audit of the median mechanism: γ bounds every neighbour's likelihood ratio."""

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets_tests.privacy.oracles import median_oracle

BOUND, TEMPERATURE, VOCABULARY = 6.0, 1.5, 7
RELATIONS = [str(relation) for relation in NeighboringRelation]


def audit(rows, changes):
    """(log-probabilities, γ) of every token of one batch, (V,) each."""
    scores, gamma = median_oracle(rows, clip_bound=BOUND, temperature=TEMPERATURE, changes=changes)
    return scores - np.logaddexp.reduce(scores), gamma


def record(generator):
    kind = generator.random()
    if kind < 0.3:
        return np.where(generator.random(VOCABULARY) < 0.5, 50.0, -50.0)
    return generator.normal(0, 6 if kind < 0.6 else 2, VOCABULARY)


def neighbour(generator, rows, relation):
    if relation == "replace-one" and len(rows):
        changed = rows.copy()
        changed[generator.integers(len(rows))] = record(generator)
        return changed
    if relation != "replace-one" and len(rows) and generator.random() < 0.5:
        return np.delete(rows, generator.integers(len(rows)), axis=0)
    if relation == "add-remove":
        return np.vstack([rows, record(generator)[None]])
    return rows


def largest_excess(relation, size, gamma_of, trials=60):
    generator = np.random.default_rng(size)
    worst = -np.inf
    for _ in range(trials):
        rows = record(generator) + generator.normal(0, generator.random(), (size, VOCABULARY))
        log_p, _ = audit(rows, 1)
        gamma = gamma_of(rows)
        for _ in range(12):
            log_q, _ = audit(neighbour(generator, rows, relation), 1)
            worst = max(worst, float((np.abs(log_p - log_q) - gamma).max()))
    return worst


def mechanism(relation, records=1):
    return MedianTokenMechanism(
        clip_bound=BOUND,
        temperature=TEMPERATURE,
        relation=NeighboringRelation(relation),
        max_records_per_unit=records,
    )


@pytest.mark.parametrize("size", range(9))
@pytest.mark.parametrize("relation", RELATIONS)
def test_gamma_bounds_every_neighbour(relation, size):
    changes = mechanism(relation).changes
    assert largest_excess(relation, size, lambda rows: audit(rows, changes)[1]) <= 1e-9


@pytest.mark.parametrize("relation", RELATIONS)
def test_gamma_for_units_bounds_two_changes_at_once(relation):
    generator = np.random.default_rng(0)
    changes = mechanism(relation, records=2).changes
    for size in range(8):
        for _ in range(60):
            rows = record(generator) + generator.normal(0, 1, (size, VOCABULARY))
            log_p, gamma = audit(rows, changes)
            other = neighbour(generator, neighbour(generator, rows, relation), relation)
            assert (np.abs(log_p - audit(other, 1)[0]) <= gamma + 1e-9).all()


def test_gamma_of_unclipped_logits_is_caught():
    # Planted bug: γ evaluated before clipping; a removed outlier then costs more than it says.
    def unclipped(rows):
        return median_oracle(rows, clip_bound=0.5, temperature=TEMPERATURE, changes=1)[1]

    assert largest_excess("add-remove", 3, unclipped) > 0.1


def test_leaving_empty_batches_out_of_the_maximum_is_caught():
    # Planted bug: a neighbour with a record in the empty batch 1 exceeds the other batch's cost.
    tested = mechanism("add-remove")
    logits = torch.zeros(8, VOCABULARY)
    logits[:, 0] = 20.0
    batch_of_row = torch.zeros(8, dtype=torch.int64)
    _, gamma = tested.select(logits, batch_of_row, np.arange(2), PrivateTokenMeter(1, 2))
    log_p, _ = audit(np.empty((0, VOCABULARY)), 1)
    log_q, _ = audit(logits[:1].double().numpy(), 1)
    observed = np.abs(log_p - log_q).min()
    assert observed > tested.realised_epsilon(gamma[:1]) + 0.1
    assert np.abs(log_p - log_q).max() <= audit(np.empty((0, VOCABULARY)), 1)[1].max() + 1e-9
    assert gamma[1] >= observed
