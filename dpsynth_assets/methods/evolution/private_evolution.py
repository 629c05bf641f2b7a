"""Aug-PE and SecPE: a population of texts evolves under noisy votes.

Aug-PE takes noisy nearest-neighbour votes of the records in every round. It starts from random
texts of a public model, or from the rows of another released corpus of the cohort: random texts lie
far from the records, and the first votes are spent on leaving them. In SecPE clusters vote that
were released once.

Letters: C clusters, N candidates, L labels.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import polars as pl

from dpsynth_assets.datasets.secrets import incidence_digest
from dpsynth_assets.methods.base import form_of, mechanism_of, planned, require_share
from dpsynth_assets.methods.capabilities import Advice, Candidate, DeclaredFacts, behind
from dpsynth_assets.methods.evolution.config import (
    PUBLIC_DOCUMENTS,
    AugPeConfig,
    AugPeFromCorpusConfig,
    EvolutionConfig,
    SecPeConfig,
    VotedConfig,
)
from dpsynth_assets.methods.evolution.method import (
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
from dpsynth_assets.methods.evolution.votes import PrivateVotes, voting_rounds
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs, rows_behind
from dpsynth_assets.methods.plan_cache import remembered_call
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.row_rules import SCHEMA
from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.histogram import GaussianVoting

VotedT = TypeVar("VotedT", bound=VotedConfig)


class VotedEvolution(EvolutionMethod[VotedT]):
    """Rounds of noisy votes of the records, and the noise on them."""

    paper: ClassVar[str] = (
        "Xie et al. 2024, Differentially private synthetic data via foundation model APIs 2: text"
    )
    arxiv: ClassVar[str] = "2403.01749"
    guarantee = GuaranteeType.DP

    def stages(self) -> tuple[Stage, ...]:
        """The population."""
        stage = self.stage(
            STAGE,
            title="Texts that won the noisy votes of the private records, round by round.",
            kinds=("pytorch", "polars"),
            needs_embeddings=True,
            in_parts=True,
            draws=self.release,
        )
        return (stage,)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all rounds of votes cost at most `target_epsilon`.

        T rounds of integer noise σ on a histogram are one block whose privacy loss is known
        exactly, so no budget is lost to composition and none is left over.

        **Source** Xie et al. 2024, section 3 and appendix; docs/proofs.md.
        """
        self.require_sound()
        terms, iterations = self.terms, self.config.iterations
        noise_std = remembered_call(
            least_noise_std,
            rounds=voting_rounds(terms, iterations, 1.0),
            target_epsilon=target_epsilon,
            delta=terms.delta,
            accountant=terms.accountant,
        )
        noise = (
            f"Gaussian of {noise_std:.4g} votes on each candidate in each of {iterations} rounds"
        )
        return planned(
            self,
            {STAGE: voting_rounds(terms, iterations, noise_std)},
            {**self.settings(), "noise_std": noise_std, "noise": noise},
        )

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Runs the rounds of votes.

        **Privacy** The planned event and no more. Everything between two rounds (selection,
        variations, embeddings of candidates) is post-processing of released votes.

        **Source** Xie et al. 2024, Algorithm 1.
        """
        rounds = mechanism_of(run.stage, GaussianVoting)
        event = rounds.event()
        evolved = self.evolution(run.public).run(
            PrivateVotes(rounds, self.terms.labels, run.private),
            run.progress,
            identity={"event": event_to_json(event), "settings": dict(run.stage.settings)},
            checkpoint=run.checkpoint,
        )
        generations = evolved.generations
        folder = run.checkpoint.filled(lambda files: write_generations(files, generations))
        made = StageRelease(facts=self.facts_of(generations), files=folder)
        return Release(value=made, cost=Cost(guarantee=self.guarantee, event=event))


def least_noise_std(
    rounds: GaussianVoting, target_epsilon: float, delta: float, accountant: str
) -> float:
    """Finds the least noise at which all rounds together cost at most `target_epsilon`."""
    return integer_noise_std(
        lambda noise_std: [replace(rounds, noise_std=noise_std).event()],
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
    )


class AugPe(VotedEvolution[AugPeConfig]):
    """Xie et al. 2024: random texts, private votes, survivors, variations; T times."""

    name: ClassVar[str] = "aug_pe"
    title: ClassVar[str] = "Aug-PE: private evolution of texts"
    config_type = AugPeConfig
    # A population as large as the corpus: votes choose its rows themselves.
    advice = Advice(
        candidates=lambda facts: (Candidate(line="aug_pe", settings=evolution_settings(facts)),),
    )


def _after_ctcl(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """After ctcl, whose rows lie near the records: one round less."""
    settings = {"corpus": "ctcl", **evolution_settings(facts), "iterations": 2}
    return (Candidate(line="aug_pe_from_ctcl", settings=settings, **behind("ctcl")),)


class AugPeFromCorpus(VotedEvolution[AugPeFromCorpusConfig]):
    """Aug-PE (Xie et al. 2024) from the rows of another DP corpus of the same cohort.

    **Privacy** The corpus was paid for by its own releases; starting from it is post-processing.
    The votes cost what those of `aug_pe` cost, and the label states both together.
    """

    name: ClassVar[str] = "aug_pe_from_corpus"
    title: ClassVar[str] = "Aug-PE from another corpus"
    config_type = AugPeFromCorpusConfig
    advice = Advice(candidates=_after_ctcl)

    @property
    def corpora(self) -> tuple[str, ...]:
        """The corpus that the evolution starts from."""
        return (self.config.corpus,)

    def check_public(self, public: PublicInputs) -> None:
        """Refuses a corpus that is not there, too."""
        super().check_public(public)
        rows_behind(self.config.corpus, public)

    def starting_rows(self, public: PublicInputs) -> dict[str, list[str]]:
        """The rows of the other corpus that are of the form, by label."""
        rows = rows_behind(self.config.corpus, public)
        return {
            label: list(filter(form_of(self).read, rows.filter(rows["label"] == label)["text"]))
            for label in self.terms.labels
        }


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
        self, _rounds: int, population: pl.DataFrame, embeddings: np.ndarray
    ) -> np.ndarray:
        """Counts the votes of one round.

        Args:
            rounds: Rounds before.
            population: N candidates.
            embeddings: float32 (N, d).

        Returns:
            float64 (N,) votes, not negative.
        """
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
            "secrets": [
                {
                    "kind": each.name,
                    **each.model_dump(include={"prior", "posterior", "max_records"}),
                }
                for each in promise.kinds
            ],
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
