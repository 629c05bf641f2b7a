"""Methods that compare private contexts with a public prompt at every token.

`mean_svt` asks whether public text would do and pays only where it would not; `invisible_ink`
clips how far each record departs from the public logits.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan, SyntheticCorpus
from dpsynth_assets.methods.private_prediction.checked import PrivatePrediction
from dpsynth_assets.methods.private_prediction.config import InvisibleInkConfig, MeanSvtConfig
from dpsynth_assets.methods.private_prediction.corpus import (
    GenerationTask,
    SelectorFactory,
    generate_corpus,
    planned_tokens,
    uniform_batches,
)
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.plan import (
    batches_per_label,
    difference_mechanism,
    mean_mechanism,
    plan_differences,
    plan_svt,
    public_token_test,
    svt_event,
)
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest, draw_public_tokens
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism


class ComparedPrediction(PrivatePrediction):
    """What both methods share: uniform batches, a public prompt for each, a planned event."""

    guarantee = GuaranteeType.DP

    def compares_with_public_prompts(self, config: Any) -> bool:  # noqa: ARG002
        """Always: that is what they do."""
        return True

    def uses_histogram(self, config: Any, terms: CohortTerms) -> bool:
        """Only where neither a constant nor a declared number of records gives batch counts."""
        return config.batching != "slots" and batches_per_label(config, terms) is None

    def run(
        self,
        plan: MethodPlan,
        priced: Event,
        task: GenerationTask,
        private: PrivateInputs,
        selector: SelectorFactory,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Generates after checking that the plan's event prices these settings."""
        if plan.event != priced:
            raise UnaccountedReleaseError(
                "Expected the plan's event to price these settings, got another. Plan again."
            )
        batches = uniform_batches(task, private)
        corpus = generate_corpus(
            task, batches, selector, progress, with_public_prompts=True, passes=private.passes
        )
        return Release(value=corpus, cost=Cost(guarantee=self.guarantee, event=plan.event))


class MeanSvt(ComparedPrediction):
    """Amin et al. 2024, Algorithm 1 whole: mean of clipped logits behind a public-token test."""

    name = "mean_svt"
    title = "Private prediction with free public tokens"
    paper = "Amin et al. 2024, Private prediction for large-scale synthetic text generation"
    config_type = MeanSvtConfig

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds how many tested private tokens a batch may draw at `target_epsilon`."""
        return plan_svt(config, terms, target_epsilon)

    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Draws a public token where the noisy distance is below the threshold, else a private one.

        **Privacy** r bounded-range draws and r AboveThreshold instances for each batch, batches in
        parallel: the planned event. Which tokens were private is part of the release.

        **Source** Amin et al. 2024, Algorithm 1.
        """
        mechanism, test = mean_mechanism(config, terms), public_token_test(config, terms)
        tokens = planned_tokens(plan)
        task = GenerationTask(config=config, terms=terms, public=public, tokens_per_batch=tokens)
        priced = svt_event(mechanism, test, tokens)
        selector = svt_selector(task, mechanism, test)
        return self.run(plan, priced, task, private, selector, progress)


class InvisibleInk(ComparedPrediction):
    """Vinod et al. 2025: softmax of public logits plus the mean of clipped differences."""

    name = "invisible_ink"
    title = "InvisibleInk"
    paper = (
        "Vinod, Pillutla, Thakurta 2025, InvisibleInk: High-utility and low-cost text generation"
    )
    config_type = InvisibleInkConfig

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds how many private tokens a batch may draw at `target_epsilon`."""
        return plan_differences(config, terms, target_epsilon)

    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Draws every token from clipped differences over the public support.

        **Privacy** r adaptive η-bounded-range draws for each batch, η = 2C/(sτ), batches in
        parallel: the planned event. A batch without records writes public text.
        """
        mechanism, tokens = difference_mechanism(config, terms), planned_tokens(plan)
        task = GenerationTask(config=config, terms=terms, public=public, tokens_per_batch=tokens)
        priced = mechanism.event(tokens)
        selector = difference_selector(task, mechanism)
        return self.run(plan, priced, task, private, selector, progress)


def svt_selector(
    task: GenerationTask, mechanism: MeanTokenMechanism, test: PublicTokenTest
) -> SelectorFactory:
    """Binds test and mechanism to one meter of r private tokens for each batch of a pass."""
    import torch

    temperature = cast("MeanSvtConfig", task.config).public_temperature

    def for_pass(batches: Sequence[int]) -> TokenSelector:
        meter = PrivateTokenMeter(task.tokens_per_batch, len(batches))
        asked = test.open(meter)

        def select(logits: Any, batch_of_row: Any, active: np.ndarray, public: Any) -> Draws:
            private = asked.needs_private_token(logits, public, batch_of_row, active)
            tokens = draw_public_tokens(public, temperature)
            if private.any():
                own = public[torch.from_numpy(private)]
                tokens[private] = mechanism.select(
                    logits, batch_of_row, active[private], meter, public_logits=own
                )
            return Draws(tokens, private)

        return select

    return for_pass


def difference_selector(
    task: GenerationTask, mechanism: DifferenceTokenMechanism
) -> SelectorFactory:
    """Binds the mechanism to a meter of r tokens for each batch of a pass."""

    def for_pass(batches: Sequence[int]) -> TokenSelector:
        meter = PrivateTokenMeter(task.tokens_per_batch, len(batches))

        def select(logits: Any, batch_of_row: Any, active: np.ndarray, public: Any) -> Draws:
            return Draws.all_private(mechanism.select(logits, public, batch_of_row, active, meter))

        return select

    return for_pass
