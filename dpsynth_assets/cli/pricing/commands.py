"""Commands made of settings: a dataclass names the options, a function answers from it.

An option that several prices share means one thing in every command. An answer is one JSON object
or some sentences, with ε always rounded up.
"""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from dpsynth_assets.cli.main import parted
from dpsynth_assets.cli.terminal import AsJson, refusals, say
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.errors import check_at_least, check_delta, check_positive
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import NeighboringRelation


def _checked(check: Callable[[float], None]) -> Callable[[float | None], float | None]:
    """Makes the callback of an option of a check that raises ValueError."""

    def checked(value: float | None) -> float | None:
        try:
            if value is not None:
                check(value)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
        return value

    return checked


_POSITIVE = _checked(partial(check_positive, "number"))
Count = Annotated[int, typer.Option(min=1)]
CountOrNone = Annotated[int | None, typer.Option(min=1)]
Positive = Annotated[float, typer.Option(callback=_POSITIVE)]
PositiveOrNone = Annotated[float | None, typer.Option(callback=_POSITIVE)]
Delta = Annotated[
    float,
    typer.Option(
        help="Public δ of the guarantee, between 0 and 1.", callback=_checked(check_delta)
    ),
]
Accountant = Annotated[
    Literal["zcdp", "tight"],
    typer.Option(help="zcdp: valid for adaptive plans. tight: for a plan fixed beforehand."),
]
TargetEpsilon = Annotated[
    float,
    typer.Option(
        "--epsilon",
        "--target-epsilon",
        help="ε that must not be exceeded at δ.",
        callback=_POSITIVE,
    ),
]
AtEpsilon = Annotated[
    float | None,
    typer.Option(
        help="Also print δ at this ε.",
        callback=_checked(lambda value: check_at_least(0.0, at_epsilon=value)),
    ),
]

Answer = tuple[dict[str, Any], list[str]]
"""What a command prints: keys of one JSON object, or sentences."""

START = 1
"""Value of a required setting that a command does not ask for, because it searches for it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Public settings of a mechanism: its fields are options of its commands.

    Attributes:
        relation: When two datasets are neighbours.
        max_records_per_unit: Records one privacy unit may contribute.
    """

    mechanism = ""
    """What results are named after."""

    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
    max_records_per_unit: Count = 1

    def facts(self, **numbers: Any) -> dict[str, Any]:
        """Keys of a result: the settings, and what was computed from them."""
        return {"mechanism": self.mechanism, **vars(self), **numbers}

    def priced(
        self, events: Sequence[Event], delta: float, accountant: str, **numbers: Any
    ) -> dict[str, Any]:
        """The same with ε of events at δ."""
        epsilon = epsilon_of(events, delta, accountant)
        return self.facts(delta=delta, accountant=accountant, epsilon=epsilon, **numbers)


def command(without: str = "") -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Makes a command of a function that answers from settings and from options of its own.

    Its first parameter is annotated with the settings, whose fields are options, as its other
    parameters are; one that is named like a field takes its place. Required ones come first, and
    `--json` last. Docstrings say what each is.

    Args:
        without: Fields that the command does not ask for: it searches for them or has no use for
            them. Required ones are `START`.
    """

    def made(answer: Callable[..., Answer]) -> Callable[..., None]:
        (_, first), *others = inspect.signature(answer).parameters.items()
        kind = first.annotation
        own = {name: _option(name, each.annotation, each.default) for name, each in others}
        options, required = _options(kind), {}
        for name in without.split():
            if options.pop(name).default is inspect.Parameter.empty:
                required[name] = START
        options = {**options, **own, "as_json": _option("as_json", AsJson, False)}

        def run(*, as_json: bool, **given: Any) -> None:
            with refusals(ValueError, *INFEASIBLE):
                asked = {name: given.pop(name) for name in own}
                result, sentences = answer(kind(**(required | given)), **asked)
            show(result, sentences, as_json)

        parameters = sorted(options.values(), key=lambda each: each.default is not each.empty)
        run.__doc__ = answer.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        cast("Any", run).__signature__ = inspect.Signature(parameters)
        return run

    return made


def _options(settings: type[Any]) -> dict[str, inspect.Parameter]:
    """The fields of settings as options, with what the docstrings say of them as their help."""
    said: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        said |= parted(each.__doc__ or "")[1]
    hints = get_type_hints(settings, include_extras=True)
    return {
        each.name: _option(each.name, hints[each.name], each.default, said.get(each.name))
        for each in fields(settings)
    }


def _option(name: str, hint: Any, default: Any, said: str | None = None) -> inspect.Parameter:
    kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    told = copy(given[0]) if given else typer.Option()
    told.help = told.help or said
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, told],
    )


def exactly_one(**given: Any) -> None:
    """Raises ValueError unless exactly one of the named options was given."""
    names = [f"--{name.replace('_', '-')}" for name in given]
    count = sum(value is not None for value in given.values())
    if count != 1:
        two = len(names) == 2
        said = ("neither" if two else "none") if count == 0 else "both" if two else str(count)
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"Expected exactly one of {listed}, got {said}. Give the one you know.")


INFEASIBLE = OverflowError, ZeroDivisionError, MemoryError
"""Errors of a setting so extreme that its price is no number, or fits no memory."""


def show(result: dict[str, Any], sentences: list[str], as_json: bool) -> None:
    """Prints `result` as one JSON object, or `sentences`, one a line."""
    if as_json:
        typer.echo(json.dumps(finite(result), allow_nan=False))
    else:
        say(*sentences)


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


def whom(result: dict[str, Any]) -> str:
    """Says relation and privacy unit in words."""
    records = result["max_records_per_unit"]
    unit = "one record" if records == 1 else f"up to {records} records"
    return f"{result['relation']} of {unit}"


def terms(result: dict[str, Any], accountant: str | None = None) -> str:
    """Says δ, accountant, relation and unit: no ε is printed without them."""
    by = accountant or f"{result['accountant']} accountant"
    return f"δ = {declared(result['delta'])} ({by}, {whom(result)})"


def say_epsilon(result: dict[str, Any], accountant: str | None = None) -> str:
    """Says what a mechanism costs."""
    return f"ε = {up(result['epsilon'])} at {terms(result, accountant)}"


def say_delta(result: dict[str, Any]) -> list[str]:
    """Says δ at the ε that was asked about, if one was."""
    if result.get("at_epsilon") is None:
        return []
    delta = up_significant(result["delta_at_epsilon"])
    return [f"At ε = {declared(result['at_epsilon'])}: δ = {delta}."]
