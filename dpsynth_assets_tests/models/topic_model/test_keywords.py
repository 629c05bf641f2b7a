import numpy as np
import pytest

from dpsynth_assets.models.topic_model.keywords import (
    TopicWords,
    by_marginal_relevance,
    first_distinct,
    same_word,
    shared_words,
    telling_words,
)
from dpsynth_assets_tests.models.topic_model.conftest import unit


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("film", "films"), ("comedy", "comedies"), ("bus", "buses"), ("football", "ball"),
        ("directed", "director"), ("baker", "bakery"), ("tree", "trees"),
    ],
)  # fmt: skip
def test_forms_of_one_word_are_one_word(first, second):
    assert same_word(first, second)
    assert same_word(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cat", "cattle"), ("bus", "business"), ("internet", "international"),
        ("train", "track"), ("glass", "grass"), ("art", "party"), ("price", "prison"),
        ("rice", "price"), ("rain", "train"),
    ],
)  # fmt: skip
def test_other_words_stay_apart(first, second):
    assert not same_word(first, second)


def test_forms_are_taken_only_where_there_are_no_ten_others():
    words = ["river", "lake", "boat", "sail", "harbour", "fish", "tide", "coast", "wave", "pier"]
    plurals = [word + "s" for word in words]
    mixed = [form for pair in zip(words, plurals, strict=True) for form in pair]
    assert first_distinct(mixed) == tuple(words)
    assert first_distinct(mixed[:14]) == (*words[:7], *plurals[:3])


def test_marginal_relevance_equals_its_definition():
    random = np.random.default_rng(2)
    candidates, topic = unit(random.normal(size=(15, 5))), unit(random.normal(size=5))
    taken = []
    while len(taken) < 15:
        scores = {}
        for place in set(range(15)) - set(taken):
            redundancy = max((candidates[place] @ candidates[t] for t in taken), default=0.0)
            scores[place] = 0.7 * (candidates[place] @ topic) - 0.3 * redundancy
        taken.append(max(scores, key=scores.get))
    assert by_marginal_relevance(candidates, topic, 0.3) == taken


def words_with(counts):
    names = tuple(f"{letter * 5}" for letter in "abcdefghijklmnopqrstuvwxyz"[: counts.shape[1]])
    return TopicWords(names, counts.astype(np.uint32))


def test_telling_words_follow_class_based_tf_idf():
    counts = np.random.default_rng(3).integers(0, 50, size=(4, 12))
    mean_words = counts.sum() / 4
    weights = counts / counts.sum(axis=1, keepdims=True) * np.log(1 + mean_words / counts.sum(0))
    for row, ranked in enumerate(telling_words(words_with(counts))):
        np.testing.assert_allclose(weights[row][ranked], np.sort(weights[row])[::-1], rtol=1e-9)


def test_shared_words_are_those_of_every_topic():
    counts = np.full((3, 14), 20)
    counts[0, 0] = counts[1, 1] = 500  # frequent, but in one topic only
    counts[1:, 0] = counts[[0, 2], 1] = 0
    counts[:, 2:4] = 1
    shared = shared_words(words_with(counts))
    assert set(shared) == set(words_with(counts).vocabulary[4:])
