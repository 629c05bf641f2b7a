"""Per-record gradient clipping whose sum keeps its sensitivity in floating point.

Shape letters: B records of one batch, P numbers of one parameter.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CLIP_MARGIN = 2.0**-20
"""Share of the bound kept back, so that rounding cannot push a sum beyond its sensitivity."""

BLOCK_ENTRIES = 1 << 20
"""Gradient entries that are converted to float64 at a time: 8 MiB."""


def add_clipped(
    private_sums: Sequence["torch.Tensor"],
    private_gradients: Sequence["torch.Tensor"],
    l2_bound: float,
) -> int:
    """Clips each record's gradient over all parameters jointly and adds it to float64 sums.

    Args:
        private_sums: (*shape) float64 for each parameter; changed in place.
        private_gradients: (B, *shape) for each parameter.
        l2_bound: C > 0.

    Returns:
        B. A record whose gradient has NaN, infinity or a norm beyond 1e154 adds zero.

    Raises:
        ValueError: If the shapes disagree.

    **Privacy** One record moves the exact sum by at most C (1 − 2^-20). Norms and sums are
    float64 whatever the gradients are; rounding moves the sum of B records by at most
    2 B² 2^-53 C more, which the margin covers up to B = 2^16. In float32 it would not.
    """
    rows = _rows(private_sums, private_gradients)
    scales, usable = _clip_scales(private_gradients, rows, l2_bound)
    for private_sum, gradients in zip(private_sums, private_gradients, strict=True):
        total = private_sum.view(-1)
        for part, block in _float64_blocks(gradients, rows):
            block[~usable.to(block.device)] = 0.0
            total[part] += scales.to(block.device) @ block
    return rows


def _rows(
    private_sums: Sequence["torch.Tensor"], private_gradients: Sequence["torch.Tensor"]
) -> int:
    rows = {len(gradients) for gradients in private_gradients}
    expected = [tuple(each.shape) for each in private_sums]
    got = [tuple(gradients.shape[1:]) for gradients in private_gradients]
    if len(rows) != 1 or expected != got:
        raise ValueError(
            f"Expected gradients of shapes (B, ...) over parameters of shapes {expected} with one "
            f"B, got parameter shapes {got}."
        )
    return rows.pop()


def _clip_scales(
    private_gradients: Sequence["torch.Tensor"], rows: int, l2_bound: float
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Computes (B,) float64 factors min(1, C / norm), and (B,) bool where the norm is finite."""
    import torch

    squares = torch.zeros(rows, dtype=torch.float64, device=private_gradients[0].device)
    for gradients in private_gradients:
        for _, block in _float64_blocks(gradients, rows):
            squares += block.square_().sum(dim=1).to(squares.device)
    usable = torch.isfinite(squares)
    bound = l2_bound * (1.0 - CLIP_MARGIN)
    return (bound / squares.sqrt()).clamp_(max=1.0).where(usable, 0.0), usable


def _float64_blocks(gradients: "torch.Tensor", rows: int) -> "Iterator[tuple[slice, torch.Tensor]]":
    """Yields slices of the P flattened columns with a float64 copy of (B, width) entries."""
    import torch

    flat = gradients.detach().reshape(rows, math.prod(gradients.shape[1:]))
    width = max(1, BLOCK_ENTRIES // max(1, rows))
    for start in range(0, flat.shape[1], width):
        part = slice(start, min(start + width, flat.shape[1]))
        yield part, flat[:, part].to(torch.float64, copy=True)
