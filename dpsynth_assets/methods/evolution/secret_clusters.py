"""Public clusters of each label, the noise of their counts and centres, and the stored release.

Centres and counts are released once: they do not depend on the candidates, so that one release
serves every round of votes, where Algorithm 3 of the paper draws new ones in each.

**Privacy** Noise, sampling and event follow from declared numbers alone: the records' secrets are
private, and a rate computed from them would be another mechanism for each neighbour (errata
B-004.7).

Shape letters: L labels, K clusters of each at most, C clusters of all, d dimensions.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.clustering import fit_centers, nearest_center
from dpsynth_assets.datasets.secrets import SecretsSpec, incidence_digest
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution.config import (
    EVERY_RECORD,
    NOISE_FLOOR,
    PUBLIC_DOCUMENTS,
    SecPeConfig,
)
from dpsynth_assets.methods.evolution.secret_incidence import (
    PublicIncidence,
    aligned_probabilities,
    read_public_incidence,
    solved_sampling,
)
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, label_indices
from dpsynth_assets.methods.plan_cache import remembered_call, sampled_noise
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import Event, PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_clustering import SampleAndSum, SecretClustering
from dpsynth_assets.privacy.secret_noise import (
    SecretSampling,
    joint_factor,
    secret_noise_std,
    shift_event,
)
from dpsynth_assets.privacy.secret_protection import (
    ROUND_UP,
    gaussian_budget,
    gaussian_posterior,
    posterior_of_events,
)

L2_BOUND = 1.0
"""R: embeddings have unit length, so that distances are cosines ([secpe Rem. 3.4])."""

CLUSTERS_FILE = "clusters.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicClusters:
    """Clusters of public documents, before any private record.

    Attributes:
        centres: float32 (C, d), unit length.
        counts: float64 (C,), public documents of each, at least 1.
        labels: int64 (C,), number of the label each stands for.
    """

    centres: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Representatives:
    """Released clusters; they vote in place of the records.

    Attributes:
        centres: float32 (1, C, d).
        counts: float64 (1, C), noisy, public documents included; may be negative.
        labels: int64 (C,).
        public_counts: float64 (C,), what public documents added to the counts.
    """

    centres: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    public_counts: np.ndarray = field(repr=False)

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
    secret (errata B-004.11).

    **Source** SecPE, Algorithm 2, line 2 [secpe A2:L2].
    """
    documents = public.required("public_records").head(PUBLIC_DOCUMENTS)
    embeddings = public.required("text_embedder").embed(documents["text"].to_list(), public=True)
    of_documents = np.asarray(documents["label"].to_list())
    of_all = cache(lambda: _clustered(embeddings, config.clusters, public.seed))
    parts = []
    for number, label in enumerate(terms.labels):
        own = embeddings[of_documents == label]
        few = len(own) < config.clusters
        centres, counts = of_all() if few else _clustered(own, config.clusters, public.seed)
        parts.append((centres, counts, np.full(len(centres), number)))
    centres, counts, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return PublicClusters(centres=centres, counts=counts, labels=labels.astype(np.int64))


def _clustered(embeddings: np.ndarray, clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres of k-means and documents of each, at least 1."""
    clusters = min(clusters, len(embeddings))
    centres = fit_centers(embeddings, clusters=clusters, seed=seed % 2**31)
    members = np.bincount(nearest_center(embeddings, centres), minlength=len(centres))
    return centres, np.maximum(members, 1.0)


@dataclass(frozen=True, kw_only=True)
class ClusterReleases:
    """The release of noisy clusters.

    Attributes:
        record_level: Whether records are protected beside secrets.
        terms: Declared facts, with what is promised to secrets.
        noise_std: σ of every count and of every unit vector, in records.
        count_probabilities: Law of how many records of one secret take part.
    """

    record_level: bool
    terms: CohortTerms
    noise_std: float
    count_probabilities: tuple[float, ...]

    def event(self) -> Event:
        """Prices the release: for the neighbours of a secret, or for those of a record as well.

        **Privacy** A record that comes or goes moves counts and sums together by at most √2, so the
        same noise is √2 times smaller beside it. What this reveals about a secret in m records
        follows by group privacy (`secret_event`) and is the very mixture that would be charged for
        secrets alone.
        """
        if not self.record_level:
            return self._secret_event()
        return PoissonGaussianEvent(
            sampling_probability=EVERY_RECORD,  # The linear program always draws some, too.
            noise_multiplier=self.noise_std / joint_factor(NeighboringRelation.ADD_REMOVE),
            steps=1,
            max_records_per_unit=self.terms.unit.max_records,
            replaced=self.terms.relation is NeighboringRelation.REPLACE_ONE,
        )

    def posteriors(self) -> dict[str, float]:
        """Computes r of this release alone, kind by kind; the ledger's is of all releases."""
        return {
            each.name: remembered_call(
                posterior_of_events, events=[self._secret_event()], prior=each.prior
            )
            for each in promise_of(self.terms).kinds
        }

    def release(self, clusters: PublicClusters, private: PrivateInputs) -> Representatives:
        """Releases the noisy clusters.

        Raises:
            UnaccountedReleaseError: If the declared incidence is not the one that was planned.

        **Privacy** The event and no more, regardless of the records and their secrets. A record
        goes to the nearest centre of its own label; one under an undeclared label to none.

        **Source** SecPE, Algorithm 2.
        """
        promise = promise_of(self.terms)
        incidence, sampling = sampling_of(promise)
        mechanism = SecretClustering(
            public_centres=clusters.centres,
            public_counts=clusters.counts,
            l2_bound=L2_BOUND,
            sampling=sampling,
            noise_std=self.noise_std,
            relation=promise.relation,
            centre_groups=clusters.labels,
        )
        if mechanism.event != self._secret_event() and not self.record_level:
            raise UnaccountedReleaseError(
                "Expected the public incidence that was planned, got another. Plan again."
            )

        def summed(of: SampleAndSum) -> np.ndarray:
            return private.counted(
                ClusterSums(of=of, labels=self.terms.labels, sampling=sampling, incidence=incidence)
            )

        released = mechanism.release_sums(summed).value
        return Representatives(
            centres=released.centres[None].astype(np.float32),
            counts=released.counts[None],
            labels=clusters.labels,
            public_counts=clusters.counts,
        )

    def _secret_event(self) -> Event:
        return shift_event(
            count_probabilities=np.array(self.count_probabilities),
            noise_std=self.noise_std,
            steps=1,
            relation=promise_of(self.terms).relation,
        )


def promise_of(terms: CohortTerms) -> SecretsSpec:
    """Returns what the cohort promises to secrets.

    Raises:
        ValueError: If it promises nothing.
    """
    if terms.secrets is None:
        raise ValueError(
            "Expected secrets in the dataset file for secpe, got none. Declare kinds of secrets, "
            "each with prior, posterior and max_records."
        )
    return terms.secrets


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterSums:
    """Samples some records and sums their contributions, for `PrivateInputs.counted`.

    Attributes:
        of: Samples and sums.
        labels: Declared labels, in order.
        sampling: All records take part, or those of the listed ones by their probabilities.
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
        chances = self.sampling.probabilities
        if self.incidence is not None:
            ids = private.records["record_id"].to_list()
            chances = aligned_probabilities(self.incidence, self.sampling, ids)
        own = label_indices(private.records["label"], self.labels)
        return self.of(private.vectors, own, chances)


def sampling_of(promise: SecretsSpec) -> tuple[PublicIncidence | None, SecretSampling]:
    """Who takes part, from declared facts: all alike, or by the linear program.

    Without a public incidence the law is that of the most records one secret may have.

    Raises:
        IncidenceError: If the declared public incidence cannot be used.
    """
    if not promise.public_incidence:
        most = promise.max_records
        return None, SecretSampling.capped(probability=EVERY_RECORD, max_occurrences=most)
    incidence = read_public_incidence(promise)
    return incidence, solved_sampling(incidence, promise)


def _file(folder: Path) -> str:
    return str(folder / CLUSTERS_FILE)


def share_of_bound(config: SecPeConfig, terms: CohortTerms) -> float:
    """Share of the secrets' bound that is used: the cohort's division, else the declared."""
    if terms.secret_share is not None:
        return terms.secret_share
    return 1.0 if config.secret_share is None else config.secret_share


def calibrated(config: SecPeConfig, terms: CohortTerms, target_epsilon: float) -> ClusterReleases:
    """Finds the least noise that every kind's (p, r) allows, and records' ε where it is asked for.

    Law and noise are kept between processes.

    Args:
        config: Settings.
        terms: Declared facts.
        target_epsilon: ε that the release may cost where records are protected too.

    Raises:
        IncidenceError: If the declared public incidence cannot be used.

    **Source** SecPE, Algorithm 1, with the exact mixture and one noise for counts and centres
    together (errata B-004.1, .6).
    """
    promise = promise_of(terms)
    bounds = shared_bounds(promise, share_of_bound(config, terms))
    # [secpe A2:L3]
    found = remembered_call(
        _noise_for_secrets, promise=promise, bounds=bounds, incidence=incidence_digest(promise)
    )
    noise_std = float(found["noise_std"])
    if config.record_level:
        noise_std = max(noise_std, _noise_for_records(terms, target_epsilon))
    return ClusterReleases(
        record_level=config.record_level,
        terms=terms,
        noise_std=noise_std,
        count_probabilities=tuple(found["count_probabilities"]),
    )


def _noise_for_secrets(
    promise: SecretsSpec, bounds: list[tuple[float, float]], incidence: str
) -> dict[str, Any]:
    del incidence  # Read from its file; the digest tells one file from another.
    _, sampling = sampling_of(promise)
    noise_std = secret_noise_std(
        count_probabilities=sampling.count_probabilities,
        bounds=bounds,
        steps=1,
        relation=promise.relation,
        noise_floor=NOISE_FLOOR,
    )
    return {"noise_std": noise_std, "count_probabilities": sampling.count_probabilities.tolist()}


def _noise_for_records(terms: CohortTerms, target_epsilon: float) -> float:
    """Finds σ at which the release costs at most `target_epsilon` as a DP release."""
    multiplier = sampled_noise(
        terms, sampling_probability=EVERY_RECORD, steps=1, target_epsilon=target_epsilon
    )
    return multiplier * joint_factor(NeighboringRelation.ADD_REMOVE) * ROUND_UP


def shared_bounds(promise: SecretsSpec, share: float) -> list[tuple[float, float]]:
    """Computes (p, r) of each kind where a share of its squared μ may be used.

    **Privacy** A planning aid: the ledger composes the pairs of all releases and compares what
    comes out with the declared (p, r) itself.
    """
    return [
        (prior, gaussian_posterior(math.sqrt(share) * gaussian_budget(prior, posterior), prior))
        if share < 1
        else (prior, posterior)
        for prior, posterior in promise.bounds
    ]
