"""Options that several prices share: each name means one thing in every command."""

import math
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
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
