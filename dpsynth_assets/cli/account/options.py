"""Options that several prices share: each name means one thing in every command."""

import math
from typing import Annotated, Any, Literal, cast

import typer
from typer.core import TyperCommand

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


_Misuse = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Every error of a command line (an unknown option, too); typer exports only this subclass."""


class OneLineCommand(TyperCommand):
    """A command whose misuse is one line on stderr and exit code 2, as a refusal is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as usual, without the usage lines before an error."""
        try:
            return super().parse_args(ctx, args)
        except _Misuse as misuse:
            typer.echo(" ".join(misuse.format_message().split()), err=True)
            raise typer.Exit(2) from None


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
