"""The box in which a neighbour's component-wise median of clipped logits must lie.

Shape letters: n rows of one batch, A allowed tokens, C tokens of one block. K logit vectors enter
or leave between neighbours.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.privacy.clipping import ClipLattice, block_columns, lower_floor
from dpsynth_assets.privacy.cpu_rows import is_plain, maxima, usable
from dpsynth_assets.privacy.order_statistics import order_statistics, ordered_keys, rows_above

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

    if is_plain(private_logits):
        return torch.from_numpy(_box_on_a_cpu(private_logits.numpy(), lattice, changes))
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


def _box_on_a_cpu(private_logits: np.ndarray, lattice: ClipLattice, changes: int) -> np.ndarray:
    """Does what `private_median_box` does with float32 logits in an array, in cached blocks."""
    logits, maximum = usable(private_logits, maxima(private_logits))
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
    if float((rows_above(sample, floor) >= needed).double().mean()) > 0.5:
        return _box_of_columns(block, maximum, lattice, changes)
    kept = (rows_above(block, floor) >= needed).nonzero().squeeze(1)
    box = maximum.new_full((3, block.shape[1]), -lattice.clip_bound)
    box[:, kept] = _box_of_columns(block.index_select(1, kept), maximum, lattice, changes)
    return box


def _box_of_columns(
    block: "torch.Tensor", maximum: "torch.Tensor", lattice: ClipLattice, changes: int
) -> "torch.Tensor":
    """Reads (3, C) off the order statistics of (n, C) logits on the lattice."""
    first, count = _ranks_inside(len(block), changes)
    values = maximum.new_empty((0, block.shape[1]))
    if count:
        keys = _keys(block, lattice, maximum)
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


def _keys(block: "torch.Tensor", lattice: ClipLattice, maximum: "torch.Tensor") -> "torch.Tensor":
    """Turns (n, C) logits into int32 that order as the clipped logits do.

    On a CPU a column's entries become adjacent in memory and the clip waits until order statistics
    are found: it keeps the order.
    """
    import torch

    shift = lattice.shift_of(maximum)
    if block.device.type != "cpu":
        return lattice.placed(block, shift).view(torch.int32)
    columns = torch.from_numpy(np.array(block.float().numpy().T, order="C"))
    return columns.add_(shift).view(torch.int32).T


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
