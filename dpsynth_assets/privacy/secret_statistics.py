"""Counts and sums of records around public centres, as integers on a lattice.

Shape letters: N private records, K public centres, d dimensions.
"""

from dataclasses import dataclass

import numpy as np

from dpsynth_assets.privacy.lattice import LARGEST_SUM, Lattice

BLOCK_ENTRIES = 1 << 22
"""Distances, and entries of records, held at a time: 32 MiB each."""

COARSENING = 8.0
"""Steps of the usual lattice in one step here, so that inner products stay below 2^50: exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyClusters:
    """Released clusters.

    Attributes:
        centres: (K, d) ẽ.
        counts: (K,) ñ, public plus noisy private records; may be negative.
    """

    centres: np.ndarray
    counts: np.ndarray


class ClusterStatistics:
    """Contributions of records to clusters of public centres, and clusters that follow from them.

    **Privacy** A record adds one vector: B to the count of its nearest public centre and integers
    of norm at most B to that centre's sum (`Lattice.clip`). The vector depends on the record, its
    group and public centres only; √2 B is its norm at most, exactly.
    """

    def __init__(
        self,
        *,
        public_centres: np.ndarray,
        public_counts: np.ndarray,
        l2_bound: float,
        centre_groups: np.ndarray | None = None,
    ) -> None:
        """Copies the public clusters, so that nothing released can replace them.

        Args:
            public_centres: (K, d) finite centres of an external public corpus.
            public_counts: (K,) public records of each, at least 1.
            l2_bound: R > 0, norm bound of private embeddings; 1 for cosine similarity.
            centre_groups: (K,) group of each centre, e.g. its label: a record goes to the nearest
                centre of its own group. None: there are no groups.

        Raises:
            ValueError: If shapes disagree or a setting is outside its domain.
        """
        centres = np.array(public_centres, dtype=np.float64)
        counts = np.array(public_counts, dtype=np.float64)
        if centres.ndim != 2 or not centres.size or counts.shape != centres.shape[:1]:
            raise ValueError(
                "Expected (K, d) public centres with (K,) counts, "
                f"got {centres.shape} and {counts.shape}."
            )
        if not (np.isfinite(centres).all() and (counts >= 1).all() and np.isfinite(counts).all()):
            raise ValueError("Expected finite public centres and counts of at least 1.")
        groups = np.zeros(len(counts)) if centre_groups is None else np.array(centre_groups)
        if groups.shape != counts.shape:
            raise ValueError(f"Expected (K,) groups of centres, got shape {groups.shape}.")
        self._l2_bound = float(l2_bound)
        self._lattice = Lattice(Lattice.for_bound(self._l2_bound).spacing * COARSENING)
        self.steps = self._lattice.steps(self._l2_bound)
        """B: lattice steps of one record."""
        self._centre_steps = self._lattice.clip(centres, self._l2_bound)
        self._counts, self._groups = counts, groups

    @property
    def dimensions(self) -> int:
        """Dimensions d of embeddings and centres."""
        return int(self._centre_steps.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(K, 1 + d) of what `of` computes."""
        return len(self._counts), 1 + self.dimensions

    def of(self, private_embeddings: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
        """Computes (K, 1 + d) int64 counts and sums in lattice steps. Private.

        Args:
            private_embeddings: (N, d) numbers; a row with NaN or infinity counts as zeros.
            groups: (N,) group of each record; a record of a group without a centre adds nothing.

        Raises:
            OverflowError: If the sums could leave 64-bit integers, after some 2^37 records.
            ValueError: If there is not one group for each record.
        """
        if len(private_embeddings) > LARGEST_SUM // self.steps:
            raise OverflowError("Expected sums that fit 64-bit integers, got too many records.")
        groups = np.zeros(len(private_embeddings)) if groups is None else np.asarray(groups)
        if len(groups) != len(private_embeddings):
            raise ValueError("Expected one group for each record, got another number of them.")
        statistics = np.zeros(self.shape, dtype=np.int64)
        rows = max(1, BLOCK_ENTRIES // max(statistics.shape))
        for start in range(0, len(private_embeddings), rows):
            block = private_embeddings[start : start + rows]
            self._add(statistics, block, groups[start : start + rows])
        return statistics

    def merge(self, dp_statistics: np.ndarray) -> NoisyClusters:
        """Adds the public clusters to released statistics; post-processing; [secpe A2:L13]."""
        dp_counts = dp_statistics[:, 0] / self.steps
        public_sums = self._counts[:, None] * self._lattice.to_floats(self._centre_steps)
        dp_sums = dp_statistics[:, 1:] * self._lattice.spacing
        weight = self._counts + np.maximum(dp_counts, 0.0)
        centres = (public_sums + dp_sums) / weight[:, None]
        return NoisyClusters(centres=centres, counts=self._counts + dp_counts)

    def _add(self, statistics: np.ndarray, block: np.ndarray, groups: np.ndarray) -> None:
        known = np.isin(groups, self._groups)
        clipped = self._lattice.clip(block[known], self._l2_bound)  # [secpe A2:L5]
        nearest = self._nearest(clipped, groups[known])
        members = np.bincount(nearest, minlength=len(statistics))
        statistics[:, 0] += members * self.steps  # [secpe A2:L10]
        places = np.split(np.argsort(nearest, kind="stable"), np.cumsum(members)[:-1])
        for cluster, place in enumerate(places):
            statistics[cluster, 1:] += clipped[place].sum(axis=0)

    def _nearest(self, clipped: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Assigns (n,) clipped records to original centres, ties to the first; [secpe A2:L9].

        |q − e|² is compared through 2⟨q, e⟩ − |e|², integers below 2^53: float64 products are
        exact, so that no record's assignment depends on the others of its block.
        """
        centres = self._centre_steps.astype(np.float64)
        offsets = np.einsum("kd,kd->k", centres, centres)
        scores = 2.0 * (clipped.astype(np.float64) @ centres.T) - offsets
        scores[groups[:, None] != self._groups] = -np.inf
        return np.asarray(np.argmax(scores, axis=1))
