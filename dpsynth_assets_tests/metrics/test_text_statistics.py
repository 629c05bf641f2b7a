import pytest

from dpsynth_assets.metrics.text_statistics import (
    distinct_n,
    label_distance,
    length_distance,
    length_quantiles,
)


def test_distinct_n_counts_distinct_over_all():
    assert distinct_n(["a b a b"], 1) == 0.5
    assert distinct_n(["a b a b"], 2) == pytest.approx(2 / 3)
    assert distinct_n(["a"], 3) == 0.0


def test_n_grams_do_not_cross_texts():
    assert distinct_n(["a b", "c d"], 2) == 1.0
    assert distinct_n(["a b", "a b"], 2) == 0.5


def test_label_distance_is_total_variation():
    assert label_distance(["x", "y"], ["y", "x"]) == 0.0
    assert label_distance(["x", "x"], ["y"]) == 1.0
    assert label_distance(["x", "x", "x", "y"], ["x", "y"]) == pytest.approx(0.25)


def test_length_distance_is_in_words():
    assert length_distance(["a b c"], ["a"]) == 2.0
    assert length_quantiles(["a b c"] * 4) == [3.0] * 5
