"""The logit clip of both papers: re-centre to maximum c, floor at −c.

Shape letters: R rows (prompts), V vocabulary, A allowed tokens, C tokens of one block. Works in
blocks of tokens, so that no float64 copy of an (R, V) tensor ever exists.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

BLOCK_ENTRIES = 1 << 21
"""Logits held in float64 at a time: 16 MiB."""

CACHED_ENTRIES = 1 << 16
"""The same on a CPU: 512 KiB, which stay in its cache from one operation to the next."""


def clip_logits(logits: np.ndarray, clip_bound: float) -> np.ndarray:
    """Clips each row: clip_c(z)_i = max(−c, z_i − max_j z_j + c). NumPy oracle in float64.

    Args:
        logits: (..., V).
        clip_bound: c > 0.

    Returns:
        (..., V) in [−c, c]; a row without a finite maximum becomes 0, and NaN cannot spread.

    **Privacy** A function of one row alone, hence of one record alone.

    **Source** Amin et al. 2024, Eq. (1); Amin et al. 2025, below Eq. (1).
    """
    logits = np.asarray(logits, dtype=np.float64)
    maximum = logits.max(axis=-1, keepdims=True)
    usable = np.isfinite(maximum)
    centred = np.where(usable, logits, 0.0) - np.where(usable, maximum, clip_bound)
    return np.maximum(-clip_bound, centred + clip_bound)


def block_columns(rows: int, device: str | None = None) -> int:
    """Tokens of one block for `rows` rows on a type of device; without one, the most anywhere."""
    entries = min(BLOCK_ENTRIES, CACHED_ENTRIES) if device == "cpu" else BLOCK_ENTRIES
    return max(1, entries // max(1, rows))


def column_blocks(
    private_logits: "torch.Tensor",
    allowed: "torch.Tensor | None",
    rows: "torch.Tensor | slice | None" = None,
) -> Iterator[tuple[slice, "torch.Tensor"]]:
    """Yields (slice into the A allowed tokens, (n, C) logits as stored) block by block.

    Args:
        private_logits: (R, V) of any floating type.
        allowed: (A,) int64 token ids, or None for all V tokens.
        rows: (n,) int64 rows to take, a slice of rows, or None for all R rows. Blocks of a slice
            or of all rows are views, not copies.
    """
    if isinstance(rows, slice):
        private_logits, rows = private_logits[rows], None
    tokens = private_logits.shape[1] if allowed is None else len(allowed)
    count = private_logits.shape[0] if rows is None else len(rows)
    width = block_columns(count, private_logits.device.type)
    for start in range(0, tokens, width):
        part = slice(start, min(start + width, tokens))
        if allowed is None:
            block = private_logits[:, part]
            yield part, block if rows is None else block.index_select(0, rows)
        elif rows is None:
            yield part, private_logits.index_select(1, allowed[part])
        else:
            yield part, private_logits[rows.unsqueeze(1), allowed[part]]


def row_maximum(private_logits: "torch.Tensor", allowed: "torch.Tensor | None") -> "torch.Tensor":
    """Computes (R,) float64 maxima over the allowed tokens; NaN where a row holds NaN."""
    import torch

    if allowed is None:
        return private_logits.amax(dim=1).to(torch.float64)
    maximum = torch.full(
        (private_logits.shape[0],), -torch.inf, dtype=torch.float64, device=private_logits.device
    )
    for _, block in column_blocks(private_logits, allowed):
        maximum = torch.maximum(maximum, block.amax(dim=1).to(torch.float64))
    return maximum


def clip_block(block: "torch.Tensor", maximum: "torch.Tensor", clip_bound: float) -> "torch.Tensor":
    """Clips (R, C) logits of rows with finite `maximum` (R,) to float64 in [−c, c]."""
    import torch

    centred = block.to(torch.float64, copy=True)
    return centred.sub_((maximum - clip_bound).unsqueeze(1)).clamp_(min=-clip_bound)


def lower_floor(
    block: "torch.Tensor", maximum: "torch.Tensor", clip_bound: float
) -> "torch.Tensor":
    """Computes (R, 1) thresholds below max − 2c: a logit at or below them clips to the floor.

    They are of the type that comparing with `block` needs, so that no float64 copy is made, and
    lower than exact by more than rounding: some entries above them clip to the floor as well.
    """
    import torch

    exact = maximum - 2.0 * clip_bound
    lowered = exact - 2.0**-20 * (maximum.abs() + 2.0 * clip_bound)
    wanted = torch.promote_types(block.dtype, torch.float32)
    return lowered.to(wanted).unsqueeze(1)
