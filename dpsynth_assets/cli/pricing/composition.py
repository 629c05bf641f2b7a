"""Compositions: events as a ledger stores releases, and adaptive draws of bounded range."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    AtEpsilon,
    Delta,
    Settings,
    command,
    say_delta,
    say_epsilon,
    up,
)
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, privacy_profile
from dpsynth_assets.privacy.events import Event, event_from_json
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
