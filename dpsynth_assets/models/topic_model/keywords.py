"""Words of each topic's documents, counted in bounded memory, and ten keywords chosen of them.

Keywords are telling for the topic, near its embedding and unlike one another. Words are those of
any language that separates them; the stop words are English, those of other languages are left to
class-based tf-idf.

Shapes: N documents, K topics, V words of the vocabulary, m candidates, d dimensions.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dpsynth_assets.models.topic_model.model import KEYWORDS, NOISE, TopicModelSettings, unit_rows

MAX_DISTINCT_WORDS = 1_000_000
"""Words held at once while the vocabulary is counted; beyond, those seen once are forgotten."""

SMALL_CORPUS_SHARE = 0.01

_WORD = re.compile(r"[^\W\d_]{3,}")
_ADDRESSES = re.compile(r"\S*(?:@|://|www\.)\S*")
_APOSTROPHES = re.compile(r"(?<=\w)['’]\w{1,3}\b")


@dataclass(frozen=True, eq=False)
class TopicWords:
    """Counts of each word in each topic.

    Attributes:
        vocabulary: V words, lower case.
        counts: uint32 (K, V), occurrences in the topic's counted documents; 4 K V bytes.
    """

    vocabulary: tuple[str, ...] = field(repr=False)
    counts: np.ndarray = field(repr=False)


def words_of(text: str, most: int) -> list[str]:
    """Lists the first words of a text that could be keywords.

    Args:
        text: A document.
        most: Words taken into account at most.

    Returns:
        Lower-case words of letters only, three or more, without stop words, contractions
        and web or e-mail addresses.
    """
    lowered = _APOSTROPHES.sub("", _ADDRESSES.sub("", text.lower()))
    found = (match.group() for match, _ in zip(_WORD.finditer(lowered), range(most), strict=False))
    stop_words = _stop_words()
    return [word for word in found if word not in stop_words]


def count_words(
    texts: Iterable[str], topics: np.ndarray, n_topics: int, settings: TopicModelSettings
) -> TopicWords:
    """Counts words by topic in two passes: first the vocabulary, then the table.

    Args:
        texts: N documents, read twice.
        topics: int64 (N,) topic of each document, NOISE for documents not counted.
        n_topics: K.
        settings: Bounds on vocabulary, words of a document and rare words.

    Raises:
        ValueError: The texts are not as many as the topics, or hold fewer than ten keywords.
    """
    vocabulary = _vocabulary(texts, topics, settings)
    column = {word: index for index, word in enumerate(vocabulary)}
    counts = np.zeros((n_topics, len(vocabulary)), dtype=np.uint32)
    for topic, words in _counted(texts, topics, settings):
        columns = [column[word] for word in words if word in column]
        np.add.at(counts[topic], np.array(columns, dtype=np.int64), 1)
    return TopicWords(vocabulary, counts)


def _counted(
    texts: Iterable[str], topics: np.ndarray, settings: TopicModelSettings
) -> Iterator[tuple[int, list[str]]]:
    """Yields topic and words of each document that is counted."""
    for text, topic in zip(texts, topics.tolist(), strict=True):
        if topic != NOISE:
            yield topic, words_of(text, settings.keyword_words)


def _vocabulary(
    texts: Iterable[str], topics: np.ndarray, settings: TopicModelSettings
) -> tuple[str, ...]:
    """Finds the words that most documents use, in the order of their number."""
    documents: Counter[str] = Counter()
    counted = 0
    for _, words in _counted(texts, topics, settings):
        documents.update(set(words))
        counted += 1
        if len(documents) > MAX_DISTINCT_WORDS:
            documents = Counter({word: n for word, n in documents.items() if n > 1})
    fewest = min(settings.min_word_documents, max(1, int(SMALL_CORPUS_SHARE * counted)))
    frequent = [(-n, word) for word, n in documents.items() if n >= fewest]
    if len(frequent) < KEYWORDS:
        raise ValueError(
            f"Expected at least {KEYWORDS} words that occur in {fewest} documents or more, got "
            f"{len(frequent)}. Add public documents or lower min_word_documents."
        )
    return tuple(word for _, word in sorted(frequent)[: settings.vocabulary])


@cache
def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS) | _MORE_STOP_WORDS


_MORE_STOP_WORDS = frozenset({
    "ain", "aren", "couldn", "did", "didn", "does", "doesn", "doing", "don", "hadn", "hasn",
    "haven", "isn", "just", "let", "like", "mightn", "mustn", "needn", "shan", "shouldn", "wasn",
    "weren", "won", "wouldn", "yes", "unk",
})  # fmt: skip
"""Pieces of contractions, words as empty as the listed ones, and the mark of an unknown word."""


SAME_STEM_LETTERS = 5
SAME_STEM_SHARE = 2 / 3
CONTAINED_LETTERS = 4
COMPOUND_LETTERS = 3


def choose_keywords(
    words: TopicWords,
    topic_embeddings: np.ndarray,
    embed_words: Callable[[Sequence[str]], np.ndarray],
    settings: TopicModelSettings,
) -> tuple[tuple[str, ...], ...]:
    """Chooses ten keywords for each topic.

    Candidates are the words of highest class-based tf-idf. Among them maximal marginal relevance
    picks words near the topic's embedding and unlike those picked before; forms of one word are
    taken once, unless there are no ten others.

    Args:
        words: Counts by topic.
        topic_embeddings: float32 (K, d), unit length.
        embed_words: Embeds words; each word is embedded once.
        settings: Number of candidates and diversity.

    Returns:
        K tuples of ten words.

    **Source** Sharma and Li 2019 (KeyBERT); Carbonell and Goldstein 1998 (marginal relevance).
    """
    candidates = [ranked[: settings.candidates] for ranked in telling_words(words)]
    needed = np.unique(np.concatenate(candidates))
    vectors = unit_rows(embed_words([words.vocabulary[index] for index in needed]))
    chosen = []
    for topic, columns in enumerate(candidates):
        own = vectors[np.searchsorted(needed, columns)]
        order = by_marginal_relevance(own, topic_embeddings[topic], settings.diversity)
        ranked = [words.vocabulary[columns[place]] for place in order]
        chosen.append(first_distinct(ranked))
    return tuple(chosen)


def telling_words(words: TopicWords) -> Iterator[np.ndarray]:
    """Ranks the vocabulary for each topic by class-based tf-idf: yields (V,) columns.

    The weight of a word is its share of the topic's words times log(1 + A / f), with A the mean
    number of words of a topic and f the word's number of occurrences in all topics.

    **Source** Grootendorst 2022, section 3.3.
    """
    totals = words.counts.sum(axis=0, dtype=np.int64)
    mean_words = totals.sum() / len(words.counts)
    rarity = np.log1p(mean_words / np.maximum(totals, 1))
    for counts in words.counts:
        yield np.argsort(-(counts * rarity), kind="stable")


def by_marginal_relevance(candidates: np.ndarray, topic: np.ndarray, diversity: float) -> list[int]:
    """Orders candidates by nearness to the topic and distance from those already taken.

    Args:
        candidates: float32 (m, d), unit length.
        topic: float32 (d,), unit length.
        diversity: Weight λ of the largest cosine to a taken candidate, in [0, 1]; the cosine to
            the topic weighs 1 - λ.

    Returns:
        The m places, best first.
    """
    relevance = (1 - diversity) * (candidates @ topic)
    similarity = diversity * (candidates @ candidates.T)
    order = [int(relevance.argmax())]
    redundancy = similarity[order[0]]
    left = np.ones(len(candidates), dtype=bool)
    left[order[0]] = False
    while left.any():
        best = int(np.where(left, relevance - redundancy, -np.inf).argmax())
        order.append(best)
        left[best] = False
        redundancy = np.maximum(redundancy, similarity[best])
    return order


def first_distinct(ranked: Sequence[str]) -> tuple[str, ...]:
    """Takes the first ten words that are no forms of one another; then, if short, any others."""
    chosen: list[str] = []
    for word in ranked:
        if len(chosen) < KEYWORDS and not any(same_word(word, other) for other in chosen):
            chosen.append(word)
    chosen += [word for word in ranked if word not in chosen][: KEYWORDS - len(chosen)]
    return tuple(chosen)


def same_word(first: str, second: str) -> bool:
    """Tells whether two words look like forms of one.

    They differ by a plural ending (comedy/comedies); or one begins with the other (film/filmed) or
    is a compound that ends in it (ball/football), but not by a letter or two (rain/train); or they
    share a beginning that makes two thirds of the longer one (director/directed).
    """
    short, long = sorted((first, second), key=len)
    if _singular(first) == _singular(second):
        return True
    if len(short) >= CONTAINED_LETTERS and (
        long.startswith(short)
        or (long.endswith(short) and len(long) - len(short) >= COMPOUND_LETTERS)
    ):
        return True
    stem = max(SAME_STEM_LETTERS, math.ceil(SAME_STEM_SHARE * len(long)))
    return len(short) >= stem and short[:stem] == long[:stem]


def shared_words(words: TopicWords) -> tuple[str, ...]:
    """Finds ten words that all topics use most evenly: highest mean log share over topics."""
    lengths = words.counts.sum(axis=1, keepdims=True)
    shares = (words.counts + 1.0) / (lengths + len(words.vocabulary))
    evenness = np.log(shares).mean(axis=0)
    ranked = np.argsort(-evenness, kind="stable")[: 10 * KEYWORDS]
    return first_distinct([words.vocabulary[column] for column in ranked])


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us")) else word
