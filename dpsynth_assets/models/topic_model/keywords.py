"""Ten keywords of each topic: telling for it, near its embedding and unlike one another.

Shapes: K topics, V words of the vocabulary, m candidates, d dimensions.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dpsynth_assets.models.topic_model.nearest import unit_rows
from dpsynth_assets.models.topic_model.settings import KEYWORDS, TopicModelSettings
from dpsynth_assets.models.topic_model.words import TopicWords

EMBEDDED_AT_ONCE = 4_096
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
    vectors = _embedded([words.vocabulary[index] for index in needed], embed_words)
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


def _embedded(
    words: Sequence[str], embed_words: Callable[[Sequence[str]], np.ndarray]
) -> np.ndarray:
    starts = range(0, len(words), EMBEDDED_AT_ONCE)
    parts = [embed_words(words[start : start + EMBEDDED_AT_ONCE]) for start in starts]
    return unit_rows(np.concatenate(parts))
