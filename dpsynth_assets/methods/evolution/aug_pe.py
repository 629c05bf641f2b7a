"""Aug-PE: a population of texts evolves under noisy nearest-neighbour votes of the records."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.counted_labels import UNCOUNTED, counted_labels
from dpsynth_assets.methods.evolution.aug_pe_plan import (
    LABEL_STAGE,
    label_event,
    plan_aug_pe,
    planned_voting,
)
from dpsynth_assets.methods.evolution.config import AugPeConfig
from dpsynth_assets.methods.evolution.method import STAGE, EvolutionMethod
from dpsynth_assets.methods.evolution.population import Population
from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates
from dpsynth_assets.methods.staged import Checkpoint, Stage, StageRelease
from dpsynth_assets.methods.topic_histogram import project_to_total
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import release_histogram
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.voting import GaussianVoting


class AugPe(EvolutionMethod):
    """Xie et al. 2024: random texts, private votes, survivors, variations; T times."""

    name: ClassVar[str] = "aug_pe"
    title: ClassVar[str] = "Aug-PE: private evolution of texts"
    paper: ClassVar[str] = (
        "Xie et al. 2024, Differentially private synthetic data via foundation model APIs 2: text"
    )
    guarantee = GuaranteeType.DP
    config_type = AugPeConfig
    needs_embeddings = True

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all rounds of votes cost at most `target_epsilon`."""
        return plan_aug_pe(config, terms, target_epsilon)

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """The histogram of labels, where shares are released, and the population."""
        del terms
        released = config.label_shares == "released"
        labels = Stage(
            name=LABEL_STAGE,
            title="Noisy numbers of records of each label, which share out the population.",
            kinds=("polars",),
        )
        population = Stage(
            name=STAGE,
            title="Texts that won the noisy votes of the private records, round by round.",
            kinds=("pytorch", "polars"),
            needs_embeddings=True,
            after=(LABEL_STAGE,) if released else (),
        )
        return (labels, population) if released else (population,)

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The histogram of labels depends on no setting of the evolution."""
        if stage == LABEL_STAGE:
            return {name: parameters[name] for name in ("method", "label_noise_std")}
        return super().stage_settings(stage, parameters)

    def label_shares(self, config: Any, terms: CohortTerms, public: PublicInputs) -> np.ndarray:
        """Equal ones, or those of the released histogram, denoised.

        **Privacy** True counts of labels are never read here: they are private, whatever a
        published implementation assumes.
        """
        if config.label_shares == "equal":
            return np.ones(len(terms.labels))
        dp_counts = np.asarray(public.released[LABEL_STAGE].facts["dp_counts"], dtype=np.float64)
        return project_to_total(dp_counts, dp_counts.sum())

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
        """Releases the noisy label counts, or runs the rounds of votes.

        **Privacy** The planned event and no more. Everything between two rounds (selection,
        variations, embeddings of candidates) is post-processing of released votes.

        **Source** Xie et al. 2024, Algorithm 1.
        """
        if stage == LABEL_STAGE:
            made = _label_counts(plan, terms, private)
        else:
            votes = PrivateVotes(plan, config, terms, private)
            made = self.evolve(
                config,
                terms,
                public,
                votes,
                identity=_identity(plan, self.stage_settings(stage, plan.parameters)),
                checkpoint=checkpoint,
                progress=progress,
            )
        cost = Cost(guarantee=self.guarantee, event=plan.stages[stage])
        return Release(value=made, cost=cost)


class PrivateVotes:
    """Releases one round of votes after another under one charge.

    **Privacy** Each record votes once in a round, for a candidate of its own label: records under
    an undeclared label, null records and labels without candidates give no vote. Neither noise nor
    number of rounds can change after the charge, and rounds that a killed run stored count as
    released.
    """

    def __init__(
        self, plan: MethodPlan, config: AugPeConfig, terms: CohortTerms, private: PrivateInputs
    ) -> None:
        if private.embeddings is None or len(private.embeddings) != private.records.height:
            raise ValueError("Expected one embedding for each private record. Embed them again.")
        self._plan, self._config, self._terms = plan, config, terms
        labels = counted_labels(private.records, terms.labels)
        self._records = VotingRecords.in_label_order(private.embeddings, labels)
        self._voting: GaussianVoting | None = None

    def __call__(self, rounds: int, population: Population, embeddings: np.ndarray) -> np.ndarray:
        """Counts and releases the votes of one round.

        Args:
            rounds: Rounds released before, by this run or by a killed one.
            population: C candidates.
            embeddings: float32 (C, d).

        Returns:
            (C,) int64 noisy votes.

        Raises:
            UnaccountedReleaseError: All planned rounds were released, or this one was.
        """
        if self._voting is None:
            self._voting = planned_voting(self._plan, self._config, self._terms, rounds)
        if self._voting.iterations - self._voting.remaining != rounds:
            raise UnaccountedReleaseError(
                "Expected the round after the last released one, got another. Go on from the last "
                "checkpoint."
            )
        records = self._records
        choices = nearest_candidates(
            records.vectors, records.labels, embeddings, population.labels, norms=records.norms
        )
        private_votes = self._voting.count(choices[:, None], population.size)
        return self._voting.release(private_votes).value


def _label_counts(plan: MethodPlan, terms: CohortTerms, private: PrivateInputs) -> StageRelease:
    """Releases the number of records of every declared label with noise."""
    noise_std = float(plan.parameters["label_noise_std"])
    if label_event(noise_std, terms) != plan.stages.get(LABEL_STAGE):
        raise UnaccountedReleaseError(
            "Expected the plan's event to price the histogram of labels, got another. Plan again."
        )
    numbers = counted_labels(private.records, terms.labels)
    counts = np.bincount(numbers[numbers != UNCOUNTED], minlength=len(terms.labels))
    release = release_histogram(
        [int(count) for count in counts],
        noise="gaussian",
        scale=noise_std,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )
    return StageRelease(
        facts={
            "labels": list(terms.labels),
            "dp_counts": release.value.tolist(),
            "noise_std": noise_std,
        }
    )


def _identity(plan: MethodPlan, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"event": event_to_json(plan.stages[STAGE]), "settings": dict(settings)}
