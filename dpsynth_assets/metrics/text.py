"""Surface statistics of a corpus: lengths and their distance, diversity, label mixture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from dpsynth_assets.metrics.metric import OF_TEXT, Metric, Need, Sides, Tables

MOST_NGRAMS = 10_000


def words_per_text(texts: Sequence[str]) -> np.ndarray:
    """Whitespace-separated words of each text: int64 (N,)."""
    return np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))


def length_distance(texts: Sequence[str], other_texts: Sequence[str]) -> float:
    """Computes the 1-Wasserstein distance of the numbers of words, in words.

    Read it as: how many words a text would have to be lengthened or shortened on average to turn
    one distribution into the other.

    Raises:
        ValueError: Either side is empty.
    """
    from scipy.stats import wasserstein_distance

    if not texts or not other_texts:
        raise ValueError(f"Expected texts on both sides, got {len(texts)} and {len(other_texts)}.")
    return float(wasserstein_distance(words_per_text(texts), words_per_text(other_texts)))


def distinct_n(texts: Sequence[str], n: int, most_ngrams: int = MOST_NGRAMS) -> float:
    """Share of distinct n-grams among the corpus's first `most_ngrams`, case ignored.

    The share falls as a corpus grows, so it is taken over one number of n-grams for all corpora;
    one with fewer n-grams than that reads as more diverse than it is.

    Args:
        texts: The corpus.
        n: Words an n-gram, at least 1.
        most_ngrams: N-grams read, at least 1.

    Returns:
        A share in [0, 1]; 0 where no text has n words.
    """
    seen = list(islice(_ngrams(texts, n), most_ngrams))
    return len(set(seen)) / len(seen) if seen else 0.0


def _ngrams(texts: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    for text in texts:
        words = text.lower().split()
        yield from zip(*(words[start:] for start in range(n)), strict=False)


def label_distance(labels: Sequence[str], other_labels: Sequence[str]) -> float:
    """Total variation distance of two label distributions, in [0, 1].

    Raises:
        ValueError: Either side is empty.
    """
    if not labels or not other_labels:
        raise ValueError(
            f"Expected labels on both sides, got {len(labels)} and {len(other_labels)}."
        )
    p, q = Counter(labels), Counter(other_labels)
    shares = (abs(p[name] / len(labels) - q[name] / len(other_labels)) for name in p | q)
    return 0.5 * sum(shares)


def _mean_words(sides: Sides) -> float:
    """0 for an empty corpus."""
    words = words_per_text(sides.corpus.texts)
    return float(words.mean()) if len(words) else 0.0


def _distinct(n: int) -> Metric:
    return Metric(
        f"distinct_{n}",
        f"distinct-{n}",
        lambda sides: distinct_n(sides.corpus.texts, n),
        of_real="held-out",
        tables=OF_TEXT,
    )


MEAN_WORDS = Metric(
    "mean_words", "mean words", _mean_words, decimals=1, of_real="held-out", tables=OF_TEXT
)

LENGTH_DISTANCE = Metric(
    "length_distance",
    "length distance (words)",
    lambda sides: length_distance(sides.corpus.texts, sides.held_out.texts),
    less_is_better=True,
    decimals=1,
    least_rows=1,
    tables=Tables("text", "file"),
)

DISTINCT = [_distinct(n) for n in (1, 2, 3)]
"""Shares of distinct words, word pairs and word triples."""

LABEL_DISTANCE = Metric(
    "label_distance",
    "label distance",
    lambda sides: label_distance(sides.corpus.labels, sides.held_out.labels),
    less_is_better=True,
    needs=frozenset({Need.LABELS}),
    least_rows=1,
    tables=OF_TEXT,
)
