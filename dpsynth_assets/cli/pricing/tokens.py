"""Private prediction: tokens from a softmax of mean clipped logits, and the test that spares some.

Amin et al. 2024, Theorem 1: a private token costs one softmax draw of bounded range and, where
the public-token test runs, one AboveThreshold instance. Both depend on the same facts of batches
that are decoded together.
"""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.pricing.commands import (
    BATCHES_PER_PASS,
    LOGIT_SLACK,
    Accountant,
    Answer,
    AtEpsilon,
    BatchesPerPass,
    BatchSize,
    ClipBound,
    ContextsChanged,
    Delta,
    Load,
    LogitSlack,
    MaybeRecords,
    PrivateTokens,
    Settings,
    SvtNoiseScale,
    TargetEpsilon,
    Temperature,
    at_least_one,
    command,
    down_significant,
    exactly_one,
    positive,
    say_delta,
    say_epsilon,
    terms,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import largest_token_count, smallest_batch_size
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, PureEvent
from dpsynth_assets.privacy.monotone_search import largest_count
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon_closed_form, zcdp_rho
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

SLACK = "logit_slack batches_per_pass load contexts_changed"
UNIT = "relation max_records_per_unit"


@dataclass(frozen=True, kw_only=True)
class Batches(Settings):
    """The facts of batches that are decoded together, as options."""

    expected_batch_size: BatchSize
    logit_slack: LogitSlack = LOGIT_SLACK
    batches_per_pass: BatchesPerPass = BATCHES_PER_PASS
    load: Load = 1.0
    contexts_changed: ContextsChanged = "toggle"

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

    clip_bound: ClipBound
    temperature: Temperature

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
def price_tokens(
    settings: Tokens,
    delta: Delta,
    tokens: Annotated[int | None, typer.Option(help="Private tokens a batch; prints ε.")] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Target ε; prints the largest number of tokens.")
    ] = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Prices private tokens: ε of a number of tokens, or the most tokens within an ε."""
    exactly_one(tokens=tokens, target_epsilon=target_epsilon)
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
    private_tokens: PrivateTokens,
    delta: Delta,
    accountant: Accountant = "zcdp",
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


@dataclass(frozen=True, kw_only=True)
class PrivatePrediction(Tokens):
    """Private tokens of each batch, with or without the public-token test."""

    private_tokens: PrivateTokens
    svt_noise_scale: SvtNoiseScale = None

    @property
    def selection(self) -> BoundedRangeEvent:
        """All softmax draws."""
        return self.draws(self.private_tokens)

    @property
    def test(self) -> PureEvent | None:
        """All AboveThreshold instances, where the test runs."""
        if self.svt_noise_scale is None:
            return None
        return self.tests(self.svt_noise_scale, self.private_tokens)

    @property
    def events(self) -> list[Event]:
        """What one batch spends."""
        return [self.selection] if self.test is None else [self.selection, self.test]

    def with_most_tokens(
        self, epsilon: float, delta: float, accountant: str
    ) -> "PrivatePrediction":
        """Finds the most private tokens whose draws and tests cost at most `epsilon`."""
        if self.test is None:
            count = largest_token_count(
                eta=self.selection.eta, target_epsilon=epsilon, delta=delta, accountant=accountant
            )
            return replace(self, private_tokens=count)

        def fits(count: int) -> bool:
            events = replace(self, private_tokens=count).events
            return count == 0 or epsilon_of(events, delta, accountant) <= epsilon

        each = sum(event.rho for event in replace(self, private_tokens=1).events)
        ceiling = int(zcdp_rho(epsilon, delta) / float(each)) + 1
        while fits(ceiling):
            ceiling *= 2
        return replace(self, private_tokens=largest_count(fits, ceiling))

    def with_smallest_batches(
        self, epsilon: float, delta: float, accountant: str
    ) -> "PrivatePrediction":
        """Finds the smallest batch size at which all draws and tests cost at most `epsilon`."""
        at_least_one(private_tokens=self.private_tokens)
        size = smallest_batch_size(
            lambda size: replace(self, expected_batch_size=size).events,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
        )
        return replace(self, expected_batch_size=size)

    def cost(self, delta: float, accountant: str) -> dict[str, Any]:
        """Lists the settings with every number of their price, ε rounded up."""
        several = self.logit_slack > 0 and self.batches_per_pass > 1
        if accountant == "tight" and several and self.test is not None:
            raise typer.BadParameter(
                "Expected --accountant zcdp where batches of a pass draw at different steps and "
                "rounding is charged, got tight. Set it, --batches-per-pass 1 or --logit-slack 0."
            )
        test, selection = self.test, rho_of_one(self.selection)
        tested = Fraction(0) if test is None else rho_of_one(test)
        each = selection + tested
        rho = float_up(each * self.private_tokens)
        named = "expected_batch_size clip_bound temperature private_tokens svt_noise_scale"
        return {
            **self.facts(f"{named} {SLACK}"),
            "eta": self.selection.eta,
            "svt_epsilon_per_token": None if test is None else test.epsilon,
            "rho_per_token": float_up(each),
            "rho_per_token_selection": float_up(selection),
            "rho_per_token_test": float_up(tested),
            "svt_share": float(tested / each),
            "break_even_private_fraction": None if test is None else float(selection / each),
            "rho": rho,
            "delta": delta,
            "accountant": accountant,
            "epsilon": epsilon_of(self.events, delta, accountant),
            "epsilon_closed_form": zcdp_epsilon_closed_form(rho, delta),
        }

    def in_all(self, records: int | None) -> dict[str, Any]:
        """Counts batches and tokens from a public number of records; empty if it is private.

        A number of batches taken from a private count would reveal it (errata B-001.2).
        """
        if records is None:
            return {}
        at_least_one(records=records)
        batches = max(1, records // self.expected_batch_size)
        in_all = batches * self.private_tokens
        return {"records": records, "batches": batches, "private_tokens_in_all": in_all}


@command(
    PrivatePrediction,
    "expected_batch_size clip_bound temperature private_tokens delta svt_noise_scale at_epsilon "
    f"records accountant {SLACK} {UNIT}",
)
def price_prediction(
    settings: PrivatePrediction,
    delta: Delta,
    at_epsilon: AtEpsilon = None,
    records: MaybeRecords = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Prices private tokens with or without the public-token test (Theorem 1, Amin 2024)."""
    result = {
        "mechanism": "private-prediction",
        **settings.cost(delta, accountant),
        **settings.in_all(records),
    }
    if at_epsilon is not None:
        result["at_epsilon"] = at_epsilon
        reached = privacy_profile(settings.events, [at_epsilon], accountant)[0]
        result["delta_at_epsilon"] = float(reached)
    return result, _say(result)


@command(
    PrivatePrediction,
    "clip_bound temperature epsilon delta expected_batch_size private_tokens svt_noise_scale "
    f"records accountant {SLACK} {UNIT}",
)
def calibrate_prediction(
    settings: PrivatePrediction,
    epsilon: TargetEpsilon,
    delta: Delta,
    expected_batch_size: Annotated[
        int | None, typer.Option(help="Batch size s; prints the most private tokens.")
    ] = None,
    private_tokens: Annotated[
        int | None, typer.Option(help="Private tokens r; prints the smallest batch size.")
    ] = None,
    records: MaybeRecords = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Finds the most private tokens, or the smallest batch size, within an ε."""
    exactly_one(expected_batch_size=expected_batch_size, private_tokens=private_tokens)
    positive(epsilon=epsilon)
    if expected_batch_size is not None:
        settings = replace(settings, expected_batch_size=expected_batch_size)
        found = settings.with_most_tokens(epsilon, delta, accountant)
    else:
        settings = replace(settings, private_tokens=private_tokens or 0)
        found = settings.with_smallest_batches(epsilon, delta, accountant)
    result = {
        "mechanism": "private-prediction",
        "target_epsilon": epsilon,
        **found.cost(delta, accountant),
        **found.in_all(records),
    }
    return result, [
        f"{found.private_tokens} private tokens a batch with batches of "
        f"{found.expected_batch_size} stay within ε = {declared(epsilon)}.",
        *_say(result),
    ]


def _say(result: dict[str, Any]) -> list[str]:
    """Says the price, what the test takes of it, and when the test pays off."""
    sentences = [say_epsilon(result)]
    if result["svt_noise_scale"] is not None:
        fraction = down_significant(100 * result["break_even_private_fraction"], 3)
        sentences.append(
            f"The public-token test takes {result['svt_share']:.1%} of ρ = "
            f"{up_significant(result['rho'])}; it pays off where fewer than {fraction}% of the "
            "tokens are private."
        )
    if "batches" in result:
        sentences.append(
            f"{result['records']} records, declared public, make {result['batches']} batches: "
            f"{result['private_tokens_in_all']} private tokens in all, at no further cost."
        )
    return [*sentences, *say_delta(result)]
