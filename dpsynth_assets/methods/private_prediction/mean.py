"""Mean aggregation of clipped logits: uniform batches (2024) and clustered batches (2025)."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dpsynth_assets.methods.candidates import HISTOGRAM, NUMBER, Advice
from dpsynth_assets.methods.private_prediction.batching import batch_candidates, suited
from dpsynth_assets.methods.private_prediction.config import (
    PRETRAINED_TOP_K,
    MeanClusteredConfig,
    MeanUniformConfig,
    PrivatePredictionConfig,
)
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.method import (
    BatchPrediction,
    BatchTokens,
)
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter

MeanT = TypeVar("MeanT", bound=PrivatePredictionConfig)

PRETRAINED_MEAN = {"public_top_k": PRETRAINED_TOP_K, "clip_bound": 4.0}
"""Settings over a pretrained model, chosen on public text: behind a public top-k a bound of 4
leaves the law of a bound of 8, at a quarter of its cost (docs/benchmarks.md).
"""


@dataclass(frozen=True, kw_only=True)
class MeanTokens(BatchTokens):
    """Private tokens drawn from the mean of clipped logits."""

    mechanism: MeanTokenMechanism

    def event(self) -> BoundedRangeEvent:
        """Prices r private tokens of every batch."""
        return self.mechanism.event(self.tokens)

    def opened(self, meter: PrivateTokenMeter) -> TokenSelector:
        """Draws by means of clipped logits, among the likeliest tokens of public prompts if any."""

        def select(
            logits: Any, batch_of_row: Any, active: np.ndarray, public: Any, allowed: Any = None
        ) -> Draws:
            tokens = self.mechanism.select(
                logits, batch_of_row, active, meter, allowed, public_logits=public
            )
            return Draws.all_private(tokens)

        return select


class MeanPrediction(BatchPrediction[MeanT]):
    """Draws every private token from softmax(mean of clipped logits / temperature).

    The two methods differ in which records share a batch.

    **Privacy** r adaptive η-bounded-range draws for each batch, batches in parallel: the planned
    event, for every dataset.

    **Source** Amin et al. 2024, Algorithm 1, lines 14-15; Amin et al. 2025, Eq. (1), with the fixed
    denominator s instead of the private batch size (errata B-000.3).
    """

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds how many private tokens a batch may draw at `target_epsilon`.

        **Source** Amin et al. 2024, Theorem 1 without public tokens; Lemma 2 for batches in
        parallel.
        """
        mechanism = self.mean_mechanism
        drawn = MeanTokens(tokens=self.mean_tokens(target_epsilon), mechanism=mechanism)
        return self.planned_tokens(drawn, {"eta": mechanism.eta}, target_epsilon)


class MeanUniform(MeanPrediction[MeanUniformConfig]):
    """Amin et al. 2024: uniform batches within a label, no public tokens."""

    name = "mean_uniform"
    title = "Private prediction, uniform batches"
    paper = "Amin et al. 2024, Private prediction for large-scale synthetic text generation"
    arxiv = "2407.12108"
    config_type = MeanUniformConfig
    advice = Advice(defaults=suited(PRETRAINED_MEAN), candidates=batch_candidates(name))


class MeanClustered(MeanPrediction[MeanClusteredConfig]):
    """Amin et al. 2025, mean aggregation: batches within label and public cluster."""

    name = "mean_clustered"
    title = "Private prediction, clustered batches"
    paper = "Amin et al. 2025, Clustering improves differentially private inference"
    arxiv = "2506.04566"
    config_type = MeanClusteredConfig
    advice = Advice(
        defaults=suited(PRETRAINED_MEAN),
        candidates=batch_candidates(name, asks=f"{NUMBER}; cluster_histogram", declared=HISTOGRAM),
    )
    needs_embeddings = True
