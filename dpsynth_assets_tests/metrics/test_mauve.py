import sys

import numpy as np
import pytest

from dpsynth_assets.metrics.mauve import MauveSettings, mauve_score

QUICK = MauveSettings(repeats=2, kmeans_iterations=20, kmeans_initializations=1)


@pytest.fixture(scope="module")
def features():
    return _unit(np.random.default_rng(0).normal(size=(120, 16)))


def _unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def test_a_set_against_itself_scores_one(features):
    assert mauve_score(features, features, QUICK).mean == pytest.approx(1.0, abs=1e-6)


def test_disjoint_sets_score_near_zero(features):
    away = _unit(features + np.eye(16)[0] * 20)
    assert mauve_score(features, away, QUICK).mean < 0.05


def test_a_partial_mixture_scores_between(features):
    away = _unit(features + np.eye(16)[0] * 20)
    mixed = np.concatenate([features[:60], away[:60]])
    result = mauve_score(features, mixed, QUICK)
    assert 0.05 < result.mean < 0.95


def test_sides_are_cut_to_equal_rows_and_to_the_cap(features):
    assert mauve_score(features, features[:50], QUICK).rows == 50
    capped = MauveSettings(repeats=1, kmeans_initializations=1, max_rows=40)
    result = mauve_score(features, features, capped)
    assert (result.rows, result.repeats, result.std) == (40, 1, 0.0)


def test_equal_seeds_give_equal_scores_and_repeats_differ(features):
    first = mauve_score(features, features[::-1] * 0.9 + 0.1, QUICK)
    again = mauve_score(features, features[::-1] * 0.9 + 0.1, QUICK)
    assert first == again
    assert first.std > 0


def test_too_few_rows_are_refused(features):
    with pytest.raises(ValueError, match="at least 20 rows"):
        mauve_score(features[:19], features, QUICK)


def test_the_constants_are_the_papers():
    settings = MauveSettings()
    assert settings.rows_per_cluster == 10
    assert settings.kmeans_initializations == 5
    assert settings.kmeans_iterations == 500
    assert settings.explained_variance == 0.9
    assert settings.scaling_factor == 5
    assert settings.divergence_points == 32
    assert settings.max_rows == 1000


def test_scoring_prints_nothing(features, capfd):
    mauve_score(features, features, QUICK)
    assert capfd.readouterr() == ("", "")


def test_without_the_extra_the_score_says_in_one_line_what_to_install(features, monkeypatch):
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ModuleNotFoundError) as refusal:
        mauve_score(features, features, QUICK)
    assert str(refusal.value) == "MAUVE: not computed; pip install 'dpsynth_assets[mauve]'"
