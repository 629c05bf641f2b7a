"""Mean aggregation of clipped logits: uniform batches (2024) and clustered batches (2025)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan, SyntheticCorpus
from dpsynth_assets.methods.private_prediction.batching import PrivateBatch
from dpsynth_assets.methods.private_prediction.checked import PrivatePrediction
from dpsynth_assets.methods.private_prediction.config import MeanClusteredConfig, MeanUniformConfig
from dpsynth_assets.methods.private_prediction.corpus import (
    GenerationTask,
    SelectorFactory,
    clustered_batches,
    generate_corpus,
    planned_tokens,
    uniform_batches,
)
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.plan import (
    batches_per_label,
    mean_mechanism,
    plan_mean,
)
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism


class MeanPrediction(PrivatePrediction):
    """What both mean methods share; they differ in which records share a batch."""

    guarantee = GuaranteeType.DP

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds how many private tokens a batch may draw at `target_epsilon`."""
        return plan_mean(config, terms, target_epsilon)

    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Draws every private token from softmax(mean of clipped logits / temperature).

        **Privacy** r adaptive η-bounded-range draws for each batch, batches in parallel: the
        planned event, for every dataset. Charged in full even where a batch stops early. With
        `public_top_k`, each batch's public prompt is decoded beside it, in passes of its own.

        **Source** Amin et al. 2024, Algorithm 1, lines 14-15; Amin et al. 2025, Eq. (1), with the
        fixed denominator s instead of the private batch size (errata B-000.3).
        """
        mechanism = mean_mechanism(config, terms)
        tokens = planned_tokens(plan)
        if plan.event != mechanism.event(tokens):
            raise UnaccountedReleaseError(
                "Expected the plan's event to price these settings, got another. Plan again."
            )
        task = GenerationTask(config=config, terms=terms, public=public, tokens_per_batch=tokens)
        batches = self.batches(task, private)
        selector = mean_selector(task, mechanism)
        corpus = generate_corpus(
            task,
            batches,
            selector,
            progress,
            with_public_prompts=self.compares_with_public_prompts(config),
            passes=private.passes,
        )
        return Release(value=corpus, cost=Cost(guarantee=self.guarantee, event=plan.event))

    @abstractmethod
    def batches(self, task: GenerationTask, private: PrivateInputs) -> list[PrivateBatch]:
        """Puts records into batches, each by itself."""


class MeanUniform(MeanPrediction):
    """Amin et al. 2024: uniform batches within a label, no public tokens."""

    name = "mean_uniform"
    title = "Private prediction, uniform batches"
    paper = "Amin et al. 2024, Private prediction for large-scale synthetic text generation"
    config_type = MeanUniformConfig

    def uses_histogram(self, config: Any, terms: CohortTerms) -> bool:
        """Only where neither a constant nor a declared number of records gives batch counts."""
        return config.batching != "slots" and batches_per_label(config, terms) is None

    def batches(self, task: GenerationTask, private: PrivateInputs) -> list[PrivateBatch]:
        """Hashes each label's records into a public, declared or released number of batches."""
        return uniform_batches(task, private)


class MeanClustered(MeanPrediction):
    """Amin et al. 2025, mean aggregation: batches within label and public cluster."""

    name = "mean_clustered"
    title = "Private prediction, clustered batches"
    paper = "Amin et al. 2025, Clustering improves differentially private inference"
    config_type = MeanClusteredConfig

    def uses_histogram(self, config: Any, terms: CohortTerms) -> bool:  # noqa: ARG002
        """Batch counts of every cell come from the released histogram."""
        return True

    needs_embeddings = True

    def batches(self, task: GenerationTask, private: PrivateInputs) -> list[PrivateBatch]:
        """Hashes each cell's records into as many batches as its released count allows."""
        return clustered_batches(task, private)


def mean_selector(task: GenerationTask, mechanism: MeanTokenMechanism) -> SelectorFactory:
    """Binds the mechanism to a meter of r tokens for each batch of a pass."""

    def for_pass(batches: Sequence[int]) -> TokenSelector:
        meter = PrivateTokenMeter(task.tokens_per_batch, len(batches))

        def select(logits: Any, batch_of_row: Any, active: np.ndarray, public: Any) -> Draws:
            return Draws.all_private(
                mechanism.select(logits, batch_of_row, active, meter, public_logits=public)
            )

        return select

    return for_pass
