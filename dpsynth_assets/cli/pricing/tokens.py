"""Tokens drawn from a softmax of mean clipped logits, and the public-token test that spares some.

Both depend on the same facts of batches that are decoded together.
"""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Annotated

import typer

from dpsynth_assets.cli.pricing import options
from dpsynth_assets.cli.pricing.commands import Answer, Settings, command
from dpsynth_assets.cli.pricing.printing import say_epsilon, terms, up
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import BoundedRangeEvent, PureEvent
from dpsynth_assets.privacy.renyi import float_up
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

SLACK = "logit_slack batches_per_pass load contexts_changed"
UNIT = "relation max_records_per_unit"


@dataclass(frozen=True, kw_only=True)
class Batches(Settings):
    """The facts of batches that are decoded together, as options."""

    expected_batch_size: options.BatchSize
    logit_slack: options.LogitSlack = options.LOGIT_SLACK
    batches_per_pass: options.BatchesPerPass = options.BATCHES_PER_PASS
    load: options.Load = 1.0
    contexts_changed: options.ContextsChanged = "toggle"

    @property
    def batch(self) -> BatchTerms:
        """The same facts as mechanisms hold them."""
        return BatchTerms(**{each.name: getattr(self, each.name) for each in fields(BatchTerms)})

    def tests(self, noise_scale: float, count: int) -> PureEvent:
        """Prices one AboveThreshold instance for each private token, none after the last.

        The threshold is public and changes no price.
        """
        test = PublicTokenTest(batch=self.batch, noise_scale=noise_scale, threshold=0.0)
        return test.event(count)


@dataclass(frozen=True, kw_only=True)
class Tokens(Batches):
    """Draws of tokens from a softmax of mean clipped logits."""

    clip_bound: options.ClipBound
    temperature: options.Temperature

    def draws(self, count: int) -> BoundedRangeEvent:
        """Prices `count` private tokens of every batch."""
        mechanism = MeanTokenMechanism(
            batch=self.batch, clip_bound=self.clip_bound, temperature=self.temperature
        )
        return mechanism.event(count)


@command(
    Tokens,
    "expected_batch_size clip_bound temperature delta tokens target_epsilon accountant "
    f"{SLACK} {UNIT}",
)
def price(
    settings: Tokens,
    delta: options.Delta,
    tokens: Annotated[int | None, typer.Option(help="Private tokens a batch; prints ε.")] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Target ε; prints the largest number of tokens.")
    ] = None,
    accountant: options.Accountant = "zcdp",
) -> Answer:
    """Prices private tokens: ε of a number of tokens, or the most tokens within an ε."""
    options.exactly_one(tokens=tokens, target_epsilon=target_epsilon)
    if target_epsilon is not None:
        eta, target = settings.draws(0).eta, target_epsilon
        tokens = largest_token_count(
            eta=eta, target_epsilon=target, delta=delta, accountant=accountant
        )
    event = settings.draws(tokens or 0)
    result = {
        "mechanism": "tokens",
        **settings.facts(f"expected_batch_size clip_bound temperature {SLACK}"),
        "target_epsilon": target_epsilon,
        "tokens": tokens,
        "eta": event.eta,
        "rho": float(event.rho),
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon_of([event], delta, accountant),
    }
    if target_epsilon is None:
        return result, say_epsilon(result)
    return result, (
        f"{tokens} private tokens a batch: ε = {up(result['epsilon'])} "
        f"of {declared(target_epsilon)} at {terms(result)}"
    )


@command(Batches, f"expected_batch_size noise_scale private_tokens delta accountant {SLACK} {UNIT}")
def price_test(
    settings: Batches,
    noise_scale: Annotated[float, typer.Option(help="Scale σ of the threshold's Laplace noise.")],
    private_tokens: options.PrivateTokens,
    delta: options.Delta,
    accountant: options.Accountant = "zcdp",
) -> Answer:
    """Prices the public-token test alone: one AboveThreshold for each private token."""
    event = settings.tests(noise_scale, private_tokens)
    result = {
        "mechanism": "svt",
        "expected_batch_size": settings.expected_batch_size,
        "noise_scale": noise_scale,
        "private_tokens": private_tokens,
        **settings.facts(SLACK),
        "epsilon_per_token": event.epsilon,
        "rho_per_token": float_up(rho_of_one(event)),
        "rho": float_up(event.rho),
        "pure_epsilon": float_up(Fraction(event.epsilon) * event.count),
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon_of([event], delta, accountant),
    }
    return result, (
        f"{say_epsilon(result)}; ε = {up(result['pure_epsilon'])} with δ = 0 by basic composition "
        f"of {event.count} tests of ε = {up(event.epsilon)} each"
    )


def rho_of_one(event: BoundedRangeEvent | PureEvent) -> Fraction:
    """Computes ρ of one draw of an event of several."""
    return replace(event, count=1).rho
