"""Order statistics of every column of a batch's float32 logits on a CPU, in cached blocks.

Shape letters: n rows of one batch, A allowed tokens, C tokens of one block, K columns to sort.
"""

import numpy as np

from dpsynth_assets.privacy.clipping import block_entries

_SPARE_COLUMNS = 16
"""Rows of a buffer lie one cache line more than a power of two apart, so columns can be read."""

_TURNED_ENTRIES = 1 << 20
"""Shifted logits that are held at a time on their way to columns: 4 MiB."""

_SAMPLED_COLUMNS = 256
"""Columns that are looked at before deciding whether leaving columns out pays."""

_WORTH_LEAVING_OUT = 0.6
"""Share of columns to sort below which finding them costs less than sorting all."""


def ordered_keys(
    logits: np.ndarray, shift: np.ndarray, *, first: int, count: int, floor: int
) -> np.ndarray:
    """Finds the order statistics of ranks first .. first + count - 1 of every column.

    Args:
        logits: (n, A) float32 whose rows have finite maxima; a view with any row stride.
        shift: (n,) float32 of `ClipLattice.shift`.
        first: Lowest zero-based rank, >= 0.
        count: How many ranks, with first + count <= n.
        floor: `ClipLattice.lowest_key`: bits up to it are one and the same clipped logit.

    Returns:
        (count, A) int32 bits that `ClipLattice.values_of_bits` turns into clipped logits: the clip
        keeps the order, so it waits until the ranks are found.

    Shifted rows are read off a buffer column by column into blocks in which a column's entries are
    adjacent; NumPy's vectorised sort of these is faster than selecting from them. Columns whose
    ranks are all the floor are left unsorted where they seem to be many.
    """
    rows, tokens = logits.shape
    width = max(1, min(tokens, block_entries("cpu") // 2 // max(1, rows)))
    wide = max(width, min(tokens, _TURNED_ENTRIES // max(1, rows)))
    buffer = np.empty((rows, wide + _SPARE_COLUMNS), dtype=np.float32)
    turned = np.empty((width, rows), dtype=np.int32)
    found = np.full((count, tokens), floor, dtype=np.int32)
    needed = rows - first - count + 1
    for left in range(0, tokens, wide):
        part = logits[:, left : left + wide]
        moved = np.add(part, shift[:, None], out=buffer[:, : part.shape[1]]).view(np.int32)
        ranks = found[:, left : left + part.shape[1]]
        if _few_exceed(moved, floor, needed):
            _rank_some(moved, np.flatnonzero(_counts_above(moved, floor) >= needed), first, ranks)
        else:
            _rank_all(moved, turned, first, ranks)
    return found


def _few_exceed(keys: np.ndarray, floor: int, needed: int) -> bool:
    """Guesses from some columns of (n, C) keys whether half have fewer than `needed` above."""
    sample = keys[:, :: max(1, keys.shape[1] // _SAMPLED_COLUMNS)]
    return bool(np.mean(_counts_above(sample, floor) >= needed) < _WORTH_LEAVING_OUT)


def _counts_above(keys: np.ndarray, floor: int) -> np.ndarray:
    """Counts in each column of (n, C) keys those above the floor: (C,) int64."""
    above = np.greater(keys, np.int32(floor)).view(np.uint8)
    parts = [above[start : start + 255] for start in range(0, len(above), 255)]
    total = np.zeros(keys.shape[1], dtype=np.int64)
    for part in parts:  # bytes of at most 255 rows do not overflow
        total += np.add.reduce(part, axis=0, dtype=np.uint8)
    return total


def _rank_all(keys: np.ndarray, turned: np.ndarray, first: int, ranks: np.ndarray) -> None:
    """Writes ranks from `first` on of every column of (n, C) keys into (count, C), in blocks."""
    count, width = len(ranks), len(turned)
    for start in range(0, keys.shape[1], width):
        columns = keys[:, start : start + width].T
        block = turned[: len(columns)]
        np.copyto(block, columns)
        block.sort(axis=1)
        ranks[:, start : start + width] = block[:, first : first + count].T


def _rank_some(keys: np.ndarray, columns: np.ndarray, first: int, ranks: np.ndarray) -> None:
    """Does what `_rank_all` does for (K,) columns and leaves the others as they are."""
    count = len(ranks)
    width = max(1, block_entries("cpu") // 2 // max(1, len(keys)))
    for start in range(0, len(columns), width):
        own = columns[start : start + width]
        block = keys.T[own]
        block.sort(axis=1)
        ranks[:, own] = block[:, first : first + count].T
