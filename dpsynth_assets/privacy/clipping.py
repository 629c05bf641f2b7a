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


def block_columns(rows: int) -> int:
    """Tokens of one block for `rows` rows."""
    return max(1, BLOCK_ENTRIES // max(1, rows))


def column_blocks(
    private_logits: "torch.Tensor",
    allowed: "torch.Tensor | None",
    rows: "torch.Tensor | None" = None,
) -> Iterator[tuple[slice, "torch.Tensor"]]:
    """Yields (slice into the A allowed tokens, (n, C) logits as stored) block by block.

    Args:
        private_logits: (R, V) of any floating type.
        allowed: (A,) int64 token ids, or None for all V tokens.
        rows: (n,) int64 rows to take, or None for all R rows.
    """
    tokens = private_logits.shape[1] if allowed is None else len(allowed)
    width = block_columns(private_logits.shape[0] if rows is None else len(rows))
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
