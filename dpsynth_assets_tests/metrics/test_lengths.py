import pytest

from dpsynth_assets.metrics.text import length_distance, words_per_text


def texts(counts):
    return ["w " * count for count in counts]


def test_a_word_more_in_every_text_is_a_distance_of_one():
    assert length_distance(texts([3, 7, 7]), texts([4, 8, 8])) == 1.0
    assert length_distance(texts([5, 5]), texts([5])) == 0.0
    assert words_per_text(["a b", "", " c "]).tolist() == [2, 0, 1]


def test_an_empty_side_is_refused():
    with pytest.raises(ValueError, match="both sides"):
        length_distance([], ["a"])
