"""Rows that are scored where there are more: a random sample in which every label has its share.

A file may be sorted by anything, so its first rows are no sample of it.
"""

from collections.abc import Sequence

import numpy as np


def stratified_rows(labels: Sequence[str], rows: int, seed: int) -> np.ndarray:
    """Draws rows without replacement, of each label in proportion.

    Args:
        labels: N labels; equal ones where there are none to tell apart.
        rows: How many are drawn; all if there are not more.
        seed: Public; equal seeds and labels give equal rows.

    Returns:
        int64 (min(rows, N),) places, ascending.
    """
    if len(labels) <= rows:
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    counts = np.bincount(codes)
    shuffled = generator.permutation(len(labels))
    by_label = shuffled[np.argsort(codes[shuffled], kind="stable")]
    within = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The n-th of a label's rows stands at (n + u) / count: any stretch holds every label's share.
    starts = generator.random(len(counts))
    places = (within + starts[codes[by_label]]) / counts[codes[by_label]]
    return np.sort(by_label[np.argsort(places, kind="stable")[:rows]])
