"""Laws of the noisy coreset: its price, its tree, and what one record can move.

False alarm of the statistical test: at most 1e-8. About 3 s of CPU.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_kmeans import noisy_coreset, noisy_tree
from dp_kmeans.noisy_coreset import CoresetMechanism, coreset_noise
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy import histogram
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import ComposedEvent, DiscreteGaussianEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


def make(**changes):
    fields = {
        "hyperplanes": np.eye(2),
        "count_noise_std": 4.0,
        "sum_noise_std": 2.0,
        "branch_count": 4.0,
        "keep_count": 2.0,
        "relation": ADD_REMOVE,
    }
    return CoresetMechanism(**(fields | changes))


def points(rows, dimensions=2, seed=0):
    return np.random.default_rng(seed).normal(0, 0.5, (rows, dimensions))


@pytest.fixture
def noiseless(monkeypatch):
    for module in (histogram, noisy_tree):
        monkeypatch.setattr(module, "discrete_gaussian", lambda values, scale: list(values))


# Price


@pytest.mark.parametrize(
    ("relation", "unit", "count_shift", "sum_shift"),
    [
        (ADD_REMOVE, 1, 1, 1),
        (ZERO_OUT, 3, 3, 3),
        (REPLACE_ONE, 1, 1, 2),
        (REPLACE_ONE, 2, 2, 4),
    ],
)
def test_every_level_and_the_sums_are_charged(relation, unit, count_shift, sum_shift):
    event = make(hyperplanes=np.ones((5, 3)), relation=relation, max_records_per_unit=unit).event
    assert isinstance(event, ComposedEvent)
    *levels, sums = event.events
    counts = 2 if relation is REPLACE_ONE else 1
    level = DiscreteGaussianEvent(noise_std=4.0, shift=count_shift, count=counts)
    assert levels == [level] * 5
    assert sums.noise_multiplier == pytest.approx(2.0 / sum_shift)


@pytest.mark.parametrize("records", [0, 1, 300])
def test_the_cost_does_not_depend_on_what_came(records):
    mechanism = make()
    release = mechanism.release(points(records))
    assert release.cost.event == mechanism.event
    assert release.cost.guarantee is GuaranteeType.DP
    assert np.isfinite(release.value.points).all()


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_calibrated_noise_spends_its_target_and_no_more(relation, epsilon):
    counts, sums = coreset_noise(epsilon, 1e-6, 7, relation, max_records_per_unit=2)
    mechanism = make(
        hyperplanes=np.ones((7, 2)),
        count_noise_std=counts,
        sum_noise_std=sums,
        relation=relation,
        max_records_per_unit=2,
    )
    assert 0.98 * epsilon < epsilon_of([mechanism.event], 1e-6, "zcdp") <= epsilon


# Tree


def test_full_nodes_are_halved_small_ones_kept_and_tiny_ones_dropped(noiseless):
    east_north, east_south = [[0.8, 0.1]] * 3, [[0.8, -0.1]] * 2
    west = [[-0.5, 0.0]] * 3
    coreset = make().release(np.array(east_north + east_south + west)).value
    order = np.argsort(coreset.weights, kind="stable")  # west was not halved: 3 records < 4
    assert coreset.weights.tolist() == [3, 2, 3]
    assert coreset.points[order] == pytest.approx(
        np.array([[0.8, -0.1], [-0.5, 0.0], [0.8, 0.1]]), abs=1e-6
    )


def test_a_leaf_below_the_least_count_adds_nothing(noiseless):
    coreset = make().release(np.array([[0.8, 0.1]] * 3 + [[-0.5, 0.0]])).value
    assert coreset.weights.tolist() == [3]


def test_points_are_means_of_clipped_records(noiseless):
    coreset = make(branch_count=1e9).release(np.array([[30.0, 40.0], [0.3, 0.4]])).value
    assert coreset.points == pytest.approx(np.array([[0.45, 0.6]]), abs=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(noiseless, broken):
    records = np.array([[0.8, 0.1]] * 3 + [[broken, 0.1]])
    assert make(branch_count=1e9).release(records).value.points[0] == pytest.approx([0.6, 0.075])


def test_no_tree_grows_beyond_its_levels(noiseless):
    coreset = make(hyperplanes=np.eye(1, 2)).release(points(500)).value
    assert len(coreset.weights) == 2
    assert coreset.weights.sum() == 500


def test_a_records_side_is_its_own_in_any_company():
    planes, records = points(6, 30, seed=1), points(200, 30)
    mechanism = make(hyperplanes=planes)
    clipped = mechanism._lattice.clip(records, 1.0)
    together = mechanism._sides(clipped)
    exact = clipped.astype(object) @ integer_planes(planes).T >= 0
    assert (together == exact.astype(bool)).all()
    alone = np.concatenate([mechanism._sides(row[None]) for row in clipped])
    assert (together == alone).all()


def integer_planes(planes):
    scaled = planes / np.abs(planes).max(axis=1, keepdims=True)
    scaled *= noisy_coreset.HYPERPLANE_STEPS / np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.array([[round(entry) for entry in row] for row in scaled.tolist()], dtype=object)


# What one record moves


class Watched(CoresetMechanism):
    """Shows private histograms and sums; the tree follows made-up counts, alike for neighbours."""

    def _noisy_counts(self, private_nodes, nodes):
        counts = np.bincount(private_nodes[private_nodes >= 0], minlength=nodes)
        self.__dict__.setdefault("levels", []).append(counts)
        made_up = np.random.default_rng(len(self.__dict__["levels"]))
        return made_up.integers(0, 9, nodes).astype(float)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=6, max_size=6),
    st.booleans(),
)
def test_one_record_moves_one_count_of_a_level_and_one_leaf_by_one_bound(seed, floats, replaced):
    rest, pair = points(40, 3, seed), np.array(floats).reshape(2, 1, 3)
    planes = points(5, 3, seed + 1)
    others = np.concatenate([rest, pair[1]]) if replaced else rest
    patch = pytest.MonkeyPatch()
    patch.setattr(noisy_tree, "discrete_gaussian", lambda values, scale: list(values))
    shown = []
    for records in (np.concatenate([rest, pair[0]]), others):
        mechanism = Watched(
            **{name: getattr(make(hyperplanes=planes), name) for name in make().__dict__}
        )
        clipped = mechanism._lattice.clip(records, 1.0)
        leaves, weights = mechanism._grow(clipped)
        sums = mechanism._noisy_sums(clipped, leaves, len(weights)) / mechanism._lattice.spacing
        shown.append((mechanism.__dict__["levels"], sums))
    patch.undo()
    changed = 2 if replaced else 1
    for before, after in zip(shown[0][0], shown[1][0], strict=True):
        assert np.abs(before - after).sum() <= changed
    moved = math.sqrt(sum(int(step) ** 2 for step in (shown[0][1] - shown[1][1]).ravel()))
    assert moved <= changed * mechanism._lattice.steps(1.0)


@pytest.mark.statistical
def test_every_entry_of_a_sum_gets_noise_of_the_stated_deviation():
    mechanism = make(hyperplanes=np.eye(1, 3000), count_noise_std=1.0, keep_count=2.0)
    records = np.zeros((60, 3000))
    records[:30, 0], records[30:, 0] = 0.5, -0.5
    coreset = mechanism.release(records).value
    noise = (coreset.points * coreset.weights[:, None])[:, 1:] / 2.0
    assert noise.shape == (2, 2999)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-9
    share = stats.chi2.cdf((noise**2).sum(), noise.size)
    assert min(share, 1 - share) > 1e-9


# Domains


@pytest.mark.parametrize(
    "changes",
    [
        {"hyperplanes": np.zeros((2, 2))},
        {"hyperplanes": np.array([[np.nan, 1.0]])},
        {"hyperplanes": np.ones(3)},
        {"count_noise_std": 0.5},
        {"sum_noise_std": 0.0},
        {"sum_noise_std": 1e-9},
        {"keep_count": 0.0},
        {"l2_bound": 0.0},
        {"max_records_per_unit": 0},
        {"relation": "swap"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_outside_their_domain_are_refused(changes):
    with pytest.raises(ValueError, match=r"Expected|swap"):
        make(**changes)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 2, 2)])
def test_vectors_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"Expected vectors of shape \(N, 2\)"):
        make().release(np.zeros(shape))


def test_an_event_holds_counts_and_one_gaussian():
    event = replace(make(), relation=REPLACE_ONE).event
    *levels, sums = event.events
    assert all(isinstance(each, DiscreteGaussianEvent) for each in levels)
    assert isinstance(sums, GaussianEvent)
