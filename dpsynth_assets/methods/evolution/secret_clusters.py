"""Public clusters of each label, the mechanism that moves them, and the file they are released in.

Shape letters: L labels, K clusters of each at most, R releases, d dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from dpsynth_assets.clustering import fit_centers, nearest_center
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.evolution.secret_incidence import (
    PublicIncidence,
    aligned_probabilities,
    read_public_incidence,
    solved_sampling,
)
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import Event, PoissonGaussianEvent
from dpsynth_assets.privacy.secret_clustering import SampleAndSum, SecretClustering
from dpsynth_assets.privacy.secret_noise import (
    SecretPromise,
    joint_factor,
    posteriors_of_round,
    shift_event,
)
from dpsynth_assets.privacy.secret_sampling import SecretSampling
from dpsynth_assets.privacy.units import NeighboringRelation

L2_BOUND = 1.0
"""R: embeddings have unit length, so that distances are cosines ([secpe Rem. 3.4])."""

CLUSTERS_FILE = "clusters.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicClusters:
    """Clusters of public documents, before any private record.

    Attributes:
        centres: float32 (C, d), unit length.
        counts: float64 (C,), weighted public documents of each, at least 1.
        labels: int64 (C,), number of the label each stands for.
    """

    centres: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Representatives:
    """Released clusters; they vote in place of the records.

    Attributes:
        centres: float32 (R, C, d).
        counts: float64 (R, C), noisy, public documents included; may be negative.
        labels: int64 (C,).
        public_counts: float64 (C,), what public documents added to the counts.
    """

    centres: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    public_counts: np.ndarray = field(repr=False)

    def label_counts(self, labels: int) -> np.ndarray:
        """(L,) noisy private records of each label, mean over the releases; not negative."""
        dp_counts = (self.counts - self.public_counts).mean(axis=0)
        return np.maximum(np.bincount(self.labels, weights=dp_counts, minlength=labels), 0.0)

    def save(self, folder: Path) -> None:
        """Writes the released file."""
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(v) for name, v in vars(self).items()}, _file(folder))

    @classmethod
    def load(cls, folder: Path) -> "Representatives":
        """Reads the released file."""
        from safetensors.numpy import load_file

        return cls(**load_file(_file(folder)))


def public_clusters(
    config: SecPeConfig, terms: CohortTerms, public: PublicInputs
) -> PublicClusters:
    """Clusters the public base for each label: documents of the label, or all where they are few.

    **Privacy** Public: an external corpus, which no private record ever joins, with or without a
    secret (errata B-004.2).

    **Source** SecPE, Algorithm 2, line 2.
    """
    if public.public_records is None or public.text_embedder is None:
        raise ValueError("Expected the public corpus and text embedder, got none.")
    documents = public.public_records.head(config.public_documents)
    embeddings = public.text_embedder.embed(documents["text"].to_list(), public=True)
    of_documents = np.asarray(documents["label"].to_list())
    of_all = cache(lambda: _clustered(embeddings, config, public.seed))
    parts = []
    for number, label in enumerate(terms.labels):
        own = embeddings[of_documents == label]
        few = len(own) < config.clusters
        centres, counts = of_all() if few else _clustered(own, config, public.seed)
        parts.append((centres, counts, np.full(len(centres), number)))
    centres, counts, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return PublicClusters(centres=centres, counts=counts, labels=labels.astype(np.int64))


def _clustered(
    embeddings: np.ndarray, config: SecPeConfig, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Centres of k-means and weighted documents of each, at least 1."""
    clusters = min(config.clusters, len(embeddings))
    centres = fit_centers(embeddings, clusters=clusters, seed=seed % 2**31)
    members = np.bincount(nearest_center(embeddings, centres), minlength=len(centres))
    return centres, np.maximum(members * config.public_weight, 1.0)


@dataclass(frozen=True, kw_only=True)
class ClusterReleases:
    """R releases of noisy clusters, all of them charged.

    Attributes:
        config: Settings.
        terms: Declared facts, with what is promised to secrets.
        noise_std: σ of every count and of every unit vector, in records.
        count_probabilities: Law of how many records of one secret take part in a release.
    """

    config: SecPeConfig
    terms: CohortTerms
    noise_std: float
    count_probabilities: tuple[float, ...]

    def event(self) -> Event:
        """Prices all R releases: for the neighbours of a secret, or for those of a record as well.

        **Privacy** A record that comes or goes moves counts and sums together by at most √2, so the
        same noise is √2 times smaller beside it. What this tells of a secret in m records follows
        by group privacy (`secret_event`) and is the very mixture that would be charged for secrets
        alone.
        """
        if not self.config.record_level:
            return self._secret_event()
        return PoissonGaussianEvent(
            sampling_probability=largest_probability(self.config, promise_of(self.terms)),
            noise_multiplier=self.noise_std / joint_factor(NeighboringRelation.ADD_REMOVE),
            steps=self.config.releases,
            max_records_per_unit=self.terms.unit.max_records,
            replaced=self.terms.relation is NeighboringRelation.REPLACE_ONE,
        )

    def posteriors(self) -> dict[str, float]:
        """Computes r of these releases alone, kind by kind; the ledger's is of all releases."""
        promise = promise_of(self.terms)
        found: dict[str, float] = remembered(
            {
                "posteriors": {
                    "noise_std": self.noise_std,
                    "count_probabilities": list(self.count_probabilities),
                },
                "releases": self.config.releases,
                "relation": str(promise.relation),
                "kinds": [vars(budget) for budget in promise.budgets],
            },
            lambda: posteriors_of_round(
                count_probabilities=np.array(self.count_probabilities),
                noise_std=self.noise_std,
                steps=self.config.releases,
                promise=replace(promise, public_incidence=""),
            ),
        )
        return found

    def release(self, clusters: PublicClusters, private: PrivateInputs) -> Representatives:
        """Releases all R noisy clusterings.

        Raises:
            UnaccountedReleaseError: If the declared incidence is not the one that was planned.

        **Privacy** The event and no more, whatever the records and their secrets. A record goes to
        the nearest centre of its own label; one under an undeclared label to none.

        **Source** SecPE, Algorithm 2.
        """
        promise = promise_of(self.terms)
        incidence, sampling = _sampling(self.config, promise)
        mechanism = SecretClustering(
            public_centres=clusters.centres,
            public_counts=clusters.counts,
            l2_bound=L2_BOUND,
            sampling=sampling,
            noise_std=self.noise_std,
            iterations=self.config.releases,
            relation=promise.relation,
            centre_groups=clusters.labels,
        )
        if mechanism.event != self._secret_event() and not self.config.record_level:
            raise UnaccountedReleaseError(
                "Expected the public incidence that was planned, got another. Plan again."
            )

        def summed(of: SampleAndSum) -> np.ndarray:
            return private.counted(
                ClusterSums(of=of, labels=self.terms.labels, sampling=sampling, incidence=incidence)
            )

        rounds = [mechanism.release_sums(summed).value for _ in range(self.config.releases)]
        return Representatives(
            centres=np.stack([each.centres for each in rounds]).astype(np.float32),
            counts=np.stack([each.counts for each in rounds]),
            labels=clusters.labels,
            public_counts=clusters.counts,
        )

    def _secret_event(self) -> Event:
        return shift_event(
            count_probabilities=np.array(self.count_probabilities),
            noise_std=self.noise_std,
            steps=self.config.releases,
            relation=promise_of(self.terms).relation,
        )


def promise_of(terms: CohortTerms) -> SecretPromise:
    """Returns what the cohort promises to secrets.

    Raises:
        ValueError: If it promises nothing.
    """
    if terms.secrets is None:
        raise ValueError("Expected secrets in the dataset file, got none.")
    return terms.secrets


def capped_sampling(config: SecPeConfig, promise: SecretPromise) -> SecretSampling:
    """Draws every record alike; the law is that of the most records one secret may have."""
    return SecretSampling.capped(
        probability=config.sampling_probability, max_occurrences=promise.max_records
    )


def largest_probability(config: SecPeConfig, promise: SecretPromise) -> float:
    """Bounds a record's chance: the linear program always draws some; else all have the same."""
    return 1.0 if promise.public_incidence else config.sampling_probability


def label_numbers(private: PrivateInputs, labels: Sequence[str]) -> np.ndarray:
    """(N,) places of the records' labels among the declared ones, -1 for others. Private."""
    index = {label: number for number, label in enumerate(labels)}
    numbers = (index.get(label, -1) for label in private.records["label"].to_list())
    return np.fromiter(numbers, dtype=np.int64, count=private.records.height)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterSums:
    """Samples some records and sums their contributions, for `PrivateInputs.counted`.

    Attributes:
        of: Samples and sums.
        labels: Declared labels, in order.
        sampling: One public probability for all records, or those of the listed ones.
        incidence: The listed records, where the incidence is declared public.
    """

    of: SampleAndSum
    labels: tuple[str, ...]
    sampling: SecretSampling
    incidence: PublicIncidence | None

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Sums (C, 1 + d) int64 lattice steps of a fresh sample; private.

        Raises:
            ValueError: There are no embeddings.
        """
        if private.embeddings is None:
            raise ValueError("Expected embeddings of the records, got none. Embed them first.")
        chances = self.sampling.probabilities
        if self.incidence is not None:
            ids = private.records["record_id"].to_list()
            chances = aligned_probabilities(self.incidence, self.sampling, ids)
        return self.of(private.embeddings, label_numbers(private, self.labels), chances)


def _sampling(
    config: SecPeConfig, promise: SecretPromise
) -> tuple[PublicIncidence | None, SecretSampling]:
    """Who takes part, from declared facts: one probability, or the linear program's."""
    if not promise.public_incidence:
        return None, capped_sampling(config, promise)
    incidence = read_public_incidence(promise)
    return incidence, solved_sampling(incidence, promise)


def _file(folder: Path) -> str:
    return str(folder / CLUSTERS_FILE)
