"""Work on the rows of a batch on a CPU: NumPy on blocks that stay in a core's own cache.

Beside a small model, choosing a token costs what reading the logits costs: every pass over them
counts, and so does every call on a block. NumPy's calls take a microsecond where a tensor's take
ten, and batches are worked on side by side by as many threads as PyTorch has.

Shape letters: n rows of one batch, V vocabulary, A allowed tokens, C tokens of one block.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dpsynth_assets.privacy.clipping import ROWS_PER_SUM, ClipLattice, block_entries

if TYPE_CHECKING:
    import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_SHARED_ENTRIES = 1 << 20
"""Fewer logits than these are not worth starting threads for."""

_SPARE_COLUMNS = 16
"""Rows of a buffer lie one cache line more than a power of two apart, so columns can be read."""

_TURNED_ENTRIES = 1 << 20
"""Shifted logits that are held at a time on their way to columns: 4 MiB."""


def is_plain(logits: "torch.Tensor") -> bool:
    """Says whether NumPy can read the logits as they are: float32 on a CPU."""
    import torch

    return logits.device.type == "cpu" and logits.dtype == torch.float32


def side_by_side(
    function: Callable[[_Item], _Result], items: Sequence[_Item], entries: int
) -> list[_Result]:
    """Maps over batches, on PyTorch's number of threads where `entries` logits are worth it.

    Threads end with the call: a process that forks between tokens takes none along.
    """
    import torch

    threads = min(torch.get_num_threads(), len(items))
    if threads < 2 or entries < _SHARED_ENTRIES:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def blocks_of_rows(
    logits: np.ndarray, columns: np.ndarray | None, rows: "torch.Tensor | slice"
) -> Iterator[np.ndarray]:
    """Yields (m, A) blocks of a batch's rows, at most ROWS_PER_SUM rows each; views if possible.

    Args:
        logits: (R, V) float32.
        columns: (A,) int64 allowed tokens; None for all V.
        rows: Slice of rows, or (n,) int64 indices.
    """
    tokens = logits.shape[1] if columns is None else len(columns)
    count = min(ROWS_PER_SUM, max(1, block_entries("cpu") // max(1, tokens)))
    indices = None if isinstance(rows, slice) else rows.numpy()
    first, stop = (rows.start, rows.stop) if isinstance(rows, slice) else (0, len(rows))
    for start in range(first, stop, count):
        part = slice(start, min(start + count, stop))
        block = logits[part if indices is None else indices[part]]
        yield block if columns is None else np.take(block, columns, axis=1)


def sum_of_units(
    lattice: ClipLattice,
    logits: np.ndarray,
    columns: np.ndarray | None,
    rows: "torch.Tensor | slice",
) -> tuple[np.ndarray, int]:
    """Adds up the clipped logits of a batch in units: (A,) float64, exact, and of how many rows.

    Arguments as in `blocks_of_rows`. Every row is read once, which finds its maximum, and is moved,
    clipped and added in cache. A block with rows without a finite maximum is done without them.
    """
    tokens = logits.shape[1] if columns is None else len(columns)
    total, used = np.zeros(tokens), 0
    placed = np.empty((0, tokens), dtype=np.float32)
    floor = np.full(tokens, lattice.lowest, dtype=np.float32)  # as fast as a number is slow
    for read in blocks_of_rows(logits, columns, rows):
        block, maximum = _usable(read)
        placed = np.empty_like(read, order="C") if len(placed) < len(read) else placed
        moved = _placed(block, maximum, lattice, floor, out=placed[: len(block)])
        bits = np.add.reduce(moved.view(np.int32), axis=0, dtype=np.int32)
        total += lattice.units_of_bits(bits, len(block))
        used += len(block)
    return total, used


def _usable(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the (m,) maxima of (n, A) logits; rows without a finite one are left out."""
    maximum = np.maximum.reduce(block, axis=1)
    usable = np.isfinite(maximum)
    return (block, maximum) if usable.all() else (block[usable], maximum[usable])


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


def ordered_keys(logits: np.ndarray, shift: np.ndarray, *, first: int, count: int) -> np.ndarray:
    """Finds the order statistics of ranks first .. first + count - 1 of every column.

    Args:
        logits: (n, A) float32 whose rows have finite maxima; a view with any row stride.
        shift: (n,) float32 of `ClipLattice.shift`.
        first: Lowest zero-based rank, >= 0.
        count: How many ranks, with first + count <= n.

    Returns:
        (count, A) int32 bits that `ClipLattice.values` turns into clipped logits: the clip keeps
        the order, so it waits until the ranks are found.

    Shifted rows are read off a buffer column by column into blocks in which a column's entries are
    adjacent; NumPy's vectorised sort of these is faster than selecting from them.
    """
    rows, tokens = logits.shape
    width = max(1, min(tokens, block_entries("cpu") // 2 // max(1, rows)))
    wide = max(width, min(tokens, _TURNED_ENTRIES // max(1, rows)))
    moved = np.empty((rows, wide + _SPARE_COLUMNS), dtype=np.float32)[:, :wide]
    turned = np.empty((width, rows), dtype=np.float32)
    found = np.empty((count, tokens), dtype=np.int32)
    for left in range(0, tokens, wide):
        part = logits[:, left : left + wide]
        np.add(part, shift[:, None], out=moved[:, : part.shape[1]])
        for start in range(0, part.shape[1], width):
            columns = moved[:, start : min(start + width, part.shape[1])].T
            keys = turned[: len(columns)].view(np.int32)
            np.copyto(keys, columns.view(np.int32))
            keys.sort(axis=1)
            found[:, left + start : left + start + len(keys)] = keys[:, first : first + count].T
    return found
