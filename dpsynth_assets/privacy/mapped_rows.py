"""Rows of an array in memory or in a mapped file, read a window at a time."""

import mmap
from collections.abc import Iterator

import numpy as np

WINDOW_ROWS = 32_768
"""Rows read at a time: 50 MB at d = 384."""


def windows(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields (n, d) rows as contiguous float32, in their order, with their places.

    A mapped file is read once, and the system may drop its pages once the next window is asked
    for, so that memory stays bounded.
    """
    for start in range(0, len(rows), WINDOW_ROWS):
        window = slice(start, min(start + WINDOW_ROWS, len(rows)))
        copied = True if is_mapped(rows) else None
        with np.errstate(all="ignore"):  # A warning would tell that a private row is broken.
            read = np.array(rows[window], dtype=np.float32, order="C", copy=copied)
        yield window, read
        _give_pages_back(rows)


def is_mapped(rows: np.ndarray) -> bool:
    """Says whether an array lies in a mapped file."""
    return _mapping(rows) is not None


def _give_pages_back(rows: np.ndarray) -> None:
    mapping = _mapping(rows)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(rows: np.ndarray) -> mmap.mmap | None:
    owner: object = rows
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None
