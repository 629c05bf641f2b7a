"""`dpsynth account`: computes the ε of listed accounting events, without data."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.cli.terminal import AsJson, answer, refusals, say
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.events import Event, event_from_json
from dpsynth_assets.privacy.renyi import float_up

app = typer.Typer(no_args_is_help=True)

_NO_NUMBER = ValueError, OverflowError, ZeroDivisionError, MemoryError
"""Errors of a setting outside its domain, or so extreme that its price is no number."""


@app.callback()
def account() -> None:
    """Compute the ε of accounting events, without data."""


@app.command()
def compose(
    events: Annotated[Path, typer.Argument()],
    delta: Annotated[float, typer.Option()],
    accountant: Literal["zcdp", "tight"] = "zcdp",
    as_json: AsJson = False,
) -> None:
    """Compute the total ε of events on the same records; each event includes its sensitivity.

    Args:
        events: JSON file, a list such as [{"type": "gaussian", …}]; `-` reads standard input.
        delta: Public δ of the guarantee, in (0, 1).
        accountant: zcdp: valid if releases depend on earlier ones. tight: for a fixed plan.
        as_json: Print JSON.
    """
    with refusals(*_NO_NUMBER):
        parts = _read(events)
        price = epsilon_of_fixed if accountant == "tight" else epsilon_of
        facts: dict[str, Any] = {
            "events": len(parts),
            "rho": float_up(sum((part.rho for part in parts), start=0 * parts[0].rho)),
            "delta": delta,
            "accountant": accountant,
            "epsilon": price(parts, delta, accountant),
            "epsilon_of_each_alone": [price([part], delta, accountant) for part in parts],
        }
        each = " + ".join(map(_up, facts["epsilon_of_each_alone"]))
        told = (
            f"ε = {_up(facts['epsilon'])} at δ = {declared(delta)} ({accountant} accountant): "
            f"{len(parts)} events together; separately they cost {each}."
        )
    answer(facts, as_json, lambda: say(told))


def _up(epsilon: float) -> str:
    return rounded_up(epsilon, ".4f" if epsilon >= 0.01 else ".3g")


def _read(source: Path) -> list[Event]:
    """Reads events, from a file or from standard input.

    Raises:
        ValueError: If there is no list of events.
    """
    try:
        text = sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
        written = json.loads(text)
    except (OSError, json.JSONDecodeError) as problem:
        raise ValueError(f"Expected a JSON list of events, got other text: {problem}.") from None
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
