"""Laws and one-run audits of the joint vector mean, with planted bugs.

Canary i is the clip bound along coordinate i of every block. Noise is independent between
coordinates, so one release holds hundreds of independent trials: canaries that took part against
coordinates of canaries that did not. False alarm: at most 1e-6 for each audit.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import VectorMean, stacked_l2_sensitivity, vector_mean_event

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
BOUNDS = np.array([2.0, 2.0, 2.0, 2.0])
CANARIES = 1_000
PUBLIC = {"l2_bounds": BOUNDS, "records": CANARIES}


def canaries(first, sign=1.0, size=10.0):
    """Batches of (100, L, 2 · CANARIES) vectors beyond the bounds, one coordinate each."""
    for start in range(first, first + CANARIES, 100):
        vectors = np.zeros((100, len(BOUNDS), 2 * CANARIES))
        vectors[np.arange(100), :, start + np.arange(100)] = sign * size
        yield vectors


def scores(noise_std, batches, l2_bounds=BOUNDS):
    """(CANARIES,) correlations of the means with canaries that took part, and that did not."""
    mean = VectorMean(
        l2_bounds=l2_bounds,
        dimensions=2 * CANARIES,
        noise_std=noise_std,
        records=CANARIES,
        relation=ADD_REMOVE,
    )
    for batch in batches:
        mean.add(batch)
    projected = BOUNDS @ mean.release().value
    return projected[:CANARIES], projected[CANARIES:]


def noise_for(multiplier, relation=ADD_REMOVE):
    return multiplier * stacked_l2_sensitivity(relation=relation, **PUBLIC)


def claim(noise_std, relation=ADD_REMOVE):
    return event_curve([vector_mean_event(noise_std=noise_std, relation=relation, **PUBLIC)])


def replaced():
    """Each canary's neighbour points the opposite way: half of them do."""
    yield from canaries(0)
    yield from canaries(CANARIES, sign=-1.0)


@pytest.mark.statistical
def test_the_claim_holds_over_all_blocks_together():
    noise = noise_for(0.5)
    assert not audit_scores(*scores(noise, canaries(0)), claim(noise)).refuted


@pytest.mark.statistical
def test_replacements_stay_within_the_replace_one_claim():
    noise = noise_for(0.5, REPLACE_ONE)
    assert not audit_scores(*scores(noise, replaced()), claim(noise, REPLACE_ONE)).refuted


@pytest.mark.statistical
def test_unclipped_vectors_are_caught():
    # Planted bug: clip bounds twice as large as the accounted ones.
    noise = noise_for(0.5)
    assert audit_scores(*scores(noise, canaries(0), 2 * BOUNDS), claim(noise)).refuted


def private_sum(vectors, bounds):
    mean = VectorMean(
        l2_bounds=bounds,
        dimensions=vectors.shape[2],
        noise_std=float(max(bounds)),
        records=10,
        relation=ADD_REMOVE,
    )
    mean.add(vectors)
    return mean._private_total[:-1].reshape(vectors.shape[1:]), mean._lattice


def exact_norm_squared(steps):
    return sum(int(step) ** 2 for step in steps.reshape(-1))


FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(FLOATS, min_size=12, max_size=12),
    st.lists(st.floats(0.01, 100.0), min_size=2, max_size=2),
    st.sampled_from(list(NeighboringRelation)),
)
def test_integer_sums_of_neighbours_never_differ_by_more_than_was_charged(
    seed, floats, bounds, relation
):
    rest = np.random.default_rng(seed).standard_cauchy((4, 2, 3))
    pair = np.array(floats).reshape(2, 1, 2, 3)
    before, lattice = private_sum(np.concatenate([rest, pair[0]]), bounds)
    others = [rest, pair[1]] if relation is REPLACE_ONE else [rest]
    after, _ = private_sum(np.concatenate(others), bounds)
    charged = relation.records_changed**2 * sum(lattice.steps(bound) ** 2 for bound in bounds)
    assert exact_norm_squared(before - after) <= charged
    sensitivity = stacked_l2_sensitivity(l2_bounds=bounds, records=10, relation=relation)
    assert math.sqrt(charged) * lattice.spacing / 10 <= sensitivity


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_the_sensitivity_is_attained(relation):
    bounds, far = [0.5, 2.0, 1.0], np.tile(np.array([1e6, 0.0]), (1, 3, 1))
    before, lattice = private_sum(far, bounds)
    after, _ = private_sum(-far if relation is REPLACE_ONE else far[:0], bounds)
    moved = math.sqrt(exact_norm_squared(before - after)) * lattice.spacing / 10
    sensitivity = stacked_l2_sensitivity(l2_bounds=bounds, records=10, relation=relation)
    assert moved == pytest.approx(sensitivity, rel=1e-7)
