"""Floating-point arithmetic of clipped sums: types of products, and bounds on rounding.

Exact sums lie on a lattice, so that they do not depend on the order of adding. What records that
share a pass may move one another's clipped gradients is bounded and charged.

Shape letters: B examples, T tokens of one, m and n rows and columns of one parameter, P numbers of
all parameters together, N records of a batch, M records that may share a pass.

u is half a unit in the last place: 2^-53, 2^-24, or 2^-9 in bfloat16.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

COARSE_RATIO = 256.0
"""No example counts for less than 1/256 of its coarse norm Σ_t |left_t| |right_t|, a bound on how
far cancellation among its own tokens can magnify rounding. Ordinary text stays below √T."""


class Products(StrEnum):
    """Arithmetic of the products that make up a clipped sum.

    FLOAT64: products and Gram matrices in float64, sums exact regardless of the order of adding.
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
    """Computes (B, T) Euclidean norms of (B, T, k) rows, right to a share of k 2^-24."""
    import torch

    wide = torch.promote_types(rows.dtype, torch.float32)
    return torch.linalg.vector_norm(rows, dim=-1, dtype=wide)


BITS = 32
"""A unit is 2^-32 of the first power of two that is not below the bound: sums of N <= 2^20 records
of that bound are whole units below 2^53, which float64 adds without rounding."""


@dataclass(frozen=True)
class SumLattice:
    """Whole multiples of a public unit, in float64.

    Attributes:
        unit: A power of two.

    **Privacy** What is added of a record is rounded to the lattice first, each number by itself.
    It is then a function of that record alone, and the sum of any records is exact: neither their
    order, nor threads, nor processes that each add up some of them change a bit of it. Rounding
    moves a record's own vector by at most unit/2 a number and use, which `Products.clip_margin`
    keeps back.

    **Source** Demmel and Nguyen 2013, "Fast reproducible floating-point summation" (ARITH 21), with
    a lattice that the clip bound fixes beforehand.
    """

    unit: float
    _adding: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, l2_bound: float) -> "SumLattice":
        """The lattice of sums of vectors of at most this norm."""
        mantissa, exponent = math.frexp(l2_bound)
        return cls(math.ldexp(1.0, exponent - BITS - (mantissa == 0.5)))

    def placed(self, values: "torch.Tensor") -> "torch.Tensor":
        """Rounds float64 numbers below 2^19 bounds to the nearest multiples, in place.

        Added to 1.5 · 2^52 units a number loses what is below one unit, regardless of its sign.
        """
        shift = 1.5 * 2.0**52 * self.unit
        return values.add_(shift).sub_(shift)

    def add(self, add_to_sum: "Callable[[], object]") -> None:
        """Adds to a sum that threads share: one of them at a time."""
        with self._adding:
            add_to_sum()

    def units(self, sums: "torch.Tensor") -> "torch.Tensor":
        """Counts the units of sums that lie on the lattice, int64; exact."""
        import torch

        return (sums / self.unit).to(torch.int64)

    def sums(self, units: "torch.Tensor") -> "torch.Tensor":
        """Turns int64 numbers of units back into float64."""
        return units.double() * self.unit


GRADIENT_SLACK = 2.0**-16
"""Largest move of one record's clipped gradient, as a share of the clip bound, that is charged for
float32 where nothing is declared: at least eight times the largest that
`benchmarks/gradient_slack.py` found with random weights, over parts of 1 to 32 records of all
lengths, and 1.3 times that of SmolLM2's, over records of a few tokens. Layers that Opacus works on
are not among these: they are measured on public text before the charge."""

MOST_KEPT_BACK = 0.25
"""Largest M · slack: where more of the bound would be kept back, records pass alone instead."""


def most_in_company(expected_batch_size: float, slack: float) -> int:
    """Chooses M, the records of a batch up to which they may share passes; 0 for never.

    Args:
        expected_batch_size: Records a step is expected to draw; public.
        slack: Largest move of a record's clipped gradient, as a share of the bound.

    **Privacy** M is a public number and no estimate: a batch of more records is passed one record
    at a time (`DpSgdMechanism`), however many there are. Six deviations above the expected size
    make that rare.
    """
    most = math.ceil(expected_batch_size + 6.0 * math.sqrt(expected_batch_size)) + 8
    return most if most * slack <= MOST_KEPT_BACK else 0


def refuse_undeclared_slack(model: "torch.nn.Module") -> None:
    """Refuses passes of several records for which the slack of float32 is not known to hold.

    Args:
        model: As it will be trained.

    Raises:
        ValueError: If passes are less precise than float32, or positions follow the longest record.
    """
    kind = _less_precise(model)
    if kind is not None:
        raise ValueError(
            f"Expected a declared gradient_slack for passes of several records in {kind}, got "
            "none: that of float32 does not hold. Set exact_sums: true, which processes each "
            "record alone, or declare what was measured."
        )
    config: Any = getattr(model, "config", None)
    positions = str(getattr(config, "rope_parameters", None))
    if "longrope" in positions or "dynamic" in positions:
        raise ValueError(
            "Expected positions that do not depend on the longest record of a pass, got a model "
            "with dynamic positions (rope_parameters). Set exact_sums: true, which processes "
            "each record alone."
        )


def _less_precise(model: "torch.nn.Module") -> str | None:
    """The type that products of a pass are rounded to, where it is less precise than float32."""
    import torch

    parameters = list(model.parameters())
    small = {each.dtype for each in parameters if each.is_floating_point()}
    small -= {torch.float32, torch.float64}
    if small:
        return str(small.pop()).removeprefix("torch.")
    on_device = any(each.is_cuda for each in parameters)
    coarse = torch.get_float32_matmul_precision() != "highest"
    return "TF32" if on_device and coarse else None
