"""Surface statistics of a corpus: lengths and their distance, diversity, label mixture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np


def words_per_text(texts: Sequence[str]) -> np.ndarray:
    """Whitespace-separated words of each text: int64 (N,)."""
    return np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))


def length_distance(texts: Sequence[str], other_texts: Sequence[str]) -> float:
    """Computes the 1-Wasserstein distance of the numbers of words, in words.

    Read it as: how many words a text would have to be lengthened or shortened on average to turn
    one distribution into the other. It is the area between their cumulative distributions.

    Raises:
        ValueError: Either side is empty.
    """
    if not texts or not other_texts:
        raise ValueError(f"Expected texts on both sides, got {len(texts)} and {len(other_texts)}.")
    first, second = words_per_text(texts), words_per_text(other_texts)
    lengths = np.unique(np.concatenate([first, second]))
    below = [
        np.searchsorted(np.sort(words), lengths[:-1], side="right") / len(words)
        for words in (first, second)
    ]
    return float(np.sum(np.abs(below[0] - below[1]) * np.diff(lengths)))


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_NGRAMS = 10_000


@dataclass(frozen=True)
class WordLengths:
    """Words a text.

    Attributes:
        mean: Mean number of words; 0 for an empty corpus.
        quantiles: Number of words at each of `QUANTILES`.
    """

    mean: float
    quantiles: dict[float, float] = field(default_factory=dict)


def word_lengths(texts: Sequence[str]) -> WordLengths:
    """Summarises the number of whitespace-separated words a text."""
    lengths = [len(text.split()) for text in texts]
    if not lengths:
        return WordLengths(0.0, dict.fromkeys(QUANTILES, 0.0))
    values = np.quantile(lengths, QUANTILES)
    return WordLengths(
        float(np.mean(lengths)), {q: float(v) for q, v in zip(QUANTILES, values, strict=True)}
    )


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
