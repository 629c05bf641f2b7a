"""Plain statistics of texts: lengths in words, distinct n-grams, label shares."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

LENGTH_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def word_counts(texts: Sequence[str]) -> np.ndarray:
    """Number of white-space separated words of each text, int64 (N,)."""
    return np.array([len(text.split()) for text in texts], dtype=np.int64)


def length_quantiles(texts: Sequence[str]) -> list[float]:
    """Words at the 5th, 25th, 50th, 75th and 95th percentile; empty without texts."""
    return np.quantile(word_counts(texts), LENGTH_QUANTILES).tolist() if len(texts) else []


def length_distance(texts: Sequence[str], other_texts: Sequence[str]) -> float:
    """Wasserstein-1 distance of the two length distributions, in words."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(word_counts(texts), word_counts(other_texts)))


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Distinct n-grams divided by all n-grams; depends on the number of texts, so fix it.

    Args:
        texts: Texts; words are lower-cased and split at white space.
        n: Words of an n-gram, at least 1.
    """
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        words = text.lower().split()
        grams = list(zip(*(words[offset:] for offset in range(n)), strict=False))
        seen.update(grams)
        total += len(grams)
    return len(seen) / total if total else 0.0


def label_distance(labels: Sequence[str], other_labels: Sequence[str]) -> float:
    """Total variation distance of two label distributions, in [0, 1]."""
    if not len(labels) or not len(other_labels):
        raise ValueError("Expected labels on both sides, got none on one.")
    left, right = Counter(labels), Counter(other_labels)
    gaps = (
        abs(left[label] / len(labels) - right[label] / len(other_labels))
        for label in left.keys() | right.keys()
    )
    return sum(gaps) / 2
