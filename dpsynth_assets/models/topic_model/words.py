"""Counts the words of each topic's documents in bounded memory.

Shapes: N documents, K topics, V words of the vocabulary. Words are those of any language that
separates them; the stop words are English, those of other languages are left to class-based tf-idf.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dpsynth_assets.models.topic_model.density import NOISE
from dpsynth_assets.models.topic_model.settings import KEYWORDS, TopicModelSettings

MAX_DISTINCT_WORDS = 1_000_000
"""Words held at once while the vocabulary is counted; beyond, those seen once are forgotten."""

SMALL_CORPUS_SHARE = 0.01
CHUNK_DOCUMENTS = 1_024

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
    cells: list[int] = []
    for number, (topic, words) in enumerate(_counted(texts, topics, settings)):
        row = topic * len(vocabulary)
        cells += [row + column[word] for word in words if word in column]
        if number % CHUNK_DOCUMENTS == CHUNK_DOCUMENTS - 1:
            np.add.at(counts.reshape(-1), cells, 1)
            cells = []
    np.add.at(counts.reshape(-1), np.asarray(cells, dtype=np.int64), 1)
    return TopicWords(vocabulary, counts)


def _counted(
    texts: Iterable[str], topics: np.ndarray, settings: TopicModelSettings
) -> Iterator[tuple[int, list[str]]]:
    """Yields topic and words of each document that is counted."""
    rows = 0
    for rows, text in enumerate(texts, start=1):
        if rows <= len(topics) and topics[rows - 1] != NOISE:
            yield int(topics[rows - 1]), words_of(text, settings.keyword_words)
    if rows != len(topics):
        raise ValueError(
            f"Expected one text for each embedding, got {rows} texts for {len(topics)}."
        )


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
