"""Private k-means finds groups when noise allows, and looks at records one by one. About 3 s."""

import numpy as np
import pytest
from dp_kmeans.agreement import agreement
from dp_kmeans.noisy_kmeans import (
    fit_noisy_kmeans,
    principal_view,
    random_view,
)
from dp_kmeans.noisy_tree import NoisyCoreset

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.guarantees import NeighboringRelation

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
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


def test_less_privacy_buys_more_agreement():
    embeddings, member = mixture(spread=0.2, groups=16)
    view = random_view(24, 16, seed=0)
    scores = [
        agreement(member, fit(view, embeddings, epsilon, clusters=16).value.assign(embeddings))
        for epsilon in (0.1, 50.0)
    ]
    known = [0.0 if score is None else score.v_measure for score in scores]
    assert known[0] + 0.1 < known[1]


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
