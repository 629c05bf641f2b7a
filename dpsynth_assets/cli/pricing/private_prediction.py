"""Private prediction: what tokens with their tests cost, and how much a target allows.

Amin et al. 2024, Theorem 1: a private token costs one softmax draw of bounded range and, where
the public-token test runs, one AboveThreshold instance.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.pricing import options
from dpsynth_assets.cli.pricing.commands import Answer, command
from dpsynth_assets.cli.pricing.printing import (
    down_significant,
    say_delta,
    say_epsilon,
    up_significant,
)
from dpsynth_assets.cli.pricing.tokens import SLACK, UNIT, Tokens, rho_of_one
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.calibration import largest_token_count, smallest_batch_size
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, PureEvent
from dpsynth_assets.privacy.monotone_search import largest_count
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon_closed_form, zcdp_rho


@dataclass(frozen=True, kw_only=True)
class PrivatePrediction(Tokens):
    """Private tokens of each batch, with or without the public-token test."""

    private_tokens: options.PrivateTokens
    svt_noise_scale: options.SvtNoiseScale = None

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
        options.at_least_one(private_tokens=self.private_tokens)
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
        options.at_least_one(records=records)
        batches = max(1, records // self.expected_batch_size)
        in_all = batches * self.private_tokens
        return {"records": records, "batches": batches, "private_tokens_in_all": in_all}


@command(
    PrivatePrediction,
    "expected_batch_size clip_bound temperature private_tokens delta svt_noise_scale at_epsilon "
    f"records accountant {SLACK} {UNIT}",
)
def price(
    settings: PrivatePrediction,
    delta: options.Delta,
    at_epsilon: options.AtEpsilon = None,
    records: options.MaybeRecords = None,
    accountant: options.Accountant = "zcdp",
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
def calibrate(
    settings: PrivatePrediction,
    epsilon: options.TargetEpsilon,
    delta: options.Delta,
    expected_batch_size: Annotated[
        int | None, typer.Option(help="Batch size s; prints the most private tokens.")
    ] = None,
    private_tokens: Annotated[
        int | None, typer.Option(help="Private tokens r; prints the smallest batch size.")
    ] = None,
    records: options.MaybeRecords = None,
    accountant: options.Accountant = "zcdp",
) -> Answer:
    """Finds the most private tokens, or the smallest batch size, within an ε."""
    options.exactly_one(expected_batch_size=expected_batch_size, private_tokens=private_tokens)
    options.positive(epsilon=epsilon)
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
