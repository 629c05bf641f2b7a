"""SecPE: a population evolves under the votes of clusters that were released once."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.evolution.method import STAGE, EvolutionMethod
from dpsynth_assets.methods.evolution.population import shared_out
from dpsynth_assets.methods.evolution.secret_clusters import (
    Representatives,
    public_clusters,
    release_representatives,
)
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.evolution.secret_plan import CLUSTER_STAGE, plan_secpe
from dpsynth_assets.methods.evolution.secret_votes import RepresentativeVotes
from dpsynth_assets.methods.staged import Checkpoint, Stage, StageRelease
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release

_OF_EVOLUTION = frozenset(
    {
        "iterations",
        "population",
        "variations",
        "lookahead",
        "selection",
        "vote_threshold",
        "api",
        "variation",
        "infilling_model",
        "infilling_proposals",
        "random_prompt",
        "variation_prompt",
        "prompt_variables",
        "chat",
        "word_count_std",
        "tokens_per_word",
        "first_degree",
        "last_degree",
        "max_new_tokens",
        "temperature",
        "top_p",
        "voting",
        "label_shares",
        "rows",
        "rows_per_forward",
    }
)
"""Settings that the paid stage does not depend on."""


class SecPe(EvolutionMethod):
    """Wang et al. 2025: noisy centres and counts of clusters vote in place of the records."""

    name: ClassVar[str] = "secpe"
    title: ClassVar[str] = "SecPE: evolution that protects declared secrets"
    paper: ClassVar[str] = (
        "Wang et al. 2025, Secret-protected evolution for differentially private synthetic text "
        "generation"
    )
    guarantee = GuaranteeType.SECRET
    config_type = SecPeConfig
    needs_embeddings = True

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which every kind of secret keeps its (p, r).

        Takes no ε, unless `record_level` asks for the protection of records too.
        """
        return plan_secpe(config, terms, target_epsilon)

    def public_inputs(self, config: Any) -> frozenset[str]:
        """Documents that are clustered, beside what every evolution reads."""
        return super().public_inputs(config) | {"public_corpus"}

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """The paid clusters, and the population, which follows from them."""
        del config, terms
        clusters = Stage(
            name=CLUSTER_STAGE,
            title=(
                "Public clusters moved by sampled private records, counts and centres with noise "
                "(SecPE, Algorithm 2). Protects declared secrets only: no record, no other content."
            ),
            kinds=("numpy",),
            needs_embeddings=True,
            needs_secrets=True,
        )
        population = Stage(
            name=STAGE,
            title="Texts that won the votes of the released clusters, round by round.",
            kinds=("pytorch", "polars"),
            after=(CLUSTER_STAGE,),
            public=True,
        )
        return (clusters, population)

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The clusters depend on no setting of the evolution."""
        if stage == CLUSTER_STAGE:
            return {name: v for name, v in parameters.items() if name not in _OF_EVOLUTION}
        return super().stage_settings(stage, parameters)

    def label_shares(self, config: Any, terms: CohortTerms, public: PublicInputs) -> np.ndarray:
        """Equal ones, or those of the released counts."""
        if config.label_shares == "equal":
            return np.ones(len(terms.labels))
        return _representatives(public).label_counts(len(terms.labels))

    def release_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Releases the noisy clusters.

        **Privacy** The planned event: (p, r)-secret protection and no DP of any kind, unless the
        same release is charged for records too. Which record holds which secret is read for the
        steward's summary alone and decides nothing released.

        **Source** SecPE, Algorithms 1 and 2.
        """
        progress(0.0, "clustering public documents")
        clusters = public_clusters(config, terms, public)
        progress(0.3, f"drawing noise for {len(clusters.counts)} clusters")
        released = release_representatives(clusters, plan, config, terms, private)
        folder = checkpoint.scratch()
        released.save(folder)
        made = StageRelease(
            facts=_cluster_facts(released, plan, config),
            files=folder,
            internal=_most_records(private),
        )
        cost = Cost(guarantee=plan.guarantee, event=plan.stages[stage])
        return Release(value=made, cost=cost)

    def prepare_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        folder: Path,
        progress: ProgressCallback,
    ) -> StageRelease:
        """Evolves the population under the votes of the released clusters.

        **Privacy** Post-processing: no private record is read again, in any iteration.

        **Source** SecPE, Algorithm 3.
        """
        sizes = shared_out(config.population, self.label_shares(config, terms, public))
        votes = RepresentativeVotes(_representatives(public), voting=config.voting, sizes=sizes)
        return self.evolve(
            config,
            terms,
            public,
            votes,
            identity={"stage": stage, "noise_std": plan.parameters["noise_std"]},
            checkpoint=Unkept(folder),
            progress=progress,
        )


class Unkept:
    """A checkpoint that keeps nothing: the population is public and made again for nothing."""

    saved: Path | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "step"

    def scratch(self) -> Path:
        """The same folder, emptied."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self._folder

    def save(self, scratch: Path) -> None:
        """Keeps nothing."""


def _representatives(public: PublicInputs) -> Representatives:
    return Representatives.load(public.released[CLUSTER_STAGE].folder)


def _cluster_facts(
    released: Representatives, plan: MethodPlan, config: SecPeConfig
) -> dict[str, Any]:
    """What may be said of released clusters: functions of them and of the plan."""
    dp_counts = released.counts - released.public_counts
    return {
        "clusters": len(released.labels),
        "releases": config.releases,
        "noise_std": plan.parameters["noise_std"],
        "posteriors": plan.parameters["posteriors"],
        "dp_guarantee": "of records too" if config.record_level else "none",
        "dp_counts": np.round(dp_counts, 3).tolist(),
        "counts_above_noise": float((dp_counts > 2 * plan.parameters["noise_std"]).mean()),
    }


def _most_records(private: PrivateInputs) -> dict[str, Any]:
    """How many records the most frequent detected secret is in; internal."""
    if private.secrets is None or not private.secrets.height:
        return {"most_records_of_a_detected_secret": 0}
    held = private.secrets.group_by("secret").len()["len"].to_list()
    return {"most_records_of_a_detected_secret": max(held)}
