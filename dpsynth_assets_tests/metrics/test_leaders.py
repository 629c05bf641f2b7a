"""Sentences on the best private corpus never say more than intervals of differences allow."""

import numpy as np

from dpsynth_assets.metrics.leaders import told_of_private
from dpsynth_assets.metrics.resampling import Estimate

NOISE = np.random.default_rng(0).normal(size=(7, 400))
REFERENCES = {"floor": "public only", "ceiling": "non-private"}


def _estimate(value, own, std=0.01):
    return Estimate.around(value, std * NOISE[own])


def _corpora(**mauve):
    values = {"public only": 0.2, "non-private": 0.6} | mauve
    return {name: {"mauve": _estimate(value, i)} for i, (name, value) in enumerate(values.items())}


def test_the_best_corpus_stands_with_its_share_of_the_gap_and_what_is_decided():
    corpora = _corpora(near=0.395, best=0.4, far=0.3)
    (told,) = told_of_private(["near", "best", "far"], corpora, **REFERENCES)
    assert told.startswith("Of the private corpora, best scores best (MAUVE 0.4, 50 % (")
    assert told.endswith(
        "it is better than far; its difference from near is not decided by these rows."
    )


def test_a_wide_interval_decides_nothing():
    corpora = {"a": {"mauve": _estimate(0.5, 0, 0.3)}, "b": {"mauve": _estimate(0.2, 1, 0.3)}}
    assert told_of_private(["a", "b"], corpora) == [
        "Of the private corpora, a scores best (MAUVE 0.5); its difference from b is not decided "
        "by these rows."
    ]


def test_less_energy_distance_is_better_where_there_is_no_mauve():
    scores = {"a": 0.5, "b": 0.2, "floor": 0.3, "ceiling": 0.4}
    corpora = {n: {"energy_distance": _estimate(v, i)} for i, (n, v) in enumerate(scores.items())}
    best, below, above = told_of_private(["a", "b"], corpora, "floor", "ceiling")
    assert best.startswith("Of the private corpora, b scores best (energy distance 0.2); ")
    assert below.startswith("Worse than public text alone (floor): a by energy distance. ")
    assert above.startswith("Scores above the ceiling (ceiling): b by energy distance (better). ")


def test_one_corpus_or_none_is_compared_with_no_other():
    (told,) = told_of_private(["only"], _corpora(only=0.4), **REFERENCES)
    assert told.startswith("The private corpus that has a score is only: MAUVE 0.4, 50 % (")
    assert told_of_private([], _corpora(), **REFERENCES) == []
    assert told_of_private(["none"], {"none": {}}) == []


def test_corpora_above_the_ceiling_or_below_the_floor_are_named_with_what_the_rows_decide():
    corpora = _corpora(above=0.7, level=0.605, between=0.3, low=0.195, below=0.1)
    private = list(corpora)[2:]
    _, floor, ceiling = told_of_private(private, corpora, **REFERENCES)
    assert floor.startswith("Worse than public text alone (public only): below by MAUVE. ")
    shown = "above by MAUVE (better), level by MAUVE (a difference within chance)"
    assert ceiling.startswith(f"Scores above the ceiling (non-private): {shown}. ")
    assert len(told_of_private(private, corpora)) == 1
