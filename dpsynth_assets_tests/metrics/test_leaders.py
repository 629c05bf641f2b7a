"""Sentences on the best private corpus never say more than intervals of differences allow."""

import numpy as np

from dpsynth_assets.metrics.leaders import ceiling_sentences, floor_sentences, leading_sentence
from dpsynth_assets.metrics.resampling import Estimate

NOISE = np.random.default_rng(0).normal(size=(6, 400))
REFERENCES = {"floor": "public only", "ceiling": "non-private"}


def _estimate(value, own, std=0.01):
    return Estimate.around(value, std * NOISE[own])


def _corpora(**mauve):
    values = {"public only": 0.2, "non-private": 0.6} | mauve
    return {name: {"mauve": _estimate(value, i)} for i, (name, value) in enumerate(values.items())}


def test_the_best_corpus_stands_with_its_share_of_the_gap_and_what_is_decided():
    told = leading_sentence(
        ["near", "best", "far"], _corpora(near=0.395, best=0.4, far=0.3), **REFERENCES
    )
    assert told.startswith("Of the private corpora, best scores best (MAUVE 0.4, 50 % (")
    assert told.endswith(
        "it is better than far; its difference from near is not decided by these rows."
    )


def test_a_wide_interval_decides_nothing():
    corpora = {"a": {"mauve": _estimate(0.5, 0, 0.3)}, "b": {"mauve": _estimate(0.2, 1, 0.3)}}
    told = leading_sentence(["a", "b"], corpora)
    assert told == (
        "Of the private corpora, a scores best (MAUVE 0.5); its difference from b is not decided "
        "by these rows."
    )


def test_less_energy_distance_is_better_where_there_is_no_mauve():
    corpora = {
        "a": {"energy_distance": _estimate(0.5, 0)},
        "b": {"energy_distance": _estimate(0.2, 1)},
    }
    told = leading_sentence(["a", "b"], corpora)
    assert told.startswith("Of the private corpora, b scores best (energy distance 0.2); ")


def test_one_corpus_or_none_is_compared_with_no_other():
    told = leading_sentence(["only"], _corpora(only=0.4), **REFERENCES)
    assert told.startswith("The private corpus that has a score is only: MAUVE 0.4, 50 % (")
    assert leading_sentence([], _corpora(), **REFERENCES) is None
    assert leading_sentence(["none"], {"none": {}}) is None


def test_a_corpus_above_the_ceiling_is_named_with_what_the_rows_decide():
    corpora = _corpora(above=0.7, level=0.605, below=0.3)
    (told,) = ceiling_sentences(["above", "level", "below"], corpora, "non-private")
    assert "above by MAUVE (better)" in told
    assert "level by MAUVE (a difference within chance)" in told
    assert "below" not in told
    assert list(ceiling_sentences(["below"], corpora, "non-private")) == []
    assert list(ceiling_sentences(["above"], corpora, None)) == []


def test_a_corpus_that_public_text_beats_is_called_so_where_the_rows_decide_it():
    corpora = _corpora(above=0.7, level=0.195, below=0.1)
    (told,) = floor_sentences(["above", "level", "below"], corpora, "public only")
    assert told.startswith("Worse than public text alone (public only): below by MAUVE. ")
    assert list(floor_sentences(["below"], corpora, None)) == []
    assert list(floor_sentences(["none"], {**corpora, "none": {}}, "public only")) == []
