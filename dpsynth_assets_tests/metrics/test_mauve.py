import numpy as np
import pytest

from dpsynth_assets.metrics.mauve import MauveSettings, mauve_score

QUICK = MauveSettings(repeats=2, initialisations=1, iterations=20)


def test_identical_text_scores_one_and_disjoint_text_scores_low(rides, cakes):
    assert mauve_score(rides[1], rides[1], QUICK).mean > 0.95
    assert mauve_score(rides[1], cakes[1], QUICK).mean < 0.1


def test_both_sides_have_equally_many_rows_and_a_tenth_as_many_clusters(rides, cakes):
    result = mauve_score(rides[1], cakes[1][:40], QUICK)
    assert (result.rows, result.clusters) == (40, 4)


def test_constants_are_those_printed_in_amin_2025_e1():
    settings = MauveSettings()
    assert (settings.max_rows, settings.rows_by_cluster) == (1000, 10)
    assert (settings.initialisations, settings.iterations) == (5, 500)
    assert (settings.explained_variance, settings.scaling, settings.points) == (0.9, 5.0, 32)


def test_scoring_is_deterministic_and_silent(rides, cakes, capfd):
    scores = [mauve_score(rides[1], cakes[1], QUICK) for _ in range(2)]
    assert scores[0] == scores[1]
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_one_row_has_no_score():
    with pytest.raises(ValueError, match="at least 2 rows"):
        mauve_score(np.ones((1, 4), np.float32), np.ones((9, 4), np.float32))
