import numpy as np
import pytest

from dpsynth_assets.models.topic_model import keywords
from dpsynth_assets.models.topic_model.fitting import NOISE
from dpsynth_assets.models.topic_model.keywords import count_words, words_of
from dpsynth_assets.models.topic_model.model import TopicModelSettings

EVERY_WORD = TopicModelSettings(min_word_documents=1)
TEXTS = [
    "alpha bravo charlie delta echoes foxtrot golfer hotel indigo juliet alpha",
    "alpha bravo kilogram",
    "secret secret secret",
    "kilogram kilogram lima",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Boats, SAILED on 12 seas!", ["boats", "sailed", "seas"]),
        ("I don't, can't and won't; it's Anna's café", ["anna", "café"]),
        ("write to jo.brown@mail.example or www.site.example/page", ["write"]),
        ("x1y2z3 snake_case word2vec <unk>", ["snake", "case", "word", "vec"]),
        ("", []),
    ],
)
def test_words_are_lower_case_letters_without_stop_words(text, expected):
    assert words_of(text, 99) == expected


def test_only_the_first_words_count():
    assert words_of("alpha bravo charlie delta", 2) == ["alpha", "bravo"]


def test_counts_are_those_of_each_topics_documents():
    counted = count_words(TEXTS, np.array([1, 0, NOISE, 0]), 2, EVERY_WORD)
    column = counted.vocabulary.index
    assert counted.counts[1, column("alpha")] == 2
    assert counted.counts[0, column("alpha")] == 1
    assert counted.counts[0, column("kilogram")] == 3
    assert counted.counts.sum() == 11 + 3 + 3
    assert "secret" not in counted.vocabulary


def test_the_vocabulary_holds_the_words_of_most_documents(monkeypatch):
    texts = [f"harbour unique{'abcdefghijklmnop'[n % 16]}" for n in range(200)]
    texts += [" ".join(f"word{letter}" for letter in "abcdefghijklmn")] * 20
    few = TopicModelSettings(min_word_documents=1, vocabulary=100)
    monkeypatch.setattr(keywords, "MAX_DISTINCT_WORDS", 18)
    counted = count_words(texts, np.zeros(220, dtype=np.int64), 1, few)
    assert counted.vocabulary[0] == "harbour"
    assert counted.counts[0, 0] == 200


def test_a_word_of_one_document_is_no_keyword_of_a_large_corpus():
    texts = ["alpha bravo charlie delta echoes foxtrot golfer hotel indigo juliet"] * 600
    texts[0] += " fingerprint"
    counted = count_words(texts, np.zeros(600, dtype=np.int64), 1, TopicModelSettings())
    assert "fingerprint" not in counted.vocabulary
