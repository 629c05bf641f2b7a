import pytest

from dpsynth_assets.metrics.text import distinct_n, label_distance


@pytest.mark.parametrize(
    ("texts", "n", "share"),
    [
        (["a b c d"], 1, 1.0),
        (["a a a a"], 1, 0.25),
        (["a b", "A B"], 2, 0.5),
        (["a", "b"], 2, 0.0),  # n-grams do not cross texts
        ([], 1, 0.0),
    ],
)
def test_distinct_n_is_the_share_of_distinct_ngrams(texts, n, share):
    assert distinct_n(texts, n) == share


def test_distinct_n_reads_the_same_number_of_ngrams_whatever_the_size():
    texts = ["a b", "a b", "a b"]
    assert distinct_n(texts, 2, most_ngrams=2) == distinct_n(texts[:2], 2, most_ngrams=2)


@pytest.mark.parametrize(
    ("labels", "other", "distance"),
    [("aabb", "ab", 0.0), ("aa", "bb", 1.0), ("aaab", "ab", 0.25), ("a", "ab", 0.5)],
)
def test_label_distance_is_total_variation(labels, other, distance):
    assert label_distance(labels, other) == pytest.approx(distance)
    assert label_distance(other, labels) == pytest.approx(distance)


def test_label_distance_needs_labels():
    with pytest.raises(ValueError, match="labels on both sides"):
        label_distance([], ["a"])
