"""Secret clustering: public clusters moved a little by noisy private records (SecPE, Algorithm 2).

Counts and sums of records around public centres are integers on a lattice.

Shape letters: N private records, K public clusters, d dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, NeighboringRelation, Release
from dpsynth_assets.privacy.lattice import LARGEST_SUM, Lattice, noise_for_gaussian
from dpsynth_assets.privacy.noise import discrete_gaussian, secure_bernoulli
from dpsynth_assets.privacy.secret_noise import SecretSampling, shift_event
from dpsynth_assets.privacy.secret_protection import ROUND_UP

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

    def sampled(
        self,
        private_embeddings: np.ndarray,
        groups: np.ndarray | None,
        chances: float | np.ndarray,
    ) -> np.ndarray:
        """Samples records and does as `of` with them. Private.

        Records may be in several places, each of which is given to this once: the sum over the
        places is the statistics of a sample of all records.

        Args:
            private_embeddings: (N, d) numbers, N >= 0.
            groups: (N,) group of each record; None: there are no groups.
            chances: Public sampling probability of all records, or (N,) one for each.

        Raises:
            ValueError: If a shape does not fit.

        **Privacy** Each record tosses a coin of its own, from the randomness of the operating
        system where the record is read. No coin is a function of another record, or of a seed.
        """
        embeddings = np.asarray(private_embeddings)
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dimensions:
            raise ValueError(
                f"Expected embeddings of shape (N, {self.dimensions}), got {embeddings.shape}."
            )
        if groups is not None and np.shape(groups) != (len(embeddings),):
            raise ValueError("Expected one group for each record, got another number of them.")
        if np.ndim(chances) == 0:
            chances = np.full(len(embeddings), chances)
        if np.shape(chances) != (len(embeddings),):
            raise ValueError(
                f"Expected one sampling probability for each of {np.size(chances)} declared "
                "records, got another number of embeddings."
            )
        drawn = secure_bernoulli(np.asarray(chances))  # [secpe A2:L6-8]
        return self.of(embeddings[drawn], None if groups is None else np.asarray(groups)[drawn])

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


SampleAndSum = Callable[[np.ndarray, np.ndarray | None, float | np.ndarray], np.ndarray]
"""`ClusterStatistics.sampled`."""


class SecretClustering:
    """Releases noisy clusters of a fresh sample of private records, once.

    **Privacy** (p, r)-secret protection, not DP: see `shift_event` and `posterior_of_events`.
    A sampled record adds one vector to a lattice sum, a function of itself and public centres
    (`ClusterStatistics`), so n sampled records of a secret move the stack by at most √2 n B when
    they come or go (2 n B when replaced), exactly, B steps being one record. Noise of σ B steps on
    every entry gives a shift of √2 n at noise σ, the event's. Public centres and counts are
    external: they must not change when a record does, not even when a record loses its secret and
    might count as public.

    **Source** SecPE, Algorithm 2, repaired: assignments go to the original centres (line 10 with
    line 5 overwrites those that line 9 compares, so that one record redirects later ones);
    noise is calibrated for counts and centres together; sums are noised rather than means (R σ
    on a sum, where line 13 puts 2 R σ / n_k on a mean over n_k + m_k records) and divided by
    noisy counts, which is post-processing; centres are clipped to R too (errata B-004.1,
    .2, .9, .11).
    """

    def __init__(
        self,
        *,
        sampling: SecretSampling,
        noise_std: float,
        relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
        **public_clusters: Any,
    ) -> None:
        """Copies the public clusters, so that nothing released can replace them.

        Args:
            sampling: Who takes part, from public facts.
            noise_std: σ, in records (`secret_noise_std`).
            relation: Whether a secret's records are absent from a neighbour, or replaced.
            **public_clusters: What `ClusterStatistics` takes.

        Raises:
            ValueError: If shapes disagree or a setting is outside its domain.
        """
        self._statistics = ClusterStatistics(**public_clusters)
        self._sampling, self._released = sampling, False
        self.event = shift_event(
            count_probabilities=sampling.count_probabilities,
            noise_std=float(noise_std),
            steps=1,
            relation=relation,
        )
        """Prices the release."""
        self._noise_steps = float(noise_std) * self._statistics.steps * ROUND_UP
        if not 1 <= self._noise_steps <= LARGEST_SUM / 64:
            raise ValueError(f"Expected noise_std between 1e-7 and 1e9 records, got {noise_std}.")

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, each of which could release once more."""
        raise TypeError("Expected one SecretClustering for a release, got a request to copy it.")

    def release(
        self, private_embeddings: np.ndarray, groups: np.ndarray | None = None
    ) -> Release[NoisyClusters]:
        """Samples records, adds noise to their cluster statistics, and merges the public ones.

        Args:
            private_embeddings: (N, d) numbers, N >= 0. A row with NaN or infinity counts as the
                zero vector.
            groups: (N,) group of each record; where given, only centres of it may be nearest.

        Returns:
            Clusters with their cost, under SECRET.

        Raises:
            UnaccountedReleaseError: Before a record is read, if the release was made.
            ValueError: If the shape does not fit.
        """
        return self.release_sums(
            lambda of: of(private_embeddings, groups, self._sampling.probabilities)
        )

    def release_sums(self, summed: Callable[[SampleAndSum], np.ndarray]) -> Release[NoisyClusters]:
        """Does as `release` with records that lie somewhere else, in several places perhaps.

        Args:
            summed: Gives every record once to what it is called with, with the probability of
                `sampling`, and returns the sum. Called once.

        Raises:
            UnaccountedReleaseError: Before a record is read, if the release was made.
            TypeError: The sums are not whole numbers of the expected shape.
            OverflowError: They could leave 64-bit integers.
        """
        if self._released:
            raise UnaccountedReleaseError(
                "Expected one secret clustering for its charge, got one more. Plan another release."
            )
        self._released = True
        sums = self._checked(summed(self._statistics.sampled))
        noisy = discrete_gaussian(sums.reshape(-1).tolist(), noise_for_gaussian(self._noise_steps))
        dp_statistics = np.array(noisy, dtype=np.float64).reshape(sums.shape)
        cost = Cost(guarantee=GuaranteeType.SECRET, event=self.event)
        return Release(value=self._statistics.merge(dp_statistics), cost=cost)

    def _checked(self, sums: np.ndarray) -> np.ndarray:
        """Refuses sums that are none of these statistics; no number is shown."""
        if sums.dtype != np.int64 or sums.shape != self._statistics.shape:
            raise TypeError(
                f"Expected int64 sums of shape {self._statistics.shape}, got {sums.dtype} of "
                f"{sums.shape}."
            )
        if sum(sums[:, 0].tolist()) > LARGEST_SUM:
            raise OverflowError("Expected sums that fit 64-bit integers, got too many records.")
        return sums
