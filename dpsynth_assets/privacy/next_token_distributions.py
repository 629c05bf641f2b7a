"""Next-token distributions of many rows at temperature 1, and their sums.

Shape letters: n rows looked at, V vocabulary, A allowed tokens, C tokens of one block.
"""

from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.clipping import row_blocks
from dpsynth_assets.privacy.cpu_rows import blocks_of_rows, is_plain, maxima

if TYPE_CHECKING:
    import torch

DISTRIBUTIONS_PER_SUM = 8
"""Distributions added in float32, in one matrix product, before their sums are in float64."""

_SAFE_TOTAL = (1e-20, 1e30)
"""Sums of plain exponentials between which float32 neither overflows nor loses digits."""

_GLIMPSE = 16
"""Tokens that a row's level is guessed from: one line of a cache."""

_FAR_FROM_ZERO = 20.0
"""Levels beyond it are taken off before exponentials are."""


def next_token_distributions(
    block: "torch.Tensor", columns: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Computes (n, A) float32 softmax of each row; zeros where the maximum is not finite.

    One exponential an entry. Rows whose plain exponentials leave the safe range are shifted by
    their maximum first; whether one is depends on that row alone.
    """
    import torch

    block = block if columns is None else block.index_select(1, columns)
    block = block.to(torch.float32)
    weights = torch.exp(block)
    total = weights.sum(dim=1)
    shifted = ~((total > _SAFE_TOTAL[0]) & (total < _SAFE_TOTAL[1]))
    if bool(shifted.any()):
        own = block[shifted]
        maximum = own.amax(dim=1, keepdim=True)
        own = torch.exp(own - maximum).masked_fill_(~torch.isfinite(maximum), 0.0)
        weights[shifted], total[shifted] = own, own.sum(dim=1).clamp_(min=1.0)
    return weights.mul_(total.reciprocal_().unsqueeze(1))


def sum_of_distributions(
    private_logits: "torch.Tensor",
    columns: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
    most_in_float32: float,
) -> "torch.Tensor":
    """Adds up the distributions of a batch's rows: (A,) float64.

    Rows without a finite maximum add nothing.
    Up to `most_in_float32` rows a CPU adds DISTRIBUTIONS_PER_SUM distributions in float32.
    """
    import torch

    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    if is_plain(private_logits) and count <= most_in_float32:
        return _sum_on_a_cpu(private_logits, columns, rows)
    tokens = private_logits.shape[1] if columns is None else len(columns)
    summed = torch.zeros(tokens, dtype=torch.float64, device=private_logits.device)
    for block in row_blocks(private_logits, columns, rows):
        summed += sum_in_float64(next_token_distributions(block))
    return summed


def _sum_on_a_cpu(
    private_logits: "torch.Tensor",
    columns: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
) -> "torch.Tensor":
    """Divides by the totals and adds DISTRIBUTIONS_PER_SUM at once, in one product, in cache.

    Rows whose exponentials leave the safe range are left to `next_token_distributions`, and no
    others: a row's distribution must not depend on the other rows of its block.
    """
    import torch

    tokens = private_logits.shape[1] if columns is None else len(columns)
    summed, buffer = np.zeros(tokens), torch.empty((0, tokens))
    own = None if columns is None else columns.numpy()
    for logits in blocks_of_rows(private_logits.numpy(), own, rows):
        buffer = torch.empty(logits.shape) if len(buffer) < len(logits) else buffer
        weights = _exponentials(logits, out=buffer[: len(logits)])
        total = weights.sum(dim=1).numpy()
        if not (_SAFE_TOTAL[0] < total.min() and total.max() < _SAFE_TOTAL[1]):
            unsafe = ~((total > _SAFE_TOTAL[0]) & (total < _SAFE_TOTAL[1]))
            weights[torch.from_numpy(unsafe)] = next_token_distributions(
                torch.from_numpy(logits[unsafe])
            )
            total[unsafe] = 1.0
        shares = torch.from_numpy(np.reciprocal(total))
        for start in range(0, len(logits), DISTRIBUTIONS_PER_SUM):
            part = slice(start, start + DISTRIBUTIONS_PER_SUM)
            summed += torch.mv(weights[part].T, shares[part]).numpy()
    return torch.from_numpy(summed)


def _exponentials(logits: np.ndarray, out: "torch.Tensor") -> "torch.Tensor":
    """Computes (n, A) float32 exp(z), of rows that lie far from zero exp(z − level).

    Some models' logits lie around -100, where exponentials are too small for normal floats and a
    processor takes a hundred times as long. A row's level is the largest of its first logits: a
    function of that row alone, and a row that stays as it is loses no bit to a neighbour's.
    """
    import torch

    level = maxima(logits[:, :_GLIMPSE])
    if level.min() >= -_FAR_FROM_ZERO and level.max() <= _FAR_FROM_ZERO:
        return torch.exp(torch.from_numpy(logits), out=out)
    far = (np.abs(level) > _FAR_FROM_ZERO) & np.isfinite(level)
    np.subtract(logits, np.where(far, level, np.float32(0.0))[:, None], out=out.numpy())
    return out.exp_()


def sum_in_float64(block: "torch.Tensor") -> "torch.Tensor":
    """Adds up (n, A) float32 rows in float64: (A,). A CPU does it without a float64 copy."""
    import torch

    if block.device.type == "cpu":
        return torch.from_numpy(np.add.reduce(block.numpy(), axis=0, dtype=np.float64))
    return block.sum(dim=0, dtype=torch.float64)
