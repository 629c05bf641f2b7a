"""Median aggregation of clipped logits: no planned cost, an ex-post bound for what was drawn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan, SyntheticCorpus
from dpsynth_assets.methods.private_prediction.checked import PrivatePrediction
from dpsynth_assets.methods.private_prediction.config import MedianClusteredConfig
from dpsynth_assets.methods.private_prediction.corpus import (
    GenerationTask,
    SelectorFactory,
    clustered_batches,
    generate_corpus,
    planned_tokens,
)
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.plan import plan_median
from dpsynth_assets.methods.private_prediction.realised_costs import RealisedCosts
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter


class MedianClustered(PrivatePrediction):
    """Amin et al. 2025, median aggregation, in batches of label and public cluster."""

    name = "median_clustered"
    title = "Private prediction, clustered batches, median"
    paper = "Amin et al. 2025, Clustering improves differentially private inference"
    guarantee = GuaranteeType.EX_POST
    config_type = MedianClusteredConfig

    def uses_histogram(self, config: Any, terms: CohortTerms) -> bool:  # noqa: ARG002
        """Batch counts of every cell come from the released histogram."""
        return True

    needs_embeddings = True

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Matches the mean's tokens; refuses unless the dataset accepts ex-post releases."""
        return plan_median(config, terms, target_epsilon)

    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Draws every private token from softmax(median of clipped logits / temperature).

        **Privacy** Data- and output-dependent ex-post bound (Amin et al. 2025, Theorem 2), not
        (ε, δ)-DP: the largest sum of token costs over all batches, empty ones included (errata
        B-000.5); where a unit's change touches several batches, the sum of as many. The bound
        depends on private data and is internal. It never stops generation: that would release it
        (errata B-000.8).
        """
        if not terms.accepts_ex_post:
            raise UnaccountedReleaseError(
                "Expected a cohort that accepts ex-post releases, got one that does not."
            )
        tokens = planned_tokens(plan)
        task = GenerationTask(config=config, terms=terms, public=public, tokens_per_batch=tokens)
        batches = clustered_batches(task, private)
        mechanism = median_mechanism(config, terms)
        costs = RealisedCosts.of_nothing(len(batches), tokens)
        selector = median_selector(task, mechanism, costs.by_batch, costs.by_draw)
        corpus = generate_corpus(
            task, batches, selector, progress, passes=private.passes, costs=costs
        )
        bound = mechanism.realised_epsilon(costs.by_batch)
        internal = {"ex_post_epsilon_by_batch": costs.by_batch, "ex_post_epsilon": bound}
        return Release(
            value=replace(corpus, internal={**corpus.internal, **internal}),
            cost=Cost(guarantee=self.guarantee, ex_post_epsilon=bound),
        )


def median_mechanism(config: MedianClusteredConfig, terms: CohortTerms) -> MedianTokenMechanism:
    """Builds the token mechanism; one record toggles one context, as for the mean."""
    return MedianTokenMechanism(
        clip_bound=config.clip_bound,
        temperature=config.temperature,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        logit_slack=config.logit_slack,
    )


def median_selector(
    task: GenerationTask,
    mechanism: MedianTokenMechanism,
    costs: np.ndarray,
    draw_costs: np.ndarray | None = None,
) -> SelectorFactory:
    """Binds the mechanism to a meter of r tokens and adds what each token cost to `costs`.

    Args:
        task: Settings and public inputs.
        mechanism: Draws tokens and bounds what they cost.
        costs: (batches,) float64, ex-post ε of each batch so far; updated in place.
        draw_costs: (batches, r) float64, ex-post ε of each draw in drawn order; filled in place.
    """

    def for_pass(batches: Sequence[int]) -> TokenSelector:
        meter = PrivateTokenMeter(task.tokens_per_batch, len(batches))
        indices = np.asarray(batches, dtype=np.int64)

        def select(logits: Any, batch_of_row: Any, active: np.ndarray, _public: Any) -> Draws:
            draw = meter.spent[active]
            tokens, gamma = mechanism.select(logits, batch_of_row, active, meter)
            costs[indices[active]] += gamma
            if draw_costs is not None:
                draw_costs[indices[active], draw] = gamma
            return Draws.all_private(tokens)

        return select

    return for_pass
