"""Sums that do not depend on the order of adding: whatever a record adds lies on one lattice.

Shape letters: P numbers of all parameters together, N records of a batch, T tokens of one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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

        Added to 1.5 · 2^52 units a number loses what is below one unit, whatever its sign.
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
