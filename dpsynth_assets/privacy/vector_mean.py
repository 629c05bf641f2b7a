"""Noisy means of bounded vectors: exact integer sums, one joint Gaussian over all blocks.

Shape letters: N records of a batch, n public number of records, L blocks (layers), d dimensions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_at_least
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, NeighboringRelation, Release
from dpsynth_assets.privacy.lattice import LARGEST_SUM, Lattice, noise_for_gaussian
from dpsynth_assets.privacy.noise import discrete_gaussian

_UP = 1.0 + 2.0**-48
"""Covers the handful of float64 roundings of a sensitivity or a noise scale."""


def stacked_l2_sensitivity(
    *,
    l2_bounds: Sequence[float],
    records: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
) -> float:
    """Bounds how far the means of all blocks, stacked into one vector, move; rounded up.

    Args:
        l2_bounds: (L,) C_l > 0, clip bound of each block.
        records: n >= 1, the public number that sums are divided by.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.

    Raises:
        ValueError: If an argument is outside its domain.

    **Privacy** A unit moves block l of the mean by at most k C_l / n, with k = m records that
    enter or leave (add/remove with public n, zero-out) or k = 2m (each replaced record takes one
    vector out and puts one in). Blocks are orthogonal, so by Pythagoras the stack moves by
    k √(Σ C_l²) / n.

    **Source** EPSVec, Theorem 4.1, which charges each layer alone and adds L times (ε, δ): twice
    the noise of the joint release at its settings (errata B-003.2).
    """
    bounds = [float(bound) for bound in l2_bounds]
    if not bounds or not all(bound > 0 and math.isfinite(bound) for bound in bounds):
        raise ValueError(f"Expected at least one l2_bound, each 0 < l2_bound < inf, got {bounds}.")
    check_at_least(1, records=records, max_records_per_unit=max_records_per_unit)
    vectors = NeighboringRelation(relation).records_changed * max_records_per_unit
    return vectors * math.hypot(*bounds) / records * _UP


@dataclass(frozen=True)
class BlockSums:
    """Clips each record's blocks and adds them as whole numbers; holds public values only.

    Sums of integers are the same in any order, so records may be in several places: the totals of
    the places, added up, are the total of all records.

    Attributes:
        lattice: What blocks are rounded to.
        bounds: (L,) clip bound of each block.
        dimensions: d, numbers of a block.
    """

    lattice: Lattice
    bounds: tuple[float, ...]
    dimensions: int

    @property
    def shape(self) -> tuple[int, int]:
        """(L, d)."""
        return len(self.bounds), self.dimensions

    def empty(self) -> np.ndarray:
        """Total of no record: (L d + 1,) int64, the sums and how many records they are of."""
        return np.zeros(len(self.bounds) * self.dimensions + 1, dtype=np.int64)

    def add(self, private_total: np.ndarray, private_vectors: np.ndarray) -> None:
        """Adds some records to a total.

        Args:
            private_total: As `empty` makes it; changed in place.
            private_vectors: (N, L, d) numbers, N >= 0. A block with NaN or infinity adds zero.

        Raises:
            ValueError: If the shape disagrees.
            OverflowError: If the sums could leave 64-bit integers.
        """
        vectors = np.asarray(private_vectors)
        if vectors.ndim != 3 or vectors.shape[1:] != self.shape:
            raise ValueError(
                f"Expected vectors of shape (N, {', '.join(map(str, self.shape))}), "
                f"got {vectors.shape}."
            )
        private_total[-1] += len(vectors)
        self.check(private_total)
        sums = private_total[:-1].reshape(self.shape)
        for block, bound in enumerate(self.bounds):  # [epsvec A1:L1]
            clipped = self.lattice.clip(vectors[:, block], bound)  # [epsvec A1:L2] [epsvec A1:L4]
            sums[block] += clipped.sum(axis=0)

    def check(self, private_total: np.ndarray) -> None:
        """Refuses a total of this many records that its sums could leave 64-bit integers."""
        capacity = LARGEST_SUM // max(self.lattice.steps(bound) for bound in self.bounds)
        if not 0 <= private_total[-1] <= capacity:
            raise OverflowError(f"Expected at most {capacity} vectors, got more.")


class VectorMean:
    """Adds private vectors batch by batch, then releases their noisy means exactly once.

    Batches of one run must hold each record once. A second `release` is refused: noise drawn
    again over the same sums is another release, and their average has less noise than either.

    **Privacy** All blocks lie on one lattice γZ^d (`Lattice`), so the stacked sum of a unit's
    integer vectors has norm at most k √(Σ ⌊C_l/γ⌋²) <= k √(Σ C_l²)/γ exactly. Discrete Gaussian
    noise of variance ⌈(σ n/γ)² + 3⌉ then costs at most `event()` (`lattice.noise_for_gaussian`);
    scaling by γ/n is post-processing. n is the declared public number for any number of vectors
    came.

    **Source** EPSVec, Algorithm 1, lines 1 to 6. We round to a lattice and add integer noise
    (the paper's float Gaussian has no exact sensitivity), jointly over layers, and divide by a
    declared n. The released code draws noise again at each start of the generator, uncharged.
    """

    def __init__(
        self,
        *,
        l2_bounds: Sequence[float],
        dimensions: int,
        noise_std: float,
        records: int,
        relation: NeighboringRelation,
        max_records_per_unit: int = 1,
    ) -> None:
        """Prepares empty sums.

        The noise is the same in every block; blocks that should get the same relative precision are
        scaled to a common bound before (d / C_l, a public factor) and back after.

        Args:
            l2_bounds: (L,) C_l > 0.
            dimensions: d, entries of one block.
            noise_std: σ > 0 in each entry of the released mean, not of the sum.
            records: n >= 1, public.
            relation: Declared neighbouring relation.
            max_records_per_unit: Records one unit may contribute.

        Raises:
            ValueError: If an argument is outside its domain, or the noise is finer than a
                lattice step or too large for 64-bit integers.
        """
        moved = stacked_l2_sensitivity(
            l2_bounds=l2_bounds,
            records=records,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        self._event = GaussianEvent(noise_multiplier=float(noise_std) / moved)
        bounds = tuple(float(bound) for bound in l2_bounds)
        self._records = int(records)
        self._lattice = Lattice.for_bound(max(bounds))
        noise_steps = float(noise_std) * self._records / self._lattice.spacing * _UP
        if not 1 <= noise_steps <= LARGEST_SUM / 64:
            raise ValueError(
                f"Expected noise of 1 to 2^56 lattice steps, got {noise_steps}. "
                "Scale noise_std to the l2_bounds."
            )
        self._noise_steps = math.ceil(noise_for_gaussian(noise_steps))
        self._sums = BlockSums(self._lattice, bounds, int(dimensions))
        self._private_total = self._sums.empty()
        self._released = False

    def event(self) -> GaussianEvent:
        """Prices the one release."""
        return self._event

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, of which each could be released once more."""
        raise TypeError("Expected one VectorMean for each release, got a request to copy it.")

    def add(self, private_vectors: np.ndarray) -> None:
        """Clips each record's blocks and adds them; nothing of a record is kept.

        Args:
            private_vectors: (N, L, d) numbers, N >= 0. A block with NaN or infinity adds zero.

        Raises:
            ValueError: If the shape disagrees.
            OverflowError: If the sums could leave 64-bit integers, after some 2^34 records.
            UnaccountedReleaseError: After the release: the sums are gone.
        """
        self._check_open()
        self._sums.add(self._private_total, private_vectors)

    @property
    def sums(self) -> BlockSums:
        """Adds records up elsewhere, for `add_total`."""
        return self._sums

    def add_total(self, private_total: np.ndarray) -> None:
        """Adds records that were added up elsewhere, by `sums`.

        Args:
            private_total: Their total, as `BlockSums.add` leaves it.

        Raises:
            TypeError: If it is no such total.
            OverflowError: If the sums could leave 64-bit integers, after some 2^34 records.
            UnaccountedReleaseError: After the release.
        """
        self._check_open()
        total = np.asarray(private_total)
        if total.dtype != np.int64 or total.shape != self._private_total.shape:
            raise TypeError(
                f"Expected an int64 total of shape {self._private_total.shape}, got {total.dtype} "
                f"of {total.shape}."
            )
        self._sums.check(total)
        self._private_total += total
        self._sums.check(self._private_total)

    def release(self) -> Release[np.ndarray]:
        """Adds the noise and returns (L, d) float64 means with their cost; works once.

        Raises:
            UnaccountedReleaseError: On every later call. Keep the released vectors instead.
        """
        self._check_open()
        self._released = True
        private_total, self._private_total = self._private_total, self._sums.empty()
        noisy = discrete_gaussian(private_total[:-1].tolist(), self._noise_steps)
        dp_sum = self._lattice.to_floats(np.array(noisy)).reshape(self._sums.shape)
        dp_means = dp_sum / self._records  # [epsvec A1:L6]
        return Release(value=dp_means, cost=Cost(guarantee=GuaranteeType.DP, event=self._event))

    def _check_open(self) -> None:
        if self._released:
            raise UnaccountedReleaseError(
                "Expected one release of these vectors, got a second request. Reuse the released "
                "vectors; new noise is a new release with its own charge."
            )


def unit_directions(dp_vectors: np.ndarray) -> np.ndarray:
    """Scales each of (L, d) released vectors to norm one; a zero vector stays zero."""
    norms = np.linalg.norm(dp_vectors, axis=1, keepdims=True)
    return dp_vectors / np.where(norms > 0, norms, 1.0)  # [epsvec A1:L7]
