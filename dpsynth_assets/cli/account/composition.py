"""Prices any list of accounting events together: the form in which a ledger stores releases."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    Accountant,
    AsJson,
    AtEpsilon,
    Delta,
    RecordsPerUnit,
    at_least_one,
)
from dpsynth_assets.cli.account.printing import (
    guarantee,
    refusals,
    say_epsilon,
    show,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, privacy_profile
from dpsynth_assets.privacy.events import Event, event_from_json
from dpsynth_assets.privacy.renyi import check_delta, float_up
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.units import NeighboringRelation


def compose(
    events: Annotated[
        Path, typer.Argument(help='JSON list such as [{"type": "gaussian", …}]; - reads stdin.')
    ],
    delta: Delta,
    accountant: Accountant = "zcdp",
    at_epsilon: AtEpsilon = None,
    relation: Annotated[
        NeighboringRelation, typer.Option(help="Relation that the events are stated for.")
    ] = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices a list of events on the same records; sensitivities are in the events already."""
    with refusals():
        check_delta(delta)
        at_least_one(max_records_per_unit=max_records_per_unit)
        parts = _read(events)
        price = epsilon_of_fixed if accountant == "tight" else epsilon_of
        result: dict[str, Any] = {
            "mechanism": "composition",
            "events": len(parts),
            **guarantee(relation, max_records_per_unit),
            "rho": float_up(sum((part.rho for part in parts), start=0 * parts[0].rho)),
            "delta": delta,
            "accountant": accountant,
            "epsilon": price(parts, delta, accountant),
            "epsilon_of_each_alone": [price([part], delta, accountant) for part in parts],
            "at_epsilon": at_epsilon,
        }
        if at_epsilon is not None:
            result["delta_at_epsilon"] = privacy_profile(parts, [at_epsilon], accountant)[0]
    show(result, _say(result), as_json)


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


def _say(result: dict[str, Any]) -> list[str]:
    each = " + ".join(up(epsilon) for epsilon in result["epsilon_of_each_alone"])
    sentences = [
        say_epsilon(result),
        f"{result['events']} events together; one by one they cost {each}.",
    ]
    if result["at_epsilon"] is not None:
        delta = up_significant(result["delta_at_epsilon"])
        sentences.append(f"At ε = {declared(result['at_epsilon'])}: δ = {delta}.")
    return sentences
