"""Bounded vectors on an integer lattice, where sums are exact and sensitivities are proved.

A float sum of clipped vectors moves by a little more than the clip bound when a record goes,
because every later rounding changes too. On the lattice γZ^d each record is a vector of integers
whose norm is checked in integers, sums have no rounding, and discrete Gaussian noise completes an
exact mechanism (Canonne, Kamath, Steinke 2020; errata E). Shape letters: N records, d dimensions.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.privacy.cpu import row_sums
from dpsynth_assets.privacy.errors import check_positive

RESOLUTION_BITS = 28
"""The largest bound spans at least 2^27 lattice steps: rounding stays far below any noise."""

LARGEST_SUM = 1 << 62
"""Sums keep one bit of int64 free, so that noise cannot saturate them."""


@dataclass(frozen=True)
class Lattice:
    """The multiples of `spacing` = γ, a power of two, so that scaling by it never rounds."""

    spacing: float

    def __post_init__(self) -> None:
        """Refuses a spacing that floats cannot scale by exactly."""
        finite = self.spacing > 0 and math.isfinite(self.spacing)
        if not (finite and math.frexp(self.spacing)[0] == 0.5 and math.isfinite(1 / self.spacing)):
            raise ValueError(f"Expected spacing to be a power of two, got {self.spacing}.")

    @classmethod
    def for_bound(cls, largest_bound: float) -> "Lattice":
        """Chooses the lattice from a public bound C: γ = 2^(⌊log₂ C⌋ + 1 − RESOLUTION_BITS)."""
        check_positive("l2_bound", largest_bound)
        return cls(math.ldexp(1.0, math.frexp(largest_bound)[1] - RESOLUTION_BITS))

    def steps(self, l2_bound: float) -> int:
        """Computes B = ⌊C/γ⌋, the exact bound on the integer norm of a record clipped to C.

        Raises:
            ValueError: If C is below one step, or above 2^30 steps.
        """
        check_positive("l2_bound", l2_bound)
        steps = math.floor(l2_bound / self.spacing)
        if not 1 <= steps <= 1 << 30:
            raise ValueError(
                f"Expected l2_bound between 1 and 2^30 lattice steps of {self.spacing}, "
                f"got {l2_bound}. Scale blocks to similar bounds first."
            )
        return steps

    def clip(self, private_vectors: np.ndarray, l2_bound: float) -> np.ndarray:
        """Clips each record to L2 norm C and rounds it to the lattice.

        Args:
            private_vectors: (N, d) numbers. A record with NaN or infinity becomes zero.
            l2_bound: C > 0.

        Returns:
            (N, d) int64 in lattice steps: each row's integer norm is at most `steps(C)`, regardless
            of the floats, and a row depends on its own record only, bit for bit.

        Raises:
            ValueError: If the shape is not (N, d), or C is outside the lattice's range.

        **Privacy** The last loop tests ‖q‖² <= B² in integers. Before it ‖q‖ <= B + √d/2 + 1
        with B <= 2^30, so the squares of a row sum below 2^63; each turn lowers the norm.
        """
        vectors = np.array(private_vectors, dtype=np.float64, order="C")
        if vectors.ndim != 2:
            raise ValueError(f"Expected vectors of shape (N, d), got shape {vectors.shape}.")
        bound = self.steps(l2_bound)
        vectors[~np.isfinite(vectors).all(axis=1)] = 0.0
        peak = np.abs(vectors).max(axis=1, initial=0.0)
        # Scaled by its peak no entry overflows when squared; the norm is then in [1, √d].
        vectors /= np.where(peak > 0, peak, 1.0)[:, None]
        norm = np.maximum(np.sqrt(row_sums(vectors * vectors)), 1.0)
        with np.errstate(over="ignore"):
            vectors *= np.minimum(peak / self.spacing, bound / norm)[:, None]
        steps = np.rint(vectors).astype(np.int64)
        return _shrink(steps, bound)

    def to_floats(self, steps: np.ndarray) -> np.ndarray:
        """Scales lattice steps back to float64, rounding only integers beyond 2^53."""
        return np.asarray(steps, dtype=np.int64).astype(np.float64) * self.spacing


def noise_for_gaussian(noise_steps: float) -> float:
    """Finds the integer noise, in lattice steps, that costs no more than continuous noise does.

    Args:
        noise_steps: σ > 0 of the Gaussian that is charged, in lattice steps.

    Returns:
        √(σ² + 3), rounded up: σ itself for all that anyone will notice.

    **Privacy** Integer noise of variance σ² + 3 on every entry is post-processing of a Gaussian
    release of variance σ²: a draw of integer noise of variance 3 about what that release holds.
    Σ_x exp(−(x − y)²/6) is constant in y up to a factor of 1 ± 4e-26 (Poisson summation), and
    so is the distribution of the result on every entry. Without the 3 its tails would be heavier
    than those of continuous noise (`gaussian_dp`), by 1/(24σ²) relative in μ.
    """
    return math.sqrt(noise_steps**2 + 3.0) * (1.0 + 2.0**-50)


def _shrink(steps: np.ndarray, bound: int) -> np.ndarray:
    """Moves rows whose integer norm exceeds `bound` towards zero, one step in every entry."""
    outside = np.flatnonzero(_squared_norms(steps) > bound * bound)
    while outside.size:
        steps[outside] -= np.sign(steps[outside])
        outside = outside[_squared_norms(steps[outside]) > bound * bound]
    return steps


def _squared_norms(steps: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", steps, steps)
