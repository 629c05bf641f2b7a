"""Order statistics of each column of a matrix of int32 keys, without sorting where that is slower.

Shape letters: n rows, K columns.
"""

from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.clipping import ROWS_PER_SUM

if TYPE_CHECKING:
    import torch


def order_statistics(
    keys: "torch.Tensor", first: int, count: int, *, lowest: int, span: int
) -> "torch.Tensor":
    """Finds the order statistics of ranks first .. first + count − 1 of every column.

    A CPU sorts short columns faster than it can select from them; other devices bisect.

    Args:
        keys: (n, K) int32; overwritten.
        first: Lowest zero-based rank, >= 0.
        count: How many ranks, with first + count <= n.
        lowest: Keys below it count as it (bisection), or stay as they are (sorting).
        span: Keys are at most lowest + span; span < 2^24.

    Returns:
        (count, K) int32, ascending: equal to the sorted keys at those ranks, but for keys below
        `lowest`, which may come out as any number up to it.
    """
    if keys.device.type == "cpu":
        return _by_sorting(keys, first, count)
    return by_bisection(keys, first, count, lowest=lowest, span=span)


def _by_sorting(keys: "torch.Tensor", first: int, count: int) -> "torch.Tensor":
    """Sorts every column in memory where its entries are adjacent, with NumPy's vectorised sort."""
    import torch

    ordered = np.ascontiguousarray(keys.numpy().T)
    ordered.sort(axis=1)
    return torch.from_numpy(np.ascontiguousarray(ordered[:, first : first + count].T))


def by_bisection(
    keys: "torch.Tensor", first: int, count: int, *, lowest: int, span: int
) -> "torch.Tensor":
    """Builds the first rank bit by bit from the number of keys below; steps on to the next ranks.

    The value of rank r is the largest v with at most r keys below v. One pass over the keys finds
    one bit, whatever the keys are: shapes and steps do not depend on them.
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


def rows_above(block: "torch.Tensor", floor: "torch.Tensor") -> "torch.Tensor":
    """Counts in each column of (n, K) logits those above their row's (n, 1) floor: (K,) int32."""
    import torch

    if block.device.type == "cpu" and block.dtype == torch.float32:
        return rows_where(torch.from_numpy(np.greater(block.numpy(), floor.numpy())))
    return rows_where(block > floor)
