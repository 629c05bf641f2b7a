"""Secret clustering: public clusters moved a little by noisy private records (SecPE, Algorithm 2).

Shape letters: N private records, K public clusters, d dimensions.
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from dpsynth_assets.privacy.blow_up import ROUND_UP
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.lattice import LARGEST_SUM, Lattice
from dpsynth_assets.privacy.noise import discrete_gaussian, secure_bernoulli
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.secret_noise import shift_event
from dpsynth_assets.privacy.secret_sampling import SecretSampling
from dpsynth_assets.privacy.units import NeighboringRelation

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


class SecretClustering:
    """Releases noisy clusters `iterations` times, each over a fresh sample of private records.

    **Privacy** (p, r)-secret protection, not DP: see `shift_event` and `posterior_of_events`.
    A sampled record adds one vector to a lattice sum: B to the count of its nearest public
    centre and integers of norm at most B to that centre's sum (`Lattice.clip`), B steps being
    one record and, in the sums, the norm bound R. One vector depends on one record and public
    centres only, so n sampled records of a secret move the stack by at most √2 n B when they
    come or go (2 n B when replaced), exactly. Noise of σ B steps on every entry gives a shift of
    √2 n at noise σ, the event's. Public centres and counts are external: they must not change
    when a record does, not even when a record loses its secret and might count as public.

    **Source** SecPE, Algorithm 2, repaired: assignments go to the original centres (line 10 with
    line 5 overwrites those that line 9 compares, so that one record redirects later ones);
    noise is calibrated for counts and centres together; sums are noised rather than means (R σ
    on a sum, where line 13 puts 2 R σ / n_k on a mean over n_k + m_k records) and divided by
    noisy counts, which is post-processing; centres are clipped to R too (errata B-004.1, .2, .9).
    """

    def __init__(
        self,
        *,
        public_centres: np.ndarray,
        public_counts: np.ndarray,
        l2_bound: float,
        sampling: SecretSampling,
        noise_std: float,
        iterations: int,
        relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
    ) -> None:
        """Copies the public clusters, so that nothing released can replace them.

        Args:
            public_centres: (K, d) finite centres of an external public corpus.
            public_counts: (K,) public records of each, at least 1.
            l2_bound: R > 0, norm bound of private embeddings; 1 for cosine similarity.
            sampling: Who takes part in a round, from public facts.
            noise_std: σ, in records (`secret_noise_std`).
            iterations: T, releases; all are charged.
            relation: Whether a secret's records are absent from a neighbour, or replaced.

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
        if iterations < 1:
            raise ValueError(f"Expected iterations >= 1, got {iterations}.")
        self._sampling, self._relation = sampling, NeighboringRelation(relation)
        self._noise_std, self._iterations, self._released = float(noise_std), int(iterations), 0
        _ = self.event
        self._l2_bound = float(l2_bound)
        self._lattice = Lattice(Lattice.for_bound(self._l2_bound).spacing * COARSENING)
        self._steps = self._lattice.steps(self._l2_bound)
        self._noise_steps = self._noise_std * self._steps * ROUND_UP
        if not 1 <= self._noise_steps <= LARGEST_SUM / 64:
            raise ValueError(f"Expected noise_std between 1e-7 and 1e9 records, got {noise_std}.")
        self._centre_steps = self._lattice.clip(centres, self._l2_bound)
        self._counts = counts

    @property
    def event(self) -> MixtureGaussianEvent:
        """Prices all T releases."""
        return self._event(self._iterations)

    @property
    def remaining(self) -> int:
        """Releases that may still be made."""
        return self._iterations - self._released

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, each of which could release T times more."""
        raise TypeError("Expected one SecretClustering for T releases, got a request to copy it.")

    def release(self, private_embeddings: np.ndarray) -> Release[NoisyClusters]:
        """Samples records, adds noise to their cluster statistics, and merges the public ones.

        Args:
            private_embeddings: (N, d) numbers, N >= 0. A row with NaN or infinity counts as the
                zero vector.

        Returns:
            Clusters with the cost of one round, under SECRET.

        Raises:
            UnaccountedReleaseError: Before a record is read, if T releases were made.
            ValueError: If the shape does not fit.
        """
        if self.remaining < 1:
            raise UnaccountedReleaseError(
                f"Expected at most {self._iterations} secret clusterings, got one more. "
                "Plan more iterations, or stop."
            )
        self._released += 1
        statistics = self.private_statistics(self._sample(private_embeddings))
        noisy = discrete_gaussian(statistics.reshape(-1).tolist(), self._noise_steps)
        dp_statistics = np.array(noisy, dtype=np.float64).reshape(statistics.shape)
        cost = Cost(guarantee=GuaranteeType.SECRET, event=self._event(1))
        return Release(value=self._merge(dp_statistics), cost=cost)

    def private_statistics(self, private_embeddings: np.ndarray) -> np.ndarray:
        """Computes (K, 1 + d) int64 counts and sums in lattice steps. Private.

        Raises:
            OverflowError: If the sums could leave 64-bit integers, after some 2^37 records.
        """
        if len(private_embeddings) > LARGEST_SUM // self._steps:
            raise OverflowError("Expected sums that fit 64-bit integers, got too many records.")
        clusters, dimensions = self._centre_steps.shape
        statistics = np.zeros((clusters, 1 + dimensions), dtype=np.int64)
        rows = max(1, BLOCK_ENTRIES // max(clusters, dimensions))
        for start in range(0, len(private_embeddings), rows):
            block = private_embeddings[start : start + rows]
            clipped = self._lattice.clip(block, self._l2_bound)  # [secpe A2:L5]
            nearest = self._nearest(clipped)
            members = np.bincount(nearest, minlength=clusters)
            statistics[:, 0] += members * self._steps  # [secpe A2:L10]
            places = np.split(np.argsort(nearest, kind="stable"), np.cumsum(members)[:-1])
            for cluster, place in enumerate(places):
                statistics[cluster, 1:] += clipped[place].sum(axis=0)
        return statistics

    def _event(self, steps: int) -> MixtureGaussianEvent:
        return shift_event(
            count_probabilities=self._sampling.count_probabilities,
            noise_std=self._noise_std,
            steps=steps,
            relation=self._relation,
        )

    def _sample(self, private_embeddings: np.ndarray) -> np.ndarray:
        """Takes each record with its own public probability; [secpe A2:L7] [secpe A2:L8]."""
        embeddings = np.asarray(private_embeddings)
        if embeddings.ndim != 2 or embeddings.shape[1] != self._centre_steps.shape[1]:
            raise ValueError(
                f"Expected embeddings of shape (N, {self._centre_steps.shape[1]}), "
                f"got {embeddings.shape}."
            )
        chances = self._sampling.probabilities
        if np.ndim(chances) == 0:
            chances = np.full(len(embeddings), chances)
        if np.shape(chances) != (len(embeddings),):
            raise ValueError(
                f"Expected one sampling probability for each of {np.size(chances)} declared "
                "records, got another number of embeddings."
            )
        return embeddings[secure_bernoulli(np.asarray(chances))]

    def _nearest(self, clipped: np.ndarray) -> np.ndarray:
        """Assigns (n,) clipped records to original centres, ties to the first; [secpe A2:L9].

        |q − e|² is compared through 2⟨q, e⟩ − |e|², integers below 2^53: float64 products are
        exact, so that no record's assignment depends on the others of its block.
        """
        centres = self._centre_steps.astype(np.float64)
        offsets = np.einsum("kd,kd->k", centres, centres)
        scores = 2.0 * (clipped.astype(np.float64) @ centres.T) - offsets
        return np.asarray(np.argmax(scores, axis=1))

    def _merge(self, dp_statistics: np.ndarray) -> NoisyClusters:
        """Adds the public clusters to released statistics; post-processing; [secpe A2:L13]."""
        dp_counts = dp_statistics[:, 0] / self._steps
        public_sums = self._counts[:, None] * self._lattice.to_floats(self._centre_steps)
        dp_sums = dp_statistics[:, 1:] * self._lattice.spacing
        weight = self._counts + np.maximum(dp_counts, 0.0)
        centres = (public_sums + dp_sums) / weight[:, None]
        return NoisyClusters(centres=centres, counts=self._counts + dp_counts)
