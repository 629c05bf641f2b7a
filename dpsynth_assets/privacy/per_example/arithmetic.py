"""Floating point of clipped sums: which products are taken in which type, and what that costs.

Shape letters: B examples, T tokens of one, m and n rows and columns of one parameter.

u is half a unit in the last place: 2^-53, 2^-24, or 2^-9 in bfloat16.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COARSE_RATIO = 256.0
"""No example counts for less than 1/256 of its coarse norm Σ_t |left_t| |right_t|, a bound on how
far cancellation among its own tokens can magnify rounding. Ordinary text stays below √T."""


class Products(StrEnum):
    """Arithmetic of the products that make up a clipped sum.

    FLOAT64: products and Gram matrices in float64, sums exact whatever the order of adding.
        Sensitivity holds by proof, for the inputs and output gradients that a pass leaves of each
        record.
    NATIVE: in the type of the activations (float32, or bfloat16 under autocast), accumulated in
        float32 within a micro-batch and in float64 across them; a step of a small encoder-decoder
        takes two thirds of the time. Sensitivity is not proved: it holds as far as rounding errors
        of a long sum behave as if they were random.
    """

    FLOAT64 = "float64"
    NATIVE = "native"

    @property
    def clip_margin(self) -> float:
        """Share of the clip bound kept back for rounding.

        **Privacy** Let K = B T tokens make one product, and S be a logical batch of N records. An
        exact weighted sum moves by at most C (1 − margin) where a record enters or leaves. Which
        records share a micro-batch may change with it, hence every rounding error may. What a
        record's own gradient moves with the other records of its pass is kept back besides, by
        `DpSgdMechanism.record_bound`.

        FLOAT64, 2^-12: what an example adds is placed on a lattice of units of at most 2^-31 C, and
        such numbers add up exactly for N <= 2^20 (`SumLattice`), so that nothing but the example's
        own vector is rounded. Its products err by at most T 2^-53 c coarse <= T 2^-45 C
        (`COARSE_RATIO`), under 2^-14 C for T <= 2^31; placing it moves each of P numbers by half a
        unit for every use of its parameter, and a looked-up row for every token, together under
        2^-13 C where uses · √P + T √n <= 2^19. Norms are rounded up.

        NATIVE, 2^-7: the same bound is void in float32. Errors that act like independent ones of
        mean zero (Higham and Mary 2019) grow as √K 2^-24 times the sum, itself at most C times
        the records of the micro-batch; over all micro-batches and both neighbours that is below
        2^-8 C for K = 2^14 and N = 2^12 even where all gradients point the same way. Gradients
        that are kept for norm and sum (`norms`) add over tokens first and over examples then, which
        is fewer terms each time, and their norm is that of the very numbers that are added.
        """
        return 2.0**-12 if self is Products.FLOAT64 else 2.0**-7


def accumulation_roundoff(tensor: "torch.Tensor") -> float:
    """Returns u of the sums inside a product of such tensors: float32 below float64."""
    import torch

    return 2.0**-53 if tensor.dtype == torch.float64 else 2.0**-24


def scaling_error(tensor: "torch.Tensor", products: Products) -> float:
    """Returns by which share of its coarse norm rounding may change one example's own product.

    In float32 the scale and the scaled factor are rounded; in bfloat16 the scaled factor is; where
    TF32 is switched on, both factors are, once for the norm and once for the sum.
    """
    import torch

    if products is Products.FLOAT64 or tensor.dtype == torch.float64:
        return 0.0
    if tensor.dtype != torch.float32:
        return float(torch.finfo(tensor.dtype).eps) / 2.0
    rounded = tensor.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return 2.0**-9 if rounded else 2.0**-23


def block_entries(tensor: "torch.Tensor") -> int:
    """Numbers of a temporary matrix: 8 MiB of float32 on a processor, 512 MiB on a device."""
    return 1 << 27 if tensor.is_cuda else 1 << 21


def column_blocks(tensor: "torch.Tensor", rows: int) -> Iterator[slice]:
    """Yields slices of the last axis whose (rows, width) blocks stay small."""
    width = max(64, block_entries(tensor) // max(1, rows))
    for start in range(0, tensor.shape[-1], width):
        yield slice(start, min(start + width, tensor.shape[-1]))


def wide_product(left: "torch.Tensor", right: "torch.Tensor") -> "torch.Tensor":
    """Multiplies (…, k) stacks of matrices of one type, returning float32 or float64."""
    import torch

    if left.dtype in (torch.float32, torch.float64):
        return left @ right
    if left.is_cuda:  # exact products of bfloat16, added in float32
        multiply = torch.mm if left.dim() == 2 else torch.bmm
        return multiply(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def gram(rows: "torch.Tensor", products: Products) -> "torch.Tensor":
    """Computes (B, T, T) inner products of each example's (B, T, k) rows."""
    import torch

    if products is Products.NATIVE:
        return wide_product(rows, rows.mT)
    total = torch.zeros(
        len(rows), rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device
    )
    for block in column_blocks(rows, rows.shape[0] * rows.shape[1]):
        part = rows[..., block].double()
        total.baddbmm_(part, part.mT)
    return total


def token_sums(rows: "torch.Tensor", products: Products) -> "torch.Tensor":
    """Sums (B, T, k) rows over tokens: (B, k) float64, added up in float32 where native."""
    import torch

    if products is Products.FLOAT64 or rows.dtype == torch.float64:
        return rows.sum(dim=1, dtype=torch.float64)
    return rows.sum(dim=1, dtype=torch.float32).double()


def row_norms(rows: "torch.Tensor") -> "torch.Tensor":
    """Computes (B, T) float64 Euclidean norms of (B, T, k) rows, right to a share of k 2^-24."""
    import torch

    wide = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    return torch.linalg.vector_norm(wide, dim=-1).double()
