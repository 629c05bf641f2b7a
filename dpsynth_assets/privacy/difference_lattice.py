"""Clipped differences of log-probabilities on a lattice, each a function of one row alone.

A row's log-normaliser is a sum over the vocabulary, which floats round by the shape of the tensor
that the row stands in. Here it is rounded to a lattice so coarse that float errors cannot show, and
computed with more digits where they could; all that follows is single additions. Shape letters:
n rows, A tokens of the public support.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.clipping import exponent_above

if TYPE_CHECKING:
    import torch

_BITS = 24
"""A clip bound is this many bits above a unit: 2^28 rows add up without rounding in float64."""

_NORMALISER_BITS = 20
"""Bits of a clip bound above a unit of the normaliser."""

_FINEST_NORMALISER = 2.0**-26
"""Float64 leaves few normalisers undecided at this unit, and most at much finer ones."""

_LOWEST_LOG = 1024.0
"""Public log-probabilities are cut at minus this: such a token is never drawn."""


@dataclass(frozen=True)
class DifferenceLattice:
    """Lattice on which differences clipped to [−C, C] and s times public log-probabilities lie.

    Attributes:
        clip_bound: C > 0.
        expected_batch_size: s >= 1.

    **Privacy** `clipped` turns one row's logits, and public numbers, into whole units within
    [−C, C]: its roundings are of single additions, which IEEE arithmetic fixes, and its normaliser
    is the lattice point nearest to the true one (`rounded_normalisers`). So what a row adds depends
    on that row alone, bit for bit, regardless of the tensor's shape, kernels or other rows; and
    sums of units are exact below 2^53, in any order. A row that comes or goes moves them by at most
    C.
    """

    clip_bound: float
    expected_batch_size: int

    @cached_property
    def unit(self) -> float:
        """Width of a unit, a power of two: C / 2^24, or s / 2^42 where that is more."""
        size = math.ldexp(1.0, math.frexp(self.expected_batch_size)[1] - 42)
        return max(math.ldexp(1.0, self._exponent - _BITS), size)

    @cached_property
    def bound(self) -> float:
        """The largest whole number of units that is at most C."""
        return math.floor(self.clip_bound / self.unit) * self.unit

    @cached_property
    def normaliser_unit(self) -> float:
        """Width of a unit of normalisers, a power of two."""
        return max(math.ldexp(1.0, self._exponent - _NORMALISER_BITS), _FINEST_NORMALISER)

    @cached_property
    def _exponent(self) -> int:
        return exponent_above(self.clip_bound)

    def slack(self, logit_slack: float) -> float:
        """Bounds half the range by which a row's clipped differences move with its logits.

        **Privacy** Logits that move by at most δ move their normaliser by at most δ, its lattice
        point by a unit more, and rounding moves each difference by at most half a unit before and
        after: a range of 2 δ + `normaliser_unit` + 2 `unit`. Logits that stay move nothing.
        """
        if logit_slack <= 0:
            return logit_slack
        return logit_slack + self.normaliser_unit / 2.0 + self.unit

    def public_units(self, distribution: "torch.Tensor") -> "torch.Tensor":
        """Computes s · log-probability, (..., A) float64, rounded to whole units."""
        scaled = (
            distribution.clamp(min=-_LOWEST_LOG).mul_(self.expected_batch_size / self.unit).round_()
        )
        return scaled.mul_(self.unit)

    def clipped(
        self, shifted: "torch.Tensor", normalisers: "torch.Tensor", distribution: "torch.Tensor"
    ) -> "torch.Tensor":
        """Computes (n, A) float64 differences in [−C, C], whole units; overwrites `shifted`.

        Args:
            shifted: (n, A) float64 logits less their row's maximum; −inf is the floor.
            normalisers: (n,) of `rounded_normalisers`.
            distribution: (A,) or (n, A) float64 public log-probabilities, finite.
        """
        nearest = 1.5 * 2.0**52 * self.unit  # a sum with it has whole units for its last bits
        shifted.sub_(normalisers.unsqueeze(1)).sub_(distribution).clamp_(-self.bound, self.bound)
        return shifted.add_(nearest).sub_(nearest)

    def rounded_normalisers(
        self, computed: "torch.Tensor", tokens: int, logits_of: Callable[[int], np.ndarray]
    ) -> "torch.Tensor":
        """Rounds log Σ exp(z − max z) of each row to the nearest whole unit, exactly.

        Args:
            computed: (n,) float64, computed in any order; NaN where a row is not used.
            tokens: A, the most that were added up.
            logits_of: Returns one row's (A,) float64 logits, the largest of them finite.

        **Privacy** A computed normaliser is off by at most (A + 64) 2^-50. Where a boundary between
        units is that near, it is computed again with more digits (`_exact_units`).
        """
        scaled = computed / self.normaliser_unit
        margin = (tokens + 64) * 2.0**-50 / self.normaliser_unit
        units = (scaled + 0.5).floor_()
        unsure = (scaled - scaled.floor() - 0.5).abs() <= margin
        for row in np.flatnonzero(unsure.cpu().numpy()).tolist():
            units[row] = _exact_units(logits_of(row), self.normaliser_unit)
        return units.mul_(self.normaliser_unit)


def _exact_units(logits: np.ndarray, unit: float) -> int:
    """Rounds log Σ exp(z − max z) of (A,) float64 logits to the nearest whole unit.

    First in float64 with an exact sum: weights are off by four units in the last place and by the
    rounding of z − max, which weighs like the mean of max − z, at most ln A. Then with as many
    decimal digits as it takes; a sum of exponentials of distinct rational numbers is no exponential
    of a rational number (Lindemann and Weierstrass) unless it has one term, and then the result is
    0: there is no tie.
    """
    weights = np.exp(logits - logits.max())
    value = Fraction(math.log(math.fsum(weights)))
    error = Fraction((4.0 * math.log(len(logits)) + 32.0) * 2.0**-52)
    units = _units_between(value, error, unit)
    digits = 40
    while units is None:
        value, error = _precise_normaliser(logits, digits)
        units = _units_between(value, error, unit)
        digits *= 2
    return units


def _precise_normaliser(logits: np.ndarray, digits: int) -> tuple[Fraction, Fraction]:
    """Computes log Σ exp(z − max z) with `digits` digits, and a bound on its error."""
    context = Context(prec=digits, Emax=10**9, Emin=-(10**9), traps=[])
    values, counts = np.unique(logits[np.isfinite(logits)], return_counts=True)
    top, total = Decimal(float(values[-1])), Decimal(0)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        weight = context.exp(context.subtract(Decimal(value), top))
        total = context.add(total, context.multiply(weight, Decimal(count)))
    error = Fraction(8 * len(logits) + 8, 10 ** (digits - 1))
    return Fraction(context.ln(total)), error


def _units_between(value: Fraction, error: Fraction, unit: float) -> int | None:
    """Rounds a value known up to an error to whole units; None if that is not certain."""
    half, width = Fraction(1, 2), Fraction(unit)
    low, high = (math.floor(bound / width + half) for bound in (value - error, value + error))
    return low if low == high else None
