"""InvisibleInk: softmax of public logits plus the mean of clipped differences from them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsynth_assets.methods.candidates import Advice
from dpsynth_assets.methods.private_prediction.batching import batch_candidates, suited
from dpsynth_assets.methods.private_prediction.config import InvisibleInkConfig
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.method import (
    BatchPrediction,
    BatchTokens,
    tokens_within,
)
from dpsynth_assets.methods.private_prediction.vocabulary_tails import difference_tail
from dpsynth_assets.methods.stages import MethodPlan, Tail
from dpsynth_assets.models.smollm2 import declared_vocabulary
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.token_selection import PrivateTokenMeter


@dataclass(frozen=True, kw_only=True)
class DifferenceTokens(BatchTokens):
    """Private tokens drawn from clipped differences; one record toggles one context."""

    mechanism: DifferenceTokenMechanism

    def event(self) -> BoundedRangeEvent:
        """Prices r private tokens of every batch."""
        return self.mechanism.event(self.tokens)

    def opened(self, meter: PrivateTokenMeter) -> TokenSelector:
        """Draws by clipped differences from the public prompts."""

        def select(
            logits: Any, batch_of_row: Any, active: np.ndarray, public: Any, allowed: Any = None
        ) -> Draws:
            tokens = self.mechanism.select(logits, public, batch_of_row, active, meter, allowed)
            return Draws.all_private(tokens)

        return select


class InvisibleInk(BatchPrediction[InvisibleInkConfig]):
    """Vinod et al. 2025: how far each record departs from the public logits is clipped.

    Draws every token from the mean of clipped differences over the public support.

    **Privacy** r adaptive η-bounded-range draws for each batch, η = 2C/(sτ), batches in parallel:
    the planned event. A batch without records writes public text.
    """

    name = "invisible_ink"
    title = "InvisibleInk"
    paper = (
        "Vinod, Pillutla, Thakurta 2025, InvisibleInk: High-utility and low-cost text generation"
    )
    arxiv = "2507.02974"
    config_type = InvisibleInkConfig
    # Small batches suffice it.
    advice = Advice(defaults=suited({}), candidates=batch_candidates(name, sizes=(8,)))

    @property
    def compares_with_public_prompts(self) -> bool:
        """Always: differences are from the logits of a public prompt."""
        return True

    @property
    def tail(self) -> Tail:
        """Estimates the tail of draws from clipped differences over the public support."""
        vocabulary = declared_vocabulary(self.terms.language_model)
        return difference_tail(self.declared, self.config, vocabulary)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds how many private tokens a batch may draw at `target_epsilon`."""
        mechanism = DifferenceTokenMechanism(
            batch=self.declared.facts,
            clip_bound=self.config.clip_bound,
            temperature=self.config.temperature,
            top_k=self.config.top_k,
        )
        tokens = tokens_within(mechanism.event, target_epsilon, self.terms.delta)
        drawn = DifferenceTokens(tokens=tokens, mechanism=mechanism)
        return self.planned_tokens(drawn, {"eta": mechanism.eta}, target_epsilon)
