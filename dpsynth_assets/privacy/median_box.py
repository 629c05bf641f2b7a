"""The box in which a neighbour's component-wise median of clipped logits must lie.

It is read off order statistics of each column of int32 keys, without sorting where that is slower.
Columns of float32 logits on a CPU are read in blocks that fit its cache.

Shape letters: n rows of one batch, A allowed tokens, C tokens of one block, K columns to sort. K
logit vectors enter or leave between neighbours.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.privacy.clipping import (
    ROWS_PER_SUM,
    ClipLattice,
    block_columns,
    block_entries,
    lower_floor,
)
from dpsynth_assets.privacy.cpu import is_plain, maxima, usable

if TYPE_CHECKING:
    import torch

_SAMPLED_COLUMNS = 256
"""Columns that are looked at before deciding whether leaving columns out pays."""


def private_median_box(
    private_logits: "torch.Tensor", lattice: ClipLattice, changes: int
) -> "torch.Tensor":
    """Computes (3, A) float64 left bound, median and right bound of (n, A) logits, clipped.

    Rows without a finite maximum take no part. Order statistics are exact on the lattice.

    **Privacy** Private: only a draw from the median may leave.
    """
    import torch

    if private_logits.device.type == "cpu":
        return torch.from_numpy(_box_on_a_cpu(private_logits, lattice, changes))
    return _box_on_a_device(private_logits, lattice, changes)


def _box_on_a_device(
    private_logits: "torch.Tensor", lattice: ClipLattice, changes: int
) -> "torch.Tensor":
    """Does what `private_median_box` does, by operations that devices are fast at."""
    import torch

    maximum = private_logits.amax(dim=1).to(torch.float64)
    finite = torch.isfinite(maximum)
    if not bool(finite.all()):
        private_logits, maximum = private_logits[finite], maximum[finite]
    box = maximum.new_empty((3, private_logits.shape[1]))
    width = block_columns(len(private_logits), private_logits.device.type)
    for start in range(0, private_logits.shape[1], width):
        part = slice(start, start + width)
        box[:, part] = _box_of_block(private_logits[:, part], maximum, lattice, changes)
    return box


def _box_on_a_cpu(private_logits: "torch.Tensor", lattice: ClipLattice, changes: int) -> np.ndarray:
    """Does what `private_median_box` does in an array, in cached blocks."""
    stored = private_logits.float().numpy()
    plain = is_plain(private_logits)
    highest = maxima(stored) if plain else private_logits.amax(dim=1).double().numpy()
    logits, maximum = usable(stored, highest)
    rows, tokens = logits.shape
    first, count = _ranks_inside(rows, changes)
    values = np.empty((0, tokens))
    if count:
        shift, floor = lattice.shift(maximum), lattice.lowest_key
        keys = ordered_keys(logits, shift, first=first, count=count, floor=floor)
        values = lattice.values_of_bits(keys)
    box = np.empty((3, tokens))
    _fill_box(box, values, first, rows, lattice.clip_bound, changes)
    return box


def rank_window(rows: int, changes: int) -> tuple[int, int, int]:
    """Finds which order statistics bound the median of a neighbour.

    Args:
        rows: n >= 0 values.
        changes: K >= 1 values that may enter or leave.

    Returns:
        Zero-based lowest and highest rank among the n values with p copies of −c and p of +c
        put around them, and p itself. Padding leaves the median as it is and gives n = 0 the
        median 0.

    **Privacy** Let the median sit at rank (N − 1)/2 of N sorted values, half ranks meaning the
    mean of two neighbours. It grows with every value, so it falls most when values that enter
    are −c and values that leave are the largest; each then moves it by half a rank. Hence K
    changes keep it between ranks (N − 1 − K)/2 and (N − 1 + K)/2. For replace-one, K = 2.
    """
    padding = changes // 2 + 1
    total = rows + 2 * padding
    return (total - 1 - changes) // 2, (total + changes) // 2, padding


def _box_of_block(
    block: "torch.Tensor", maximum: "torch.Tensor", lattice: ClipLattice, changes: int
) -> "torch.Tensor":
    """Computes (3, C) of (n, C) logits; columns where all three are the floor go unsorted."""
    _, highest, padding = rank_window(len(block), changes)
    needed = len(block) + padding - highest
    # [amin2025 A1:L7] all three are the floor unless `needed` entries exceed it
    floor = lower_floor(maximum, lattice.clip_bound)
    sample = block[:, :: max(1, block.shape[1] // _SAMPLED_COLUMNS)]
    if float((rows_where(sample > floor) >= needed).double().mean()) > 0.5:
        return _box_of_columns(block, maximum, lattice, changes)
    kept = (rows_where(block > floor) >= needed).nonzero().squeeze(1)
    box = maximum.new_full((3, block.shape[1]), -lattice.clip_bound)
    box[:, kept] = _box_of_columns(block.index_select(1, kept), maximum, lattice, changes)
    return box


def _box_of_columns(
    block: "torch.Tensor", maximum: "torch.Tensor", lattice: ClipLattice, changes: int
) -> "torch.Tensor":
    """Reads (3, C) off the order statistics of (n, C) logits on the lattice."""
    import torch

    first, count = _ranks_inside(len(block), changes)
    values = maximum.new_empty((0, block.shape[1]))
    if count:
        keys = lattice.placed(block, lattice.shift_of(maximum)).view(torch.int32)
        lowest, span = lattice.lowest_key, lattice.span
        values = lattice.values(order_statistics(keys, first, count, lowest=lowest, span=span))
    box = maximum.new_empty((3, block.shape[1]))
    _fill_box(box, values, first, len(block), lattice.clip_bound, changes)
    return box


def _ranks_inside(rows: int, changes: int) -> tuple[int, int]:
    """Finds the first of the n values' ranks that the medians read, and how many they read."""
    lowest, highest, padding = rank_window(rows, changes)
    first, last = max(0, lowest - padding), min(rows - 1, highest - padding)
    return first, max(0, last - first + 1)


def _fill_box(
    box: Any, values: Any, first: int, rows: int, clip_bound: float, changes: int
) -> None:
    """Writes left bound, median and right bound of n values into (3, C), a tensor or an array.

    `values` are those from rank `first` on, (count, C), of the same kind.
    """
    _, _, padding = rank_window(rows, changes)
    total = rows + 2 * padding

    def at(rank: int) -> Any:
        inside = rank - padding
        if 0 <= inside < rows:
            return values[inside - first]
        return clip_bound if inside >= 0 else -clip_bound

    # [amin2025 D3] half ranks: rank r/2 is the mean of ranks ⌊r/2⌋ and ⌈r/2⌉
    for line, half in enumerate((total - 1 - changes, total - 1, total - 1 + changes)):
        box[line] = (at(half // 2) + at((half + 1) // 2)) / 2 if half % 2 else at(half // 2)


def order_statistics(
    keys: "torch.Tensor", first: int, count: int, *, lowest: int, span: int
) -> "torch.Tensor":
    """Finds the order statistics of ranks first .. first + count − 1 of every column.

    Builds the first rank bit by bit from the number of keys below; steps on to the next ranks. The
    value of rank r is the largest v with at most r keys below v. One pass over the keys finds one
    bit, for any keys: shapes and steps do not depend on them.

    Args:
        keys: (n, K) int32; those below `lowest` count as it.
        first: Lowest zero-based rank, >= 0.
        count: How many ranks, with first + count <= n.
        lowest: The least key.
        span: Keys are at most lowest + span; span < 2^24.

    Returns:
        (count, K) int32, ascending.
    """
    import torch

    value = torch.full(keys.shape[1:], lowest, dtype=torch.int32, device=keys.device)
    for bit in range(span.bit_length() - 1, -1, -1):
        candidate = value + (1 << bit)
        value = torch.where(rows_where(keys < candidate) <= first, candidate, value)
    found = [value]
    for rank in range(first + 1, first + count):
        above = keys > value
        following = torch.where(above, keys, torch.iinfo(torch.int32).max).amin(dim=0)
        value = torch.where(len(keys) - rows_where(above) > rank, value, following)
        found.append(value)
    return torch.stack(found)


def rows_where(mask: "torch.Tensor") -> "torch.Tensor":
    """Counts True in each column of (n, K): (K,) int32. Bytes are added without a wider copy."""
    import torch

    counts = torch.zeros(mask.shape[1], dtype=torch.int32, device=mask.device)
    for part in mask.view(torch.uint8).split(ROWS_PER_SUM):
        counts += torch.sum(part, dim=0, dtype=torch.uint8)
    return counts


_SPARE_COLUMNS = 16
"""Rows of a buffer lie one cache line more than a power of two apart, so columns can be read."""

_TURNED_ENTRIES = 1 << 20
"""Shifted logits that are held at a time on their way to columns: 4 MiB."""

_WORTH_LEAVING_OUT = 0.6
"""Share of columns to sort below which finding them costs less than sorting all."""

_FEW_ROWS = 16
"""Rows up to which a sorting network takes less time than a sort of every column."""

_NETWORK_COLUMNS = 1 << 13
"""Columns that a sorting network works on at a time: 512 KiB of _FEW_ROWS rows."""


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

    Few rows pass a sorting network, in which all columns take a step at once. Else shifted rows are
    read off a buffer column by column into blocks in which a column's entries are adjacent; NumPy's
    vectorised sort of these is faster than selecting from them. Columns whose ranks are all the
    floor are left unsorted where they seem to be many.
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
        if rows <= _FEW_ROWS:
            _rank_few_rows(moved, first, ranks)
        elif _few_exceed(moved, floor, needed):
            _rank_some(moved, np.flatnonzero(_counts_above(moved, floor) >= needed), first, ranks)
        else:
            _rank_all(moved, turned, first, ranks)
    return found


def _rank_few_rows(keys: np.ndarray, first: int, ranks: np.ndarray) -> None:
    """Does what `_rank_all` does by a sorting network; overwrites the keys.

    Each step compares two rows entry by entry and leaves the smaller entries in the first.
    """
    spare = np.empty(_NETWORK_COLUMNS, dtype=np.int32)
    for start in range(0, keys.shape[1], _NETWORK_COLUMNS):
        own = slice(start, start + _NETWORK_COLUMNS)
        rows = list(keys[:, own])
        free = spare[: len(rows[0])]
        for low, high in sorting_network(len(rows)):
            np.minimum(rows[low], rows[high], out=free)
            np.maximum(rows[low], rows[high], out=rows[high])
            rows[low], free = free, rows[low]
        ranks[:, own] = rows[first : first + len(ranks)]


@cache
def sorting_network(rows: int) -> tuple[tuple[int, int], ...]:
    """Lists pairs of places; to order each pair in turn, the smaller first, sorts any numbers.

    **Source** Batcher 1968, odd-even merge sort of a power of two of places, without the pairs that
    reach beyond the last one: there they would find nothing smaller.
    """
    pairs = []
    merged = 1
    while merged < rows:
        apart = merged
        while apart:
            pairs += [
                (low, low + apart)
                for start in range(apart % merged, rows - apart, 2 * apart)
                for low in range(start, min(start + apart, rows - apart))
                if low // (2 * merged) == (low + apart) // (2 * merged)
            ]
            apart //= 2
        merged *= 2
    return tuple(pairs)


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
