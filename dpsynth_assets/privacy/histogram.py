"""Noisy histograms, and votes: one count per public bin, integer noise, exact sensitivities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

import numpy as np

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_at_least, check_positive
from dpsynth_assets.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
)
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, NeighboringRelation, Release
from dpsynth_assets.privacy.nearest import NO_ROW
from dpsynth_assets.privacy.noise import discrete_gaussian, discrete_laplace

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
    what leaves are in different bins, each of L1 norm at most m, and their noise is independent.

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
    histogram: NoisyHistogram, epsilon: float, delta: float, accountant: str = "zcdp"
) -> float:
    """Finds the smallest noise scale at which one histogram costs at most `epsilon`.

    Args:
        histogram: Its noise, relation and unit; its scale is not used.
        epsilon: Target ε > 0.
        delta: Public δ; not used for Laplace noise, whose ε is pure.
        accountant: "zcdp" or "tight"; not used for Laplace noise.

    Returns:
        The scale, rounded up; for Gaussian noise at least 1 and to 1e-6 relative.

    Raises:
        ValueError: If ε is not positive and finite.
    """
    check_positive("epsilon", epsilon)
    if histogram.noise == "laplace":
        moved = l1_sensitivity(histogram.relation, histogram.max_records_per_unit)
        return math.nextafter(moved / epsilon, math.inf)

    def cost(scale: float) -> float:
        return epsilon_of([replace(histogram, scale=scale).event()], delta, accountant)

    low, high = 1.0, 2.0
    if cost(low) <= epsilon:
        return low
    while cost(high) > epsilon:
        low, high = high, 2.0 * high
    while high / low > 1.0 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high


NO_VOTE = NO_ROW
"""Choice of a record that abstains with one of its votes."""


@dataclass(frozen=True, kw_only=True)
class GaussianVoting:
    """Releases `iterations` vote histograms with discrete Gaussian noise, and refuses one more.

    Attributes:
        noise_std: σ >= 1, in votes.
        iterations: T, rounds that will be released; all are charged.
        votes_per_record: v >= 1, votes that one record has in a round.
        relation: Declared neighbouring relation.
        max_records_per_unit: m, records one privacy unit may contribute.
        released_before: Rounds of the T that a killed run released under the same charge and
            stored; they are not released again.

    **Privacy** DP, regardless of the secrets. The m records of a unit give at most v·m votes,
    possibly all to one candidate: the histogram moves by at most v·m in L2 when they come or go,
    and by √2·v·m when they move to another candidate. One round is one histogram of v·m votes, or
    two counts that move (`NoisyHistogram`); T rounds are T of them, regardless of what is generated
    between
    them: about √T·v·m/σ-GDP, and a little more, as the noise is on whole votes
    (`gaussian_dp.dominating_mu`). Candidates must be public or come from earlier releases.
    Thresholding is post-processing.

    **Source** Xie et al. 2024 (Aug-PE), the noisy histogram of Algorithm 1, after Lin et al. 2024,
    Algorithm 2. The published code scales noise by √v, the L2 norm of v votes for different
    candidates; its packed candidates share a bin, so that one record can move a bin by v.
    """

    noise_std: float
    iterations: int
    votes_per_record: int
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    released_before: int = 0
    _released: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses settings without an event."""
        if self.iterations < 1 or self.votes_per_record < 1:
            raise ValueError(
                "Expected iterations >= 1 and votes_per_record >= 1, "
                f"got {self.iterations} and {self.votes_per_record}."
            )
        if not self.noise_std >= 1:
            raise ValueError(f"Expected noise_std >= 1 vote, got {self.noise_std}.")
        if not 0 <= self.released_before <= self.iterations:
            raise ValueError(
                f"Expected released_before in [0, {self.iterations}], got {self.released_before}."
            )
        _ = self.event()

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, each of which could release T rounds more."""
        raise TypeError("Expected one GaussianVoting for T rounds, got a request to copy it.")

    def opened(self, released_before: int) -> "GaussianVoting":
        """The rounds left of one charge; what a plan holds opens them, and releases none itself."""
        if released_before < self.released_before + self._released:
            raise UnaccountedReleaseError("Expected the rounds that are left, got released ones.")
        return replace(self, released_before=released_before)

    @property
    def histogram(self) -> NoisyHistogram:
        """One round's noisy histogram: v·m votes of a unit may all be for one candidate."""
        return NoisyHistogram(
            noise="gaussian",
            scale=self.noise_std,
            relation=self.relation,
            max_records_per_unit=self.votes_per_record * self.max_records_per_unit,
        )

    def event(self) -> ComposedEvent:
        """Prices all T rounds, those that a killed run released included."""
        return ComposedEvent(events=(self.histogram.event(),) * self.iterations)

    @property
    def remaining(self) -> int:
        """Rounds that may still be released."""
        return self.iterations - self.released_before - self._released

    def release(self, private_votes: np.ndarray) -> Release[np.ndarray]:
        """Adds noise to one round's votes.

        Args:
            private_votes: (C,) whole votes of every candidate, as `count_votes` returns them; a
                record must have given at most v of them.

        Returns:
            (C,) int64 noisy votes, negative ones included, with the cost of one round.

        Raises:
            UnaccountedReleaseError: Before a vote is read, if all T rounds were released.
            ValueError: If the votes are not a list of whole numbers.
        """
        if self.remaining < 1:
            raise UnaccountedReleaseError(
                f"Expected at most {self.iterations} rounds of votes, got one more. "
                "Plan more iterations, or stop."
            )
        object.__setattr__(self, "_released", self._released + 1)
        return self.histogram.release(np.asarray(private_votes).tolist())


def count_votes(private_choices: np.ndarray, candidates: int, votes_per_record: int) -> np.ndarray:
    """Counts (C,) int64 votes of some records; private until `GaussianVoting.release` adds noise.

    Args:
        private_choices: (N, v) int, the candidates each record votes for, in [0, C);
            `NO_VOTE` abstains, and a candidate that comes twice gets two votes.
        candidates: C >= 1, public.
        votes_per_record: v.

    Raises:
        ValueError: If the shape or a candidate does not fit; no choice is shown.
    """
    choices = np.asarray(private_choices)
    if choices.ndim != 2 or choices.shape[1] != votes_per_record:
        raise ValueError(f"Expected choices of shape (N, {votes_per_record}), got {choices.shape}.")
    if not np.issubdtype(choices.dtype, np.integer):
        raise ValueError(f"Expected whole candidate numbers, got {choices.dtype}.")
    votes = choices[choices != NO_VOTE]
    if votes.size and not (votes.min() >= 0 and votes.max() < candidates):
        raise ValueError(f"Expected choices in [0, {candidates}) or {NO_VOTE}, got another.")
    return np.bincount(votes, minlength=candidates).astype(np.int64)
