"""Commands made of settings: a dataclass names the options, a function answers from it.

An option that several prices share means one thing in every command. An answer is one JSON object
or some sentences, with ε always rounded up.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, cast, get_type_hints

import typer

from dpsynth_assets.cli.terminal import refuse, say
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation

Delta = Annotated[float, typer.Option(help="Public δ of the guarantee, between 0 and 1.")]
Accountant = Annotated[
    Literal["zcdp", "tight"],
    typer.Option(help="zcdp: valid for adaptive plans. tight: for a plan fixed beforehand."),
]
Relation = Annotated[NeighboringRelation, typer.Option(help="When two datasets are neighbours.")]
RecordsPerUnit = Annotated[int, typer.Option(help="Records one privacy unit may contribute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]

TargetEpsilon = Annotated[
    float, typer.Option("--epsilon", "--target-epsilon", help="ε that must not be exceeded at δ.")
]
AtEpsilon = Annotated[float | None, typer.Option(help="Also print δ at this ε.")]
Records = Annotated[int, typer.Option(help="Number of private records, declared public.")]
MaybeRecords = Annotated[
    int | None, typer.Option(help="Number of private records, if it is declared public.")
]
BatchSize = Annotated[int, typer.Option(help="Fixed public prompts per batch, s.")]
PrivateTokens = Annotated[int, typer.Option(help="Private tokens of each batch, r.")]
ClipBound = Annotated[float, typer.Option(help="Bound c of clipped logits.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature τ.")]
LogitSlack = Annotated[
    float,
    typer.Option(
        help="Largest move of a row's logits with the rows beside it, as methods charge it unless "
        "told otherwise; 0 where rounding does not count, as in the papers."
    ),
]
BatchesPerPass = Annotated[
    int, typer.Option(help="Batches decoded in one forward pass, over which the slack adds up.")
]
Load = Annotated[
    float,
    typer.Option(
        help="Room of a forward pass for each batch, as a multiple of 4 s rows; for the slack."
    ),
]
LOGIT_SLACK = float(PrivatePredictionConfig.model_fields["logit_slack"].default)
BATCHES_PER_PASS = int(PrivatePredictionConfig.model_fields["batches_per_forward"].default)
"""What a plan charges by default: the same settings then have one price, here and in a plan."""
ContextsChanged = Annotated[
    Literal["toggle", "replace"],
    typer.Option(
        help="toggle: a record's prompt comes or goes. replace: it turns into another, as a prompt "
        "with two records does."
    ),
]
SvtNoiseScale = Annotated[
    float | None,
    typer.Option(help="Scale σ of the public-token test's threshold noise; none: no test."),
]
HistogramNoiseStd = Annotated[
    float | None,
    typer.Option(help="Std of Gaussian noise on a histogram released too, in records."),
]

Answer = tuple[dict[str, Any], str | list[str]]
"""What a command prints: keys of one JSON object, or sentences."""

START = 1
"""Value of a required setting that a command does not ask for, because it searches for it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Public settings of a mechanism: their fields' annotations are options of its commands.

    Attributes:
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
    """

    relation: Relation = NeighboringRelation.ADD_REMOVE
    max_records_per_unit: RecordsPerUnit = 1

    def facts(self, names: str) -> dict[str, Any]:
        """Lists the named settings as result keys, and whom every number protects."""
        return {name: getattr(self, name) for name in names.split()} | {
            "relation": str(self.relation),
            "max_records_per_unit": self.max_records_per_unit,
        }


def command(
    settings: type[Any], options: str
) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Makes a command of a function that answers from settings and from options of its own.

    Args:
        settings: Dataclass whose fields are annotated with their options.
        options: Names of all options in the order of the help; `--json` comes last. One that the
            function has as a parameter is passed to it, any other is a field of the settings.
    """
    hints = get_type_hints(settings, include_extras=True)
    defaults = {field.name: field.default for field in fields(settings)}
    required = {name: START for name, default in defaults.items() if default is MISSING}

    def parameter(name: str, own: inspect.Parameter | None) -> inspect.Parameter:
        empty = inspect.Parameter.empty
        default = defaults[name] if own is None else own.default
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if default is MISSING else default,
            annotation=hints[name] if own is None else own.annotation,
        )

    def made(answer: Callable[..., Answer]) -> Callable[..., None]:
        own = dict(list(inspect.signature(answer).parameters.items())[1:])

        def run(*, as_json: bool, **given: Any) -> None:
            with refusals():
                asked = {name: given.pop(name) for name in own}
                result, sentences = answer(settings(**(required | given)), **asked)
            show(result, sentences, as_json)

        parameters = [parameter(name, own.get(name)) for name in options.split()]
        parameters.append(
            inspect.Parameter(
                "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
            )
        )
        run.__doc__ = answer.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        cast("Any", run).__signature__ = inspect.Signature(parameters)
        return run

    return made


def exactly_one(**given: Any) -> None:
    """Raises ValueError unless exactly one of the named options was given."""
    names = [f"--{name.replace('_', '-')}" for name in given]
    count = sum(value is not None for value in given.values())
    if count != 1:
        two = len(names) == 2
        said = ("neither" if two else "none") if count == 0 else "both" if two else str(count)
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"Expected exactly one of {listed}, got {said}. Give the one you know.")


def positive(**values: float) -> None:
    """Raises ValueError unless every named value is positive and finite."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"Expected 0 < {name} < inf, got {value}.")


def at_least_one(**values: int) -> None:
    """Raises ValueError unless every named count is at least one."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"Expected {name} >= 1, got {value}.")


def numbers(given: list[str] | None, name: str) -> list[float]:
    """Reads numbers given one an option, or several separated by commas."""
    try:
        return [float(part) for text in given or [] for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"Expected numbers separated by commas for --{name}, got {','.join(given or [])!r}."
        ) from None


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what the kernel refuses into one line on stderr and exit code 2.

    The other errors: a setting so extreme that its price is no number, or fits no memory.
    """
    try:
        yield
    except (ValueError, OverflowError, ZeroDivisionError, MemoryError) as refusal:
        said = str(refusal) or "Expected settings of a feasible size, got larger ones."
        refuse(" ".join(said.split()))


def show(result: dict[str, Any], sentences: str | list[str], as_json: bool) -> None:
    """Prints `result` as one JSON object, or `sentences`, one a line."""
    if as_json:
        typer.echo(json.dumps(finite(result), allow_nan=False))
        return
    say(*([sentences] if isinstance(sentences, str) else sentences))


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
