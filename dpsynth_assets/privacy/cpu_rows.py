"""Work on the rows of a batch on a CPU: NumPy on blocks that stay in a core's own cache.

Beside a small model, choosing a token costs what reading the logits costs: every pass over them
counts, and so does every call on a block. NumPy's calls take a microsecond where a tensor's take
ten, and batches are worked on side by side by as many threads as PyTorch has, each of which does a
whole batch: threads that share an operation wait for one another at its end.

Shape letters: n rows of one batch, V vocabulary, A allowed tokens, C tokens of one block.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dpsynth_assets.privacy.clipping import ROWS_PER_SUM, ClipLattice, block_entries
from dpsynth_assets.privacy.cpu_threads import run_alone

if TYPE_CHECKING:
    import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_SHARED_ENTRIES = 1 << 12
"""Fewer logits than these are not worth waking threads for; PyTorch shares from 2,048 on."""

_LEAST_WIDTH = 512
"""Columns that maxima are taken of, to bound the largest logits of a row, at least."""

_COLUMNS_FOR_EACH = 4
"""Such columns for each of the largest logits: then few others reach the bound."""


def is_plain(logits: "torch.Tensor") -> bool:
    """Says whether NumPy can read the logits as they are: float32 on a CPU."""
    import torch

    return logits.device.type == "cpu" and logits.dtype == torch.float32


def plain_entries(logits: "torch.Tensor") -> int:
    """Counts the logits that a processor's threads may share out; 0 where they are elsewhere."""
    return logits.numel() if is_plain(logits) else 0


def map_on_cpu_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], entries: int
) -> list[_Result]:
    """Maps over batches, on PyTorch's number of threads where `entries` logits are worth it.

    In such a thread PyTorch has one: no operation is shared, and a map within a map opens no other
    threads. A single batch is done in one, too.
    """
    import torch

    threads = torch.get_num_threads()
    if threads < 2 or entries < _SHARED_ENTRIES:
        return [function(item) for item in items]
    return run_alone([partial(function, item) for item in items], threads)


def blocks_of_rows(
    logits: np.ndarray, columns: np.ndarray | None, rows: "torch.Tensor | slice"
) -> Iterator[np.ndarray]:
    """Yields (m, A) blocks of a batch's rows, at most ROWS_PER_SUM rows each; views if possible.

    A block of some columns lasts until the next one, which lies in the same memory.

    Args:
        logits: (R, V) float32.
        columns: (A,) int64 allowed tokens; None for all V.
        rows: Slice of rows, or (n,) int64 indices.
    """
    tokens = logits.shape[1] if columns is None else len(columns)
    count = min(ROWS_PER_SUM, max(1, block_entries("cpu") // max(1, tokens)))
    indices = None if isinstance(rows, slice) else rows.numpy()
    first, stop = (rows.start, rows.stop) if isinstance(rows, slice) else (0, len(rows))
    taken = np.empty((0 if columns is None else min(count, stop - first), tokens), logits.dtype)
    for start in range(first, stop, count):
        part = slice(start, min(start + count, stop))
        block = logits[part if indices is None else indices[part]]
        if columns is not None:  # "clip" lets NumPy write into `out` without a second buffer
            block = np.take(block, columns, axis=1, out=taken[: len(block)], mode="clip")
        yield block


def sums_of_clipped(
    lattice: ClipLattice,
    logits: np.ndarray,
    columns: "Sequence[np.ndarray | None]",
    rows: "Sequence[torch.Tensor | slice]",
) -> tuple[np.ndarray, np.ndarray]:
    """Adds up clipped logits plus c over each of G batches: (G, A) float64, exact.

    Args:
        lattice: Of the clip.
        logits: (R, V) float32.
        columns: For each batch its (A,) int64 allowed tokens; None for all V.
        rows: For each batch its rows, as in `blocks_of_rows`.

    Returns:
        The sums, and (G,) int64 of how many rows each is.
    """
    tokens = logits.shape[1] if not len(columns) or columns[0] is None else len(columns[0])
    floor = np.full(tokens, lattice.lowest, dtype=np.float32)  # as fast as a number is slow
    sums = np.empty((len(rows), tokens))

    def add_up(batch: int) -> int:
        total = sums[batch]
        used = sum_of_units(lattice, logits, columns[batch], rows[batch], floor=floor, out=total)
        total *= lattice.unit  # whole numbers below 2^53 and a power of two: exact
        return used

    used = map_on_cpu_threads(add_up, range(len(rows)), logits.size)
    return sums, np.array(used, dtype=np.int64)


def sum_of_units(
    lattice: ClipLattice,
    logits: np.ndarray,
    columns: np.ndarray | None,
    rows: "torch.Tensor | slice",
    *,
    floor: np.ndarray,
    out: np.ndarray,
) -> int:
    """Adds up the clipped logits of a batch in units, exact; returns of how many rows.

    Every row is read once, which finds its maximum, and is moved, clipped and added in cache. A
    block with rows without a finite maximum is done without them. Bits are added in int32 over at
    most ROWS_PER_SUM rows. Memory of the sums is used again: fresh pages cost more than adding.

    Args:
        lattice: Of the clip.
        logits: As in `blocks_of_rows`.
        columns: Likewise.
        rows: Likewise.
        floor: (A,) float32, `lattice.lowest` throughout.
        out: (A,) float64 that the sums are written into.
    """
    out[:] = 0.0
    placed = np.empty((0, len(out)), dtype=np.float32)
    bits, block_bits = np.zeros(len(out), dtype=np.int32), np.empty(len(out), dtype=np.int32)
    added = used = 0
    for read in blocks_of_rows(logits, columns, rows):
        block, maximum = usable(read, maxima(read))
        placed = np.empty(read.shape, dtype=np.float32) if len(placed) < len(read) else placed
        moved = _placed(block, maximum, lattice, floor, out=placed[: len(block)])
        if added + len(block) > ROWS_PER_SUM:
            out += lattice.units_of_bits(bits, added)
            bits[:], added = 0, 0
        bits += np.add.reduce(moved.view(np.int32), axis=0, dtype=np.int32, out=block_bits)
        added, used = added + len(block), used + len(block)
    out += lattice.units_of_bits(bits, added)
    return used


def largest_columns(logits: np.ndarray, count: int) -> np.ndarray:
    """Lists the columns of the `count` largest logits of each row; of equal ones the first.

    Args:
        logits: (G, A) float32 without NaN.
        count: 1 <= count <= A.

    Returns:
        (G, count) int64, ascending.
    """
    found = np.empty((len(logits), count), dtype=np.int64)
    for own, row in zip(found, logits, strict=True):
        places = _places_of_largest(row, count)
        values = row[places]
        edge = _nth_largest(values, count)
        columns = places[values >= edge]
        if len(columns) > count:
            equal = columns[row[columns] == edge]
            columns = np.setdiff1d(columns, equal[count - len(columns) :], assume_unique=True)
        own[:] = columns
    return found


def nth_largest(row: np.ndarray, count: int) -> np.float32:
    """Finds the `count`-th largest of (A,) float32 logits, 1 <= count <= A; NaN is the largest."""
    return _nth_largest(row[_places_of_largest(row, count)], count)


def _places_of_largest(row: np.ndarray, count: int) -> np.ndarray:
    """Lists ascending places of (A,) logits among which the `count` largest are, and few others.

    A row is folded so that every column has some of its logits: `count` logits reach the `count`-th
    largest maximum of a column, so no logit below it is looked for. A sort or a selection from all
    would take ten times as long.
    """
    width = max(_LEAST_WIDTH, _COLUMNS_FOR_EACH * count)
    folds = len(row) // width
    if folds < 2:
        return np.arange(len(row))
    maximum = np.maximum.reduce(row[: folds * width].reshape(folds, width), axis=0)
    return np.flatnonzero(~(row < _nth_largest(maximum, count)))  # NaN stays


def _nth_largest(values: np.ndarray, count: int) -> np.float32:
    found: np.float32 = np.partition(values, len(values) - count)[len(values) - count]
    return found


def maxima(logits: np.ndarray) -> np.ndarray:
    """Finds the (n,) float32 maxima of (n, A) logits; NaN where a row has one."""
    found: np.ndarray = np.maximum.reduce(logits, axis=1)
    return found


def usable(logits: np.ndarray, maximum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leaves out the rows of (n, A) logits, and the (n,) maxima, that have no finite maximum."""
    finite = np.isfinite(maximum)
    return (logits, maximum) if finite.all() else (logits[finite], maximum[finite])


def _placed(
    block: np.ndarray, maximum: np.ndarray, lattice: ClipLattice, floor: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Computes what `ClipLattice.placed` does: (m, A) in [lowest, highest].

    Rounding may lift a row's maximum, and nothing else of it further, above the upper edge.
    """
    shift = lattice.shift(maximum)
    moved = np.add(block, shift[:, None], out=out)
    if (maximum + shift > np.float32(lattice.highest)).any():
        np.minimum(moved, np.float32(lattice.highest), out=moved)
    return np.maximum(moved, floor, out=moved)
