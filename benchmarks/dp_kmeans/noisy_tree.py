"""A differentially private summary of vectors: a tree halves them, each leaf has a noisy mean.

Points and weights stand for the records in any later clustering, which is post-processing.
How a node is halved is the mechanism's own: `noisy_coreset`.
Shape letters: N records, d dimensions, T levels of the tree, L leaves that are kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.privacy.events import ComposedEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, NeighboringRelation, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.lattice import LARGEST_SUM, Lattice, noise_for_gaussian
from dpsynth_assets.privacy.noise import discrete_gaussian

COARSENING = 8.0
"""Steps of the usual lattice in one step here: a record spans less than 2^25 of them."""

UP = 1.0 + 2.0**-48
"""Covers the handful of float64 roundings of a noise scale."""

_CLOSED = -1

Halving = Callable[[int, np.ndarray, int], np.ndarray]
"""Says of each record on which side of its node's cut it lies: (N,) bool, private.

Asked with the level, the (N,) nodes of records (-1 for none, private) and the number of nodes.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyCoreset:
    """Released points; safe to store and to print.

    Attributes:
        points: (L, d) float64 noisy means of the leaves' records; may leave the unit ball.
        weights: (L,) float64 noisy numbers of records, at least `keep_count`.
    """

    points: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyTree(ABC):
    """Halves the records level after level, where noisy counts say so, and averages the leaves.

    Attributes:
        count_noise_std: σ_c >= 1, noise of each count (records).
        sum_noise_std: σ_s > 0, noise of each entry of a leaf's sum (in units of `l2_bound`).
        branch_count: A node of at least so many noisy records is halved (records), above level T.
        keep_count: A leaf of fewer noisy records is dropped (records); at least 1.
        l2_bound: C > 0, to which records are clipped.
        relation: Declared neighbouring relation.
        max_records_per_unit: m, records one unit may contribute.

    **Privacy** Given what was released so far, a record's side of its node's cut is a function of
    that record. So it sits in one node of each level and at last in one leaf at most: a level is a
    histogram, and the sums of all leaves, stacked, move by at most m C when a unit comes or goes
    and by 2 m C when it is replaced. T histograms and one vector of sums are composed; a tree that
    stops growing sooner is charged alike. Which nodes are halved, which leaves are dropped, and the
    division by counts are post-processing.
    """

    count_noise_std: float
    sum_noise_std: float
    branch_count: float
    keep_count: float
    l2_bound: float = 1.0
    relation: NeighboringRelation
    max_records_per_unit: int = 1

    def __post_init__(self) -> None:
        """Refuses settings outside their domain."""
        if not self.keep_count >= 1:
            raise ValueError(f"Expected keep_count >= 1 record, got {self.keep_count}.")
        _ = self.event
        if not 1 <= self._noise_steps <= LARGEST_SUM / 64:
            raise ValueError(f"Expected 1e-7 <= sum_noise_std <= 1e9, got {self.sum_noise_std}.")

    @property
    @abstractmethod
    def levels(self) -> int:
        """T >= 1."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """D of the vectors."""

    @abstractmethod
    def _halving(self, clipped: np.ndarray) -> Halving:
        """How nodes of (N, d) records on the lattice are halved."""

    @property
    def event(self) -> ComposedEvent:
        """Prices one release."""
        level = NoisyHistogram(
            noise="gaussian",
            scale=self.count_noise_std,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        ).event()
        sums = GaussianEvent(noise_multiplier=float(self.sum_noise_std) / self.moved)
        return ComposedEvent(events=(*[level] * self.levels, sums))

    @property
    def moved(self) -> int:
        """Records by which neighbours differ, those that go and those that come."""
        return NeighboringRelation(self.relation).records_changed * self.max_records_per_unit

    def release(self, private_vectors: np.ndarray) -> Release[NoisyCoreset]:
        """Grows the tree and averages its leaves, once; another call is another release.

        Args:
            private_vectors: (N, d) numbers, N >= 0. A row with NaN or infinity counts as zero.

        Raises:
            ValueError: If the shape does not fit.
            OverflowError: If the sums could leave 64-bit integers, after some 2^37 records.
        """
        vectors = np.asarray(private_vectors)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise ValueError(
                f"Expected vectors of shape (N, {self.dimensions}), got {vectors.shape}."
            )
        if len(vectors) > LARGEST_SUM // self._lattice.steps(self.l2_bound):
            raise OverflowError("Expected sums that fit 64-bit integers, got too many records.")
        clipped = self._lattice.clip(vectors, self.l2_bound)
        leaves, dp_counts = self._grow(clipped)
        dp_sums = self._noisy_sums(clipped, leaves, len(dp_counts))
        coreset = NoisyCoreset(points=dp_sums / dp_counts[:, None], weights=dp_counts)
        return Release(value=coreset, cost=Cost(guarantee=GuaranteeType.DP, event=self.event))

    @property
    def _lattice(self) -> Lattice:
        return Lattice(Lattice.for_bound(self.l2_bound).spacing * COARSENING)

    @property
    def _noise_steps(self) -> float:
        return float(self.sum_noise_std) * self._lattice.steps(self.l2_bound) * UP

    def _grow(self, clipped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (N,) leaves of records, -1 for none (private), and (L,) released counts."""
        halved = self._halving(clipped)
        node, leaf = np.zeros(len(clipped), dtype=np.int64), np.full(len(clipped), _CLOSED)
        nodes, dp_leaves = 1, np.empty(0)
        for level in range(self.levels):
            child = np.where(node >= 0, 2 * node + halved(level, node, nodes), _CLOSED)
            dp_counts = self._noisy_counts(child, 2 * nodes)
            branches = (dp_counts >= self.branch_count) & (level + 1 < self.levels)
            kept = ~branches & (dp_counts >= self.keep_count)
            found = _renumbered(kept, child)
            leaf = np.where(found >= 0, found + len(dp_leaves), leaf)
            dp_leaves = np.concatenate([dp_leaves, dp_counts[kept]])
            node, nodes = _renumbered(branches, child), int(branches.sum())
            if not nodes:
                break
        return leaf, dp_leaves

    def _noisy_counts(self, private_nodes: np.ndarray, nodes: int) -> np.ndarray:
        counts = np.bincount(private_nodes[private_nodes >= 0], minlength=nodes)
        released = NoisyHistogram(
            noise="gaussian",
            scale=self.count_noise_std,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        ).release(counts.tolist())
        return released.value.astype(np.float64)

    def _noisy_sums(self, clipped: np.ndarray, leaves: np.ndarray, count: int) -> np.ndarray:
        """(count, d) float64 sums of the leaves' records with noise on every entry."""
        private_sums = np.zeros((count, clipped.shape[1]), dtype=np.int64)
        np.add.at(private_sums, leaves[leaves >= 0], clipped[leaves >= 0])
        noisy = discrete_gaussian(
            private_sums.reshape(-1).tolist(), noise_for_gaussian(self._noise_steps)
        )
        return self._lattice.to_floats(np.array(noisy, dtype=np.int64)).reshape(private_sums.shape)


def _renumbered(chosen: np.ndarray, private_nodes: np.ndarray) -> np.ndarray:
    """Numbers the chosen nodes 0, 1, ... and looks up each record's; -1 for all others."""
    numbers = np.where(chosen, np.cumsum(chosen) - 1, _CLOSED)
    found: np.ndarray = np.where(private_nodes >= 0, numbers[private_nodes], _CLOSED)
    return found
