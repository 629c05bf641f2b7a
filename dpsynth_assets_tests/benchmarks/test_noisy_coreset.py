"""Laws of the noisy coreset: its price, its tree, and what one record can move.

False alarm of the statistical test: at most 1e-8. About 3 s of CPU.
"""

import numpy as np
import pytest
from dp_kmeans import coreset_audit, noisy_coreset, noisy_tree
from dp_kmeans.agreement import agreement
from dp_kmeans.noisy_coreset import CoresetMechanism, coreset_noise
from dp_kmeans.noisy_kmeans import (
    fit_noisy_kmeans,
    principal_view,
    random_view,
)
from dp_kmeans.noisy_tree import NoisyCoreset

from dpsynth_assets.privacy import histogram
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import ComposedEvent, DiscreteGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation

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


def test_points_are_means_of_clipped_records(noiseless):
    coreset = make(branch_count=1e9).release(np.array([[30.0, 40.0], [0.3, 0.4]])).value
    assert coreset.points == pytest.approx(np.array([[0.45, 0.6]]), abs=1e-6)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_record_that_is_not_finite_counts_as_zero(noiseless, broken):
    records = np.array([[0.8, 0.1]] * 3 + [[broken, 0.1]])
    assert make(branch_count=1e9).release(records).value.points[0] == pytest.approx([0.6, 0.075])


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


# The audit of the noisy coreset.


@pytest.mark.statistical
def test_the_claim_survives_its_audit():
    result = coreset_audit.AUDIT.run()
    assert result.passed, result


@pytest.mark.statistical
@pytest.mark.parametrize("bug", coreset_audit.AUDIT.planted, ids=str)
def test_a_planted_bug_is_noticed(bug):
    result = coreset_audit.AUDIT.run(bug)
    assert not result.passed, result


# Private k-means finds groups when noise allows, and looks at records one by one. About 3 s.

DELTA = 1e-6


def mixture(rows=4000, groups=5, spread=0.05, seed=0):
    draw = np.random.default_rng(seed)
    centers = np.random.default_rng(7).normal(size=(groups, 24))
    member = draw.integers(groups, size=rows)
    found = centers[member] + spread * draw.normal(size=(rows, 24))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32), member


def fit(view, embeddings, epsilon=8.0, **changes):
    fields = {"clusters": 5, "epsilon": epsilon, "delta": DELTA} | changes
    return fit_noisy_kmeans(embeddings, view, **fields)


@pytest.mark.parametrize("kind", ["random", "principal"])
def test_groups_of_a_mixture_are_found_within_the_stated_cost(kind):
    embeddings, member = mixture()
    public, _ = mixture(600, seed=1)
    view = random_view(24, 8, seed=0) if kind == "random" else principal_view(public, 8)
    release = fit(view, embeddings, clusters=8)
    assert epsilon_of([release.cost.event], DELTA, "zcdp") <= 8.0
    assert agreement(member, release.value.assign(embeddings)).v_measure > 0.8


def test_a_projected_record_is_its_own_in_any_company():
    embeddings, _ = mixture(5000)
    view = principal_view(embeddings[:500], 5, dimensions=9)
    together = view.project(embeddings)
    assert (view.project(embeddings[4090:4100]) == together[4090:4100]).all()
    assert np.linalg.norm(together, axis=1) == pytest.approx(1.0)
    assert (view.project(np.tile(view.origin, (2, 1))) == 0).all()


def test_centres_depend_on_the_coreset_alone(monkeypatch):
    from dp_kmeans import noisy_kmeans

    fixed = NoisyCoreset(points=np.eye(3, 24) * 5, weights=np.array([3.0, 2.0, 1.0]))
    mechanism = noisy_kmeans.CoresetMechanism
    original = mechanism.release

    def made_up(self, vectors):
        release = original(self, vectors)
        return type(release)(value=fixed, cost=release.cost)

    monkeypatch.setattr(mechanism, "release", made_up)
    view = random_view(24, 5, dimensions=24, seed=0)
    one, other = (fit(view, mixture(rows)[0]).value.centers for rows in (40, 70))
    assert (one == other).all()
    assert one == pytest.approx(np.eye(3, 24))
