"""Tokens drawn from what all records of a batch say together: means and medians of their logits.

A mean is of clipped logits, or of clipped differences from public ones, and has a planned cost. A
median has none, but an ex-post bound for what was drawn.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np

from dpsynth_assets.methods.base import mechanism_of
from dpsynth_assets.methods.capabilities import HISTOGRAM, NUMBER, Advice
from dpsynth_assets.methods.on_generator import GeneratorChoice, OnGenerator
from dpsynth_assets.methods.private_prediction.config import (
    PRETRAINED_TOP_K,
    InvisibleInkConfig,
    MeanClusteredConfig,
    MeanSvtConfig,
    MeanUniformConfig,
    MedianClusteredConfig,
    PrivatePredictionConfig,
    batch_candidates,
    suited,
)
from dpsynth_assets.methods.private_prediction.corpus import BatchTokens, RealisedCosts
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.method import BatchPrediction, tokens_within
from dpsynth_assets.methods.private_prediction.planted_keys import audit_median
from dpsynth_assets.methods.private_prediction.vocabulary_tails import (
    declared_vocabulary,
    difference_tail,
)
from dpsynth_assets.methods.stages import MethodPlan, StageRelease, StageRun, Tail
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.events import BoundedRangeEvent, ComposedEvent
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest, draw_public_tokens
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, NextLogits, PrivateTokenMeter

MeanT = TypeVar("MeanT", bound=PrivatePredictionConfig)

PRETRAINED_MEAN = {"public_top_k": PRETRAINED_TOP_K, "clip_bound": 4.0}
"""Settings over a pretrained model, chosen on public text: behind a public top-k a bound of 4
leaves the law of a bound of 8, at a quarter of its cost (docs/benchmarks.md).
"""


@dataclass(frozen=True, kw_only=True)
class MeanTokens(BatchTokens):
    """Private tokens drawn from the mean of clipped logits, or of clipped differences."""

    mechanism: MeanTokenMechanism | DifferenceTokenMechanism

    def event(self) -> BoundedRangeEvent:
        """Prices r private tokens of every batch."""
        return self.mechanism.event(self.tokens)

    def opened(self, meter: PrivateTokenMeter, *_: Any) -> TokenSelector:
        """Draws by means, among the likeliest tokens of public prompts if any."""
        return lambda logits: Draws.all_private(self.mechanism.select(logits, meter))


class MeanPrediction(BatchPrediction[MeanT]):
    """Draws every private token from softmax(mean of clipped logits / temperature).

    The methods differ in which records share a batch, and in what of a record is clipped.

    **Privacy** r adaptive η-bounded-range draws for each batch, batches in parallel: the planned
    event, for every dataset.

    **Source** Amin et al. 2024, Algorithm 1, lines 14-15; Amin et al. 2025, Eq. (1), with the fixed
    denominator s instead of the private batch size (errata B-000.3).
    """

    @property
    def mechanism(self) -> MeanTokenMechanism | DifferenceTokenMechanism:
        """Draws a token and prices the draw."""
        return self.mean_mechanism

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds how many private tokens a batch may draw at `target_epsilon`.

        **Source** Amin et al. 2024, Theorem 1 without public tokens; Lemma 2 for batches in
        parallel.
        """
        mechanism = self.mechanism
        tokens = tokens_within(mechanism.event, target_epsilon, self.terms.delta)
        drawn = MeanTokens(tokens=tokens, mechanism=mechanism)
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


class InvisibleInk(MeanPrediction[InvisibleInkConfig]):
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

    compares_with_public_prompts = True
    """Differences are from the logits of a public prompt."""

    @property
    def tail(self) -> Tail:
        """Estimates the tail of draws from clipped differences over the public support."""
        return difference_tail(self.config, declared_vocabulary(self.terms.language_model))

    @property
    def mechanism(self) -> DifferenceTokenMechanism:
        """Draws a token from clipped differences."""
        return DifferenceTokenMechanism(
            batch=self.declared.facts,
            clip_bound=self.config.clip_bound,
            temperature=self.config.temperature,
            top_k=self.config.top_k,
        )


@dataclass(frozen=True, kw_only=True)
class TokensBehindTest(BatchTokens):
    """Private tokens, each paid with the AboveThreshold instance that led to it.

    Attributes:
        mechanism: Draws a private token.
        test: Says whether a token has to be private.
        public_temperature: Temperature of public tokens.
    """

    mechanism: MeanTokenMechanism
    test: PublicTokenTest
    public_temperature: float

    def event(self) -> ComposedEvent:
        """Prices r private tokens of every batch, each with its test."""
        events = (self.mechanism.event(self.tokens), self.test.event(self.tokens))
        return ComposedEvent(events=events)

    def opened(self, meter: PrivateTokenMeter, *_: Any) -> TokenSelector:
        """Draws public tokens, and private ones where the test asks for them, by one meter."""
        import torch

        asked = self.test.open(meter)

        def select(logits: NextLogits) -> Draws:
            private, public = asked.needs_private_token(logits), logits.compared
            # [amin2024 A1:L18] [amin2024 A3:L9]
            tokens = draw_public_tokens(public, self.public_temperature, logits.allowed)
            if private.any():
                own = public[torch.from_numpy(private)]
                asking = replace(logits, active=logits.active[private], public=own)
                tokens[private] = self.mechanism.select(asking, meter)
            return Draws(tokens, private)

        return select


class MeanSvt(BatchPrediction[MeanSvtConfig]):
    """Amin et al. 2024, Algorithm 1 whole: mean of clipped logits behind a public-token test.

    Draws a public token where the noisy distance is below the threshold, else a private one.

    **Privacy** r bounded-range draws and r AboveThreshold instances for each batch, batches in
    parallel: the planned event. Which tokens were private is part of the release.
    """

    name = "mean_svt"
    title = "Private prediction with free public tokens"
    paper = "Amin et al. 2024, Private prediction for large-scale synthetic text generation"
    arxiv = "2407.12108"
    config_type = MeanSvtConfig
    # Text with a structure pays for the test.
    advice = Advice(
        defaults=suited(PRETRAINED_MEAN),
        candidates=batch_candidates(
            name,
            settings={"svt_threshold": 1.0},
            asks=f"{NUMBER}; structured",
            concerns="structured",
        ),
    )

    compares_with_public_prompts = True
    """Every token is compared with public text."""
    draws_apart = True
    """Public tokens are not drawn privately."""

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds how many tested private tokens a batch may draw at `target_epsilon`.

        Whether the test is worth its price depends on the text: it pays off while the share of
        private tokens stays below `break_even_private_fraction`.

        **Source** Amin et al. 2024, Theorem 1; break-even from its two terms.
        """
        mechanism = self.mean_mechanism
        test = PublicTokenTest(
            batch=self.declared.facts,
            noise_scale=self.config.svt_noise_scale,
            threshold=self.config.svt_threshold,
        )

        def behind_test(tokens: int) -> TokensBehindTest:
            return TokensBehindTest(
                tokens=tokens,
                mechanism=mechanism,
                test=test,
                public_temperature=self.config.public_temperature,
            )

        each, tested = float(mechanism.event(1).rho), float(test.event(1).rho)
        tokens = tokens_within(
            lambda count: behind_test(count).event(), target_epsilon, self.terms.delta
        )
        parameters = {
            "eta": mechanism.eta,
            "svt_epsilon": test.epsilon,
            "break_even_private_fraction": each / (each + tested),
        }
        return self.planned_tokens(behind_test(tokens), parameters, target_epsilon)


class MeanSvtOnGeneratorConfig(GeneratorChoice, MeanSvtConfig):
    """Those of `mean_svt`, and whose generator is the public channel."""

    method: Literal["mean_svt_on_generator"] = "mean_svt_on_generator"  # type: ignore[assignment]


class MeanSvtOnGenerator(OnGenerator, MeanSvt):
    """Amin et al. 2024, Algorithm 1, with a fine-tuned generator in the place of the public model.

    The generator proposes public tokens nearer to the records than the public model does, so the
    test passes more often and fewer tokens are paid. Its budget is what fine-tuning leaves, and the
    label states both together.
    """

    name: ClassVar[str] = "mean_svt_on_generator"
    title: ClassVar[str] = "Private prediction with a generator's free tokens"
    config_type = MeanSvtOnGeneratorConfig
    advice = Advice(
        defaults=suited(PRETRAINED_MEAN),
        unadvised="it uses another method's generator, which is charged in addition",
    )
    # No attack: it plants keys before any generator exists; `mean_svt` draws alike.
    reconstruct = None  # type: ignore[assignment]


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

        def select(logits: NextLogits) -> Draws:
            active = logits.active
            draw = meter.spent[active]
            tokens, gamma = self.mechanism.select(logits, meter)
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
        corpus, drawing = self.generated(run)
        costs = cast("RealisedCosts", drawing.costs)
        bound = drawn.mechanism.realised_epsilon(costs.by_batch)
        internal = {"ex_post_epsilon_by_batch": costs.by_batch, "ex_post_epsilon": bound}
        return Release(
            value=replace(corpus, internal={**corpus.internal, **internal}),
            cost=Cost(guarantee=self.guarantee, ex_post_epsilon=bound),
        )
