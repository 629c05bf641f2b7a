import sys
from functools import partial

import numpy as np
import pytest

from dpsynth_assets.datasets import TextEmbedderSpec
from dpsynth_assets.metrics import embedding_distances as mauve
from dpsynth_assets.metrics.embedding_distances import (
    MAUVE,
    MauveSettings,
    energy_distance,
    frechet_distance,
    histogram_scores,
    mauve_score,
    resampled_energy_distances,
)
from dpsynth_assets.metrics.evaluation import EvaluationSettings
from dpsynth_assets.metrics.metric import ScoredSide, Sides, resampled_counts


def rows(seed, count=400, dimension=6):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dimension, dimension))
    return rng.standard_normal((count, dimension)) @ mixing + rng.standard_normal(dimension)


def test_it_agrees_with_the_matrix_square_root_of_its_definition():
    from scipy.linalg import sqrtm

    first, second = rows(0), rows(1)
    spread, other = np.cov(first.T), np.cov(second.T)
    root = sqrtm(spread @ other).real
    apart = np.square(first.mean(axis=0) - second.mean(axis=0)).sum()
    expected = apart + np.trace(spread + other - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(expected)
    assert frechet_distance(second, first) == pytest.approx(expected)


def test_fewer_rows_than_dimensions_give_a_number():
    few = np.random.default_rng(0).standard_normal((5, 40))
    assert 0 < frechet_distance(few, rows(1, 100, 40)) < np.inf


# The energy distance orders corpora that MAUVE cannot tell apart.

DRAW = np.random.default_rng(0)


def unit(rows, shift=0.0):
    points = DRAW.normal(size=(rows, 16)) + shift
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_it_grows_with_the_shift_and_stays_below_four():
    near, far = (energy_distance(unit(200), unit(200, shift)) for shift in (0.5, 5.0))
    assert 0.02 < near < far < 4


def test_it_is_symmetric_and_equals_the_plain_sum():
    p, q = unit(7), unit(5, 1.0)

    def mean(a, b, same):
        pairs = [np.linalg.norm(x - y) for x in a for y in b]
        return sum(pairs) / (len(a) * (len(b) - same))

    plain = 2 * mean(p, q, 0) - mean(p, p, 1) - mean(q, q, 1)
    assert energy_distance(p, q) == pytest.approx(plain)
    assert energy_distance(q, p) == pytest.approx(plain)


def test_resamples_spread_as_other_rows_would():
    generator = np.random.default_rng(2)

    def rows(shift):
        return generator.normal(size=(120, 6)) + shift

    p, q = rows(0.0), rows(0.3)
    counts = [resampled_counts(120, 300, seed) for seed in (1, 2)]
    drawn = resampled_energy_distances(p, q, *counts)
    others = [energy_distance(rows(0.0), rows(0.3)) for _ in range(100)]
    assert 0.6 * np.std(others) < drawn.std() < 1.6 * np.std(others)


def test_doubled_rows_do_not_make_one_distribution_look_like_two():
    """A row drawn twice is at no distance from itself, which must not count as a small spread."""
    generator = np.random.default_rng(4)
    p, q = generator.normal(size=(200, 5)), generator.normal(size=(200, 5))
    drawn = resampled_energy_distances(
        p, q, resampled_counts(200, 400, 1), resampled_counts(200, 400, 2)
    )
    assert abs(drawn.mean() - energy_distance(p, q)) < drawn.std() / 2


quick = partial(MauveSettings, repeats=2, kmeans_iterations=20, kmeans_initializations=1)
QUICK = quick()


@pytest.fixture(scope="module")
def features():
    return _unit(np.random.default_rng(0).normal(size=(240, 16)))


def _unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(
    ("own", "low", "high"), [(240, 0.999, 1.001), (120, 0.05, 0.95), (0, 0, 0.05)]
)
def test_the_score_is_the_share_that_two_sets_have_in_common(features, own, low, high):
    away = _unit(features + np.eye(16)[0] * 20)
    mixed = np.concatenate([features[:own], away[: 240 - own]])
    assert low < mauve_score(features, mixed, QUICK).value < high


def test_sides_are_cut_to_equal_rows_and_to_the_cap(features, monkeypatch):
    rows, clustered = [], mauve._clustered
    monkeypatch.setattr(
        mauve, "_clustered", lambda p, q, n, *rest: rows.append(n) or clustered(p, q, n, *rest)
    )
    mauve_score(features, features[:150], QUICK)
    result = mauve_score(features, features, quick(max_rows=140, repeats=1))
    assert (rows, len(result.draws)) == ([150, 150, 140], 0)


def test_equal_seeds_give_equal_scores_and_others_differ(features):
    first = mauve_score(features, features[::-1] * 0.9 + 0.1, QUICK)
    again = mauve_score(features, features[::-1] * 0.9 + 0.1, QUICK)
    assert first == again
    other = mauve_score(features, features[::-1] * 0.9 + 0.1, quick(seed=QUICK.seed + 9))
    assert first.value != other.value


def test_too_few_rows_are_refused(features):
    with pytest.raises(ValueError, match="at least 100 rows"):
        mauve_score(features[:99], features, QUICK)


def test_a_named_embedder_stands_in_for_the_features_and_beside_the_score():
    texts = [f"{'the ferry was late' if row % 2 else 'fold the eggs'} {row}" for row in range(100)]
    blank = np.zeros((100, 2), np.float32)
    sides = 2 * [ScoredSide(features=blank, texts=texts, resamples=5)]
    own = quick(embedder=TextEmbedderSpec(max_tokens=8))
    settings = EvaluationSettings(max_rows=100, mauve=own)
    score = MAUVE.of(Sides(corpus=sides[0], held_out=sides[1], settings=settings, labelled=False))
    assert score.value > 0.9
    assert settings.to_json()["mauve"]["embedder"] == {"model": None, "max_tokens": 8}


def test_scoring_prints_nothing(features, capfd):
    mauve_score(features, features, QUICK)
    assert capfd.readouterr() == ("", "")


def test_without_the_extra_the_score_says_in_one_line_what_to_install(features, monkeypatch):
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ModuleNotFoundError) as refusal:
        mauve_score(features, features, QUICK)
    assert str(refusal.value) == "MAUVE: not computed; pip install 'dpsynth_assets[mauve]'"


def test_scores_of_histograms_are_those_of_the_package():
    package = pytest.importorskip("mauve.compute_mauve")
    generator, settings = np.random.default_rng(3), MauveSettings()
    pairs = generator.dirichlet(np.full(12, 0.4), size=(5, 2))
    pairs[0, 0, :6], pairs[1, 1, 3] = 0.0, 0.0  # Clusters without rows of one side.
    pairs /= pairs.sum(axis=2, keepdims=True)
    weights = np.linspace(1e-6, 1 - 1e-6, settings.divergence_points)
    expected = []
    for p, q in pairs:
        curve = package.get_divergence_curve_for_multinomials(p, q, weights, 5.0)
        x, y = curve.T
        first, second = np.argsort(x), np.argsort(y)
        area = package.compute_area_under_curve
        expected.append(0.5 * (area(x[first], y[first]) + area(y[second], x[second])))
    assert histogram_scores(pairs[:, 0], pairs[:, 1], settings) == pytest.approx(expected)


def test_a_resample_of_every_row_once_is_the_score_itself(features):
    away = _unit(features + np.eye(16)[0])
    once = np.ones((3, 240), dtype=np.float32)
    result = mauve_score(features, away, quick(repeats=1), once, once)
    assert result.draws == pytest.approx([result.value] * 3)


def test_resamples_spread_about_as_other_rows_would():
    generator = np.random.default_rng(5)

    def rows(shift):
        return _unit(generator.normal(size=(150, 8)) + np.eye(8)[0] * shift)

    settings = quick(repeats=1)
    counts = [resampled_counts(150, 200, seed) for seed in (1, 2)]
    spread = mauve_score(rows(0), rows(1), settings, *counts).draws.std()
    others = np.std([mauve_score(rows(0), rows(1), settings).value for _ in range(30)])
    assert others / 2 < spread < 3 * others
