"""Noisy histograms: one count per public bin, integer noise, exact sensitivities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import check_at_least, check_positive
from dpsynth_assets.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent, Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.noise import discrete_gaussian, discrete_laplace
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.units import NeighboringRelation

NoiseKind = Literal["laplace", "gaussian"]


def l1_sensitivity(relation: NeighboringRelation, max_records_per_unit: int = 1) -> int:
    """Bounds Σ|count − count'|: each record that enters or leaves moves one bin by one."""
    check_at_least(1, max_records_per_unit=max_records_per_unit)
    return NeighboringRelation(relation).records_changed * max_records_per_unit


def l2_sensitivity(relation: NeighboringRelation, max_records_per_unit: int = 1) -> float:
    """Bounds ‖count − count'‖₂, rounded up.

    m records of a unit may all sit in one bin (m), and replacements move m from one bin to
    another (m √2).
    """
    l1_sensitivity(relation, max_records_per_unit)
    changed = NeighboringRelation(relation).records_changed
    exact = max_records_per_unit * math.sqrt(changed)
    return exact if changed == 1 else math.nextafter(exact, math.inf)


@dataclass(frozen=True, kw_only=True)
class NoisyHistogram:
    """One histogram with noise, over bins that are public.

    Attributes:
        noise: `laplace` (P(k) ∝ exp(−|k|/scale)) or `gaussian` (P(k) ∝ exp(−k²/(2 scale²))).
        scale: Noise scale in counts; at least 1 for gaussian.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.

    Raises:
        ValueError: If the noise is unknown or the scale is outside its domain.

    **Privacy** Laplace: a shift of L1 norm Δ spread over bins is never easier to detect than a
    shift of Δ in one bin (group privacy, tight for log-concave noise), so one event of
    sensitivity Δ covers the vector. Gaussian: a unit's m records that come or go are never easier
    to detect over several bins than in one, and m replaced ones never easier than where all leave
    one bin for one other; so one count moves by m, or two do. Proof: let β be the power curve of
    the best tests of one bin moved by 1. Noise is log-concave, so they are thresholds, and those
    of one bin moved by m have β applied m times. A vector of L1 norm m is reached in m steps that
    move one bin by 1 each, and each step has power curve β at most: so has the vector β applied
    m times (group privacy; Dong, Roth, Su 2022, Theorem 2.14). Under replacement what enters and
    what leaves lie in different bins, each of L1 norm at most m, and their noise is independent.

    **Source** Amin et al. 2025, section 4.1, which leaves noise and relation open. Canonne, Kamath,
    Steinke 2020 for the noise, whose ρ is that of continuous noise and whose tails are heavier.
    """

    noise: NoiseKind
    scale: float
    relation: NeighboringRelation
    max_records_per_unit: int = 1

    def __post_init__(self) -> None:
        """Refuses settings that have no price."""
        self.event()

    def event(self) -> Event:
        """Prices one release."""
        moved = l1_sensitivity(self.relation, self.max_records_per_unit)
        if self.noise == "laplace":
            return DiscreteLaplaceEvent(scale=self.scale, sensitivity=moved)
        if self.noise != "gaussian":
            raise ValueError(f"Expected noise 'laplace' or 'gaussian', got {self.noise!r}.")
        check_at_least(1, scale=self.scale)
        return DiscreteGaussianEvent(
            noise_std=self.scale,
            shift=self.max_records_per_unit,
            count=moved // self.max_records_per_unit,
        )

    def release(self, private_counts: Sequence[int] | np.ndarray) -> Release[np.ndarray]:
        """Releases every bin with integer noise; bins and their order must be public.

        Args:
            private_counts: (K,) whole numbers, one for each public bin, empty bins included.

        Returns:
            (K,) int64 noisy counts, negative ones included, with their cost.

        Raises:
            ValueError: If a count is not a whole number.
        """
        counts = np.asarray(private_counts)
        if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"Expected a one-dimensional list of whole counts, got shape {counts.shape} of "
                f"{counts.dtype}. Count records before adding noise."
            )
        sampler = discrete_laplace if self.noise == "laplace" else discrete_gaussian
        dp_counts = np.array(sampler([int(count) for count in counts], self.scale), dtype=np.int64)
        return Release(value=dp_counts, cost=Cost(guarantee=GuaranteeType.DP, event=self.event()))


def scale_for(
    epsilon: float,
    delta: float,
    noise: NoiseKind,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
    accountant: str = "zcdp",
) -> float:
    """Finds the smallest noise scale at which one histogram costs at most `epsilon`.

    Laplace: pure ε, so δ and the accountant play no part. Gaussian: ε at `delta`, by bisection
    to a relative 1e-6, rounded up.

    Raises:
        ValueError: If ε is not positive and finite.
    """
    check_positive("epsilon", epsilon)
    if noise == "laplace":
        return math.nextafter(l1_sensitivity(relation, max_records_per_unit) / epsilon, math.inf)

    def cost(scale: float) -> float:
        histogram = NoisyHistogram(
            noise=noise, scale=scale, relation=relation, max_records_per_unit=max_records_per_unit
        )
        return epsilon_of([histogram.event()], delta, accountant)

    low, high = 1.0, 2.0
    if cost(low) <= epsilon:
        return low
    while cost(high) > epsilon:
        low, high = high, 2.0 * high
    while high / low > 1.0 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high
