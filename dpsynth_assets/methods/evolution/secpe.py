"""SecPE: a population evolves under the votes of clusters that were released once.

Letters: C clusters, N candidates, L labels.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsynth_assets.datasets.secrets import incidence_digest
from dpsynth_assets.methods.base import mechanism_of, planned, require_share
from dpsynth_assets.methods.capabilities import (
    Advice,
    Candidate,
    DeclaredFacts,
)
from dpsynth_assets.methods.evolution.config import (
    PUBLIC_DOCUMENTS,
    EvolutionConfig,
    SecPeConfig,
)
from dpsynth_assets.methods.evolution.method import (
    FREE_SETTINGS,
    STAGE,
    EvolutionMethod,
    evolution_settings,
)
from dpsynth_assets.methods.evolution.population import write_generations
from dpsynth_assets.methods.evolution.secret_clusters import (
    ClusterReleases,
    Representatives,
    calibrated,
    promise_of,
    public_clusters,
    share_of_bound,
)
from dpsynth_assets.methods.inputs import (
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.row_rules import SCHEMA
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class RepresentativeVotes:
    """Lets the representatives of each label vote for candidates of that label.

    **Privacy** Reads released clusters and public candidates only; any number of rounds is free.

    **Source** SecPE, Algorithm 3, lines 8 to 11. Where the printed lines give all votes of a
    representative to the nearest candidate, no more candidates than clusters get any: here they
    are divided (`quota_votes`). One whose noisy count is negative gives no votes, where the printed
    line would take some away from its nearest candidate.

    Attributes:
        representatives: Released clusters.
        sizes: (L,) survivors of each label, for quotas.
    """

    representatives: Representatives
    sizes: np.ndarray

    def __call__(
        self, rounds: int, population: "pl.DataFrame", embeddings: np.ndarray
    ) -> np.ndarray:
        """Counts the votes of one round.

        Args:
            rounds: Rounds before.
            population: N candidates.
            embeddings: float32 (N, d).

        Returns:
            float64 (N,) votes, not negative.
        """
        del rounds
        (centres,), (counts,) = self.representatives.centres, self.representatives.counts
        weights, votes = np.maximum(counts, 0.0), np.zeros(population.height)
        for label, size in enumerate(self.sizes.tolist()):
            own = self.representatives.labels == label
            candidates = np.flatnonzero(population["label"].to_numpy() == label)
            votes[candidates] = quota_votes(
                centres[own], weights[own], embeddings[candidates], size
            )
        return votes


def quota_votes(
    centres: np.ndarray, weights: np.ndarray, candidates: np.ndarray, size: int
) -> np.ndarray:
    """Divides each representative's weight over its share of the survivors: float64 (N,).

    A representative of a tenth of the weight votes for the tenth of `size` candidates that are
    nearest to it, in equal parts.

    Args:
        centres: (C, d).
        weights: (C,) not negative.
        candidates: (N, d).
        size: Candidates that are to survive.
    """
    votes = np.zeros(len(candidates))
    total = weights.sum()
    if not len(candidates) or total <= 0:
        return votes
    quotas = np.clip(np.rint(size * weights / total), 1, len(candidates)).astype(np.int64)
    half_norms = np.einsum("nd,nd->n", candidates, candidates) / 2.0
    for centre, weight, quota in zip(
        centres, weights, quotas.tolist(), strict=True
    ):  # [secpe A3:L8]
        scores = candidates @ centre - half_norms  # As −‖x − c‖² orders them.
        nearest = np.argpartition(-scores, quota - 1)[:quota]  # [secpe A3:L9]
        votes[nearest] += weight / quota  # [secpe A3:L10]
    return votes


CLUSTER_STAGE = "secret_clusters"
"""Name of the one paid stage."""

_OF_EVOLUTION = frozenset(
    {*EvolutionConfig.model_fields, *EvolutionConfig.constants, "voting", "label_shares", SCHEMA}
)
"""Settings that the paid stage does not depend on."""


def _for_secrets(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """As Aug-PE, where secrets are declared."""
    asks = "secrets and accountant: tight; it protects only secrets, not whole records"
    settings = evolution_settings(facts)
    return (Candidate(line="secpe", settings=settings, asks=asks, concerns="secrets"),)


class SecPe(EvolutionMethod[SecPeConfig]):
    """Wang et al. 2025: noisy centres and counts of clusters vote in place of the records."""

    name: ClassVar[str] = "secpe"
    title: ClassVar[str] = "SecPE: evolution that protects declared secrets"
    paper: ClassVar[str] = (
        "Wang et al. 2025, Secret-protected evolution for differentially private synthetic text "
        "generation"
    )
    arxiv: ClassVar[str] = "2510.10990"
    guarantee = GuaranteeType.SECRET
    config_type = SecPeConfig
    advice = Advice(candidates=_for_secrets)
    protects_secrets = True

    @property
    def public_inputs(self) -> frozenset[str]:
        """Documents that are clustered, beside what every evolution reads."""
        return super().public_inputs | {"public_corpus"}

    def stages(self) -> tuple[Stage, ...]:
        """The paid clusters, and the population, which follows from them."""
        clusters = self.stage(
            CLUSTER_STAGE,
            title=(
                "Noisy counts and centres of public clusters, from sampled private records "
                "(SecPE, Algorithm 2). Protects declared secrets only: no record, no other content."
            ),
            kinds=("numpy",),
            needs_embeddings=True,
            needs_secrets=True,
            in_parts=True,
            draws=self.release,
            work=self._clusters_work,
            free=_OF_EVOLUTION,
        )
        population = self.stage(
            STAGE,
            title="Texts that won the votes of the released clusters, round by round.",
            kinds=("pytorch", "polars"),
            after=(CLUSTER_STAGE,),
            make=self.make_public,
        )
        return (clusters, population)

    def _clusters_work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the public documents that are embedded to be clustered."""
        documents = min(PUBLIC_DOCUMENTS, sizes.documents)
        return Work(embedded=documents * sizes.text_tokens)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which every kind of secret keeps its (p, r).

        Takes no ε, unless `record_level` asks for the protection of records too; see
        `SecretCalibration`.
        """
        self.require_sound()
        if self.terms.secret_share == 0:
            raise ValueError(
                "Expected a share of the secrets' bound for secpe, got none: the other releases "
                "use all of it. Lower their secret_share or budget.epsilon, or drop the DP "
                "releases."
            )
        if self.config.record_level:
            require_share(self, target_epsilon)
        mechanism = calibrated(self.config, self.terms, target_epsilon)
        return planned(
            self,
            {CLUSTER_STAGE: mechanism},
            {**self.settings(), **self._parameters(mechanism)},
            form=self.form,
            free=FREE_SETTINGS,
            guarantee=self._guarantee,
        )

    def _parameters(self, mechanism: ClusterReleases) -> dict[str, Any]:
        promise, noise_std = promise_of(self.terms), mechanism.noise_std
        return {
            "noise_std": noise_std,
            "secret_share": share_of_bound(self.config, self.terms),
            "count_probabilities": list(mechanism.count_probabilities),
            "public_incidence": incidence_digest(promise),
            "secret_adjacency": str(promise.relation),
            "secrets": [vars(budget) for budget in promise.budgets],
            "posteriors": mechanism.posteriors(),
            "noise": (
                f"Gaussian of {noise_std:.4g} records on every count, and of as many "
                "unit vectors on every sum, in each of 1 releases"
            ),
        }

    @property
    def _guarantee(self) -> GuaranteeType:
        """DP where every record is protected too."""
        return GuaranteeType.DP if self.config.record_level else self.guarantee

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Releases the noisy clusters.

        **Privacy** The planned event: (p, r)-secret protection and no DP of any kind, unless the
        same release is charged for records too. Which secrets were found is not read.

        **Source** SecPE, Algorithms 1 and 2.
        """
        mechanism = mechanism_of(run.stage, ClusterReleases)
        run.progress(0.0, "clustering public documents")
        clusters = public_clusters(self.config, self.terms, run.public)
        run.progress(0.3, f"drawing noise for {len(clusters.counts)} clusters")
        released = mechanism.release(clusters, run.private)  # [secpe A3:L7]
        made = StageRelease(
            facts=_cluster_facts(released, mechanism),
            files=run.checkpoint.filled(released.save),
        )
        cost = Cost(guarantee=self._guarantee, event=mechanism.event())
        return Release(value=made, cost=cost)

    def make_public(
        self, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Evolves the population under the votes of the released clusters.

        **Privacy** Post-processing: no private record is read again, in any iteration.

        **Source** SecPE, Algorithm 3.
        """
        sizes = self.shared_out(self.config.population)
        clusters = Representatives.load(public.released[CLUSTER_STAGE].folder)
        votes = RepresentativeVotes(clusters, sizes)
        generations = self.evolution(public).run(votes, progress).generations
        write_generations(folder, generations)
        return StageRelease(facts=self.facts_of(generations), files=folder)


def _cluster_facts(released: Representatives, mechanism: ClusterReleases) -> dict[str, Any]:
    """Says what may be said of released clusters: functions of them and of the plan."""
    dp_counts = released.counts - released.public_counts
    return {
        "clusters": len(released.labels),
        "releases": 1,
        "noise_std": mechanism.noise_std,
        "posteriors": mechanism.posteriors(),
        "dp_guarantee": "of records too" if mechanism.record_level else "none",
        "dp_counts": np.round(dp_counts, 3).tolist(),
        "counts_above_noise": float((dp_counts > 2 * mechanism.noise_std).mean()),
    }
