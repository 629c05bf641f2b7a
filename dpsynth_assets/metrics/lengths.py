"""Distance between the length distributions of two corpora, in words."""

from collections.abc import Sequence

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
