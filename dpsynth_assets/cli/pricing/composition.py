"""Compositions: events as a ledger stores releases, and adaptive draws of bounded range."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    AtEpsilon,
    Count,
    Delta,
    Positive,
    Settings,
    command,
    down_significant,
    say_delta,
    say_epsilon,
    up,
)
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, privacy_profile
from dpsynth_assets.privacy.batch_terms import context_changes
from dpsynth_assets.privacy.bounded_range import bounded_range_epsilon, recursion_is_affordable
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, event_from_json
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.renyi import float_up


@dataclass(frozen=True, kw_only=True)
class Composition(Settings):
    """Events on the same records; their sensitivities are in them already.

    Attributes:
        relation: Relation that the events are stated for.
    """

    mechanism = "composition"

    events: Annotated[
        Path, typer.Argument(help='JSON list such as [{"type": "gaussian", …}]; - reads stdin.')
    ]


@command()
def compose(
    settings: Composition,
    delta: Delta,
    accountant: Accountant = "zcdp",
    at_epsilon: AtEpsilon = None,
) -> Answer:
    """Prices a list of events on the same records; sensitivities are in the events already."""
    parts = _read(settings.events)
    price = epsilon_of_fixed if accountant == "tight" else epsilon_of
    result = settings.facts(
        events=len(parts),
        rho=float_up(sum((part.rho for part in parts), start=0 * parts[0].rho)),
        delta=delta,
        accountant=accountant,
        epsilon=price(parts, delta, accountant),
        epsilon_of_each_alone=[price([part], delta, accountant) for part in parts],
        at_epsilon=at_epsilon,
    )
    if at_epsilon is not None:
        result["delta_at_epsilon"] = privacy_profile(parts, [at_epsilon], accountant)[0]
    each = " + ".join(up(epsilon) for epsilon in result["epsilon_of_each_alone"])
    return result, [
        say_epsilon(result),
        f"{len(parts)} events together; one by one they cost {each}.",
        *say_delta(result),
    ]


def _read(source: Path) -> list[Event]:
    """Reads events, from a file or from standard input.

    Raises:
        ValueError: If the file is no JSON list of events, or is empty.
    """
    try:
        text = sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
        written = json.loads(text)
    except (OSError, json.JSONDecodeError) as problem:
        raise ValueError(f"Expected a JSON list of events, got none: {problem}.") from None
    if not (isinstance(written, list) and all(isinstance(part, dict) for part in written)):
        raise ValueError(f"Expected a JSON list of events in {source}, got another JSON value.")
    if not written:
        raise ValueError(f"Expected at least one event in {source}, got none.")
    try:
        return [event_from_json(part) for part in written]
    except (KeyError, TypeError) as problem:
        raise ValueError(
            f"Expected the fields of each event's type, got {type(problem).__name__}: {problem}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Draws(Settings):
    """Adaptive draws of bounded range.

    Attributes:
        eta: Range η of one draw when one record comes or goes.
        count: Draws, each chosen after the ones before.
    """

    mechanism = "bounded-range"

    eta: Positive
    count: Count

    def event(self) -> BoundedRangeEvent:
        """Prices all draws."""
        changes = context_changes(self.relation, self.max_records_per_unit, "toggle")
        return BoundedRangeEvent(eta=self.eta * changes, count=self.count)


@command()
def price_draws(settings: Draws, delta: Delta, at_epsilon: AtEpsilon = None) -> Answer:
    """Prices adaptive draws of bounded range: optimal composition between its two bounds."""
    event = settings.event()
    mu = event.eta / 2.0 * math.sqrt(event.count)  # the Gaussian of equal ρ
    result = settings.priced(
        [event],
        delta,
        "tight",
        eta=event.eta,
        rho=float(event.rho),
        pure_epsilon=event.eta * event.count,
        epsilon_lower=_lower(event, delta),
        epsilon_zcdp=epsilon_of([event], delta, "zcdp"),
        epsilon_gaussian_reference=gaussian_epsilon(mu, delta) if mu else 0.0,
        at_epsilon=at_epsilon,
        delta_at_epsilon=None if at_epsilon is None else _delta_of(event, at_epsilon),
    )
    return result, [
        say_epsilon(result, accountant="optimal adaptive composition"),
        f"No accounting can report less than ε = {down_significant(result['epsilon_lower'])}; "
        f"zCDP reports {up(result['epsilon_zcdp'])}, a Gaussian of equal ρ costs "
        f"{up(result['epsilon_gaussian_reference'])}; ε = {up(result['pure_epsilon'])} with δ = 0.",
        *say_delta(result),
    ]


def _lower(event: BoundedRangeEvent, delta: float) -> float:
    """Computes what an explicit adversary attains; 0, which says nothing, where it takes long."""
    if not recursion_is_affordable(event.eta, event.count, delta):
        return 0.0
    return bounded_range_epsilon(event.eta, event.count, delta, upper=False)


def _delta_of(event: BoundedRangeEvent, epsilon: float) -> float:
    if event.count == 1:
        return one_draw_delta(event.eta, epsilon)
    return float(privacy_profile([event], [epsilon], "tight")[0])


def one_draw_delta(eta: float, epsilon: float) -> float:
    """Computes the worst δ of one η-bounded-range draw at ε >= 0, in closed form.

    The supremum over two-point pairs with losses {t, t − η} is at t = (ε + η)/2.
    """
    if epsilon >= eta:
        return 0.0
    exact = math.expm1((epsilon - eta) / 2.0) ** 2 / -math.expm1(-eta)
    return min(1.0, exact * (1.0 + 1e-14))
