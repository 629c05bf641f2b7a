"""Median aggregation of clipped logits: no planned cost, an ex-post bound for what was drawn."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from dpsynth_assets.methods.base import mechanism_of
from dpsynth_assets.methods.capabilities import Advice
from dpsynth_assets.methods.private_prediction.config import MedianClusteredConfig, suited
from dpsynth_assets.methods.private_prediction.corpus import BatchTokens, RealisedCosts
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.method import (
    BatchPrediction,
    tokens_within,
)
from dpsynth_assets.methods.private_prediction.planted_keys import audit_median
from dpsynth_assets.methods.stages import MethodPlan, StageRelease, StageRun
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_selection import PrivateTokenMeter


@dataclass(frozen=True, kw_only=True)
class MedianTokens(BatchTokens):
    """Private tokens drawn from the median of clipped logits.

    Attributes:
        mechanism: Draws a token and bounds what it cost; one record toggles one context.
    """

    mechanism: MedianTokenMechanism

    def event(self) -> None:
        """Has no price beforehand: the bound depends on the data and on what is drawn."""

    def opened(self, meter: PrivateTokenMeter, *of_run: Any) -> TokenSelector:
        """Draws by medians, and adds what each draw cost."""
        batches, costs = of_run
        indices = np.asarray(batches, dtype=np.int64)

        def select(
            logits: Any, batch_of_row: Any, active: np.ndarray, _: Any, allowed: Any = None
        ) -> Draws:
            draw = meter.spent[active]
            tokens, gamma = self.mechanism.select(logits, batch_of_row, active, meter, allowed)
            costs.by_batch[indices[active]] += gamma
            others = np.delete(indices, active)
            costs.by_batch[others] += self.mechanism.moved_by_slack(len(active))
            costs.by_draw[indices[active], draw] = gamma
            return Draws.all_private(tokens)

        return select


class MedianClustered(BatchPrediction[MedianClusteredConfig]):
    """Amin et al. 2025, median aggregation, in batches of label and public cluster."""

    name = "median_clustered"
    title = "Private prediction, clustered batches, median"
    paper = "Amin et al. 2025, Clustering improves differentially private inference"
    arxiv = "2506.04566"
    guarantee = GuaranteeType.EX_POST
    config_type = MedianClusteredConfig
    # The median has no public support, so that its bound is as wide as whole logits need.
    advice = Advice(
        defaults=suited({"clip_bound": 8.0}),
        unadvised="its ε is known only afterwards (ex post); declare accepts_ex_post",
    )
    audit_median = audit_median
    needs_embeddings = True

    @property
    def matched_epsilon(self) -> float | None:
        """The declared ε of the mean whose tokens it draws as many as."""
        return self.config.matched_epsilon

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Plans as many tokens as the mean would get, and no event.

        The cost depends on the data and the drawn tokens and is known only afterwards, so it cannot
        be planned; quantity is matched to the mean instead, as in the paper's comparison. Refuses
        unless the dataset accepts ex-post releases.

        **Source** Amin et al. 2025, section 6.1, "Privacy budget".
        """
        if not self.terms.accepts_ex_post:
            raise ValueError(
                "median_clustered gives an ex-post guarantee only, not (ε, δ)-DP; cohort "
                f"{self.terms.cohort!r} does not accept it. Set budget.accepts_ex_post: true, or "
                "use mean_clustered."
            )
        matched = self.matched_epsilon or target_epsilon
        if matched <= 0:
            raise ValueError(
                "Expected matched_epsilon for median_clustered without a budget share, got none."
            )
        parameters = {"eta": self.mean_mechanism.eta, "matched_epsilon": matched}
        tokens = tokens_within(self.mean_mechanism.event, matched, self.terms.delta)
        drawn = MedianTokens(tokens=tokens, mechanism=self.median_mechanism)
        return self.planned_tokens(drawn, parameters, matched)

    @property
    def median_mechanism(self) -> MedianTokenMechanism:
        """Draws from medians, at the settings and terms of this method."""
        return MedianTokenMechanism(
            clip_bound=self.config.clip_bound,
            temperature=self.config.temperature,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            logit_slack=self.config.logit_slack,
        )

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Draws every private token from softmax(median of clipped logits / temperature).

        **Privacy** Data- and output-dependent ex-post bound (Amin et al. 2025, Theorem 2), not
        (ε, δ)-DP: the largest sum of token costs over all batches, empty ones included (errata
        B-000.5); where a unit's change touches several batches, the sum of as many. The bound
        depends on private data and is internal. It never stops generation: that would release it
        (errata B-000.8).
        """
        drawn = mechanism_of(run.stage, MedianTokens)
        if not self.terms.accepts_ex_post:
            raise UnaccountedReleaseError(
                "Expected a cohort that accepts ex-post releases, got one that does not."
            )
        corpus, drawing = self.generated(run)
        costs = cast("RealisedCosts", drawing.costs)
        bound = drawn.mechanism.realised_epsilon(costs.by_batch)
        internal = {"ex_post_epsilon_by_batch": costs.by_batch, "ex_post_epsilon": bound}
        return Release(
            value=replace(corpus, internal={**corpus.internal, **internal}),
            cost=Cost(guarantee=self.guarantee, ex_post_epsilon=bound),
        )
