"""Mean of clipped logits behind a test whether public text would do: only other tokens are paid."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dpsynth_assets.methods.candidates import NUMBER, Advice
from dpsynth_assets.methods.capabilities import DrawsTokens
from dpsynth_assets.methods.on_generator import READS_GENERATOR, GeneratorChoice, OnGenerator
from dpsynth_assets.methods.private_prediction.batching import batch_candidates, suited
from dpsynth_assets.methods.private_prediction.config import MeanSvtConfig
from dpsynth_assets.methods.private_prediction.loop import Draws, TokenSelector
from dpsynth_assets.methods.private_prediction.mean import PRETRAINED_MEAN
from dpsynth_assets.methods.private_prediction.method import (
    BatchPrediction,
    BatchTokens,
    tokens_within,
)
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest, draw_public_tokens
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter


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

    def opened(self, meter: PrivateTokenMeter) -> TokenSelector:
        """Draws public tokens, and private ones where the test asks for them, by one meter."""
        import torch

        asked = self.test.open(meter)

        def select(
            logits: Any, batch_of_row: Any, active: np.ndarray, public: Any, allowed: Any = None
        ) -> Draws:
            private = asked.needs_private_token(logits, public, batch_of_row, active, allowed)
            tokens = draw_public_tokens(public, self.public_temperature, allowed)
            if private.any():
                own = public[torch.from_numpy(private)]
                tokens[private] = self.mechanism.select(
                    logits, batch_of_row, active[private], meter, allowed, public_logits=own
                )
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

    @property
    def compares_with_public_prompts(self) -> bool:
        """Always: every token is compared with public text."""
        return True

    @property
    def draws_apart(self) -> bool:
        """Always: public tokens are not drawn privately."""
        return True

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
        unadvised="builds on another method's generator, which is paid for beside it",
    )
    # No attack: it plants keys before any generator exists; `mean_svt` draws alike.
    capabilities = (READS_GENERATOR, DrawsTokens(BatchPrediction.pass_shape))
