"""Printing of prices: one JSON object or one sentence, ε always rounded up."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what the kernel refuses into one line on stderr and exit code 2.

    The other errors: a setting so extreme that its price is no number, or fits no memory.
    """
    try:
        yield
    except (ValueError, OverflowError, ZeroDivisionError, MemoryError) as refusal:
        said = str(refusal) or "Expected settings of a feasible size, got larger ones."
        typer.echo(" ".join(said.split()), err=True)
        raise typer.Exit(2) from None


def show(result: dict[str, Any], sentences: str | list[str], as_json: bool) -> None:
    """Prints `result` as one JSON object, or `sentences`, one a line."""
    if as_json:
        typer.echo(json.dumps(finite(result), allow_nan=False))
        return
    for sentence in [sentences] if isinstance(sentences, str) else sentences:
        Console().print(sentence, highlight=False, markup=False, soft_wrap=True)


def finite(value: Any) -> Any:
    """Replaces infinite and undefined numbers by null: JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def up(value: float) -> str:
    """Writes ε with four decimals, a small one with three digits, rounded up."""
    form = ".4f" if value >= 0.01 else ".3g"
    return rounded_up(value, form) if math.isfinite(value) else "infinite"


def up_significant(value: float, digits: int = 4) -> str:
    """Writes δ, a posterior or a noise level that is needed with `digits` digits, rounded up."""
    return rounded_up(value, f".{digits}g")


def down_significant(value: float, digits: int = 4) -> str:
    """Writes what may be spent (μ, a break-even share) with `digits` digits, rounded down."""
    return rounded_down(value, f".{digits}g")


def unit(max_records_per_unit: int) -> str:
    """Says the privacy unit in words."""
    return "one record" if max_records_per_unit == 1 else f"up to {max_records_per_unit} records"


def terms(result: dict[str, Any], accountant: str | None = None) -> str:
    """Says δ, accountant, relation and unit: no ε is printed without them."""
    by = accountant or f"{result['accountant']} accountant"
    return (
        f"δ = {declared(result['delta'])} ({by}, {result['relation']} of "
        f"{unit(result['max_records_per_unit'])})"
    )


def say_epsilon(result: dict[str, Any], accountant: str | None = None) -> str:
    """Says what a mechanism costs."""
    return f"ε = {up(result['epsilon'])} at {terms(result, accountant)}"


def say_delta(result: dict[str, Any]) -> list[str]:
    """Says δ at the ε that was asked about, if one was."""
    if result.get("at_epsilon") is None:
        return []
    delta = up_significant(result["delta_at_epsilon"])
    return [f"At ε = {declared(result['at_epsilon'])}: δ = {delta}."]
