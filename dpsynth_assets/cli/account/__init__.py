"""`dpsynth account`: prices mechanisms and reproduces published numbers, without any data."""

from collections.abc import Callable

import typer

from dpsynth_assets.cli.account import (
    bounded_range,
    composition,
    counts,
    dp_sgd,
    gaussian,
    private_prediction,
    secret,
    table10,
    tokens,
    vectors,
)
from dpsynth_assets.cli.account.options import OneLineCommand

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Price mechanisms without any data.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "tokens": tokens.tokens,
    "private-prediction": private_prediction.private_prediction,
    "svt": private_prediction.svt,
    "bounded-range": bounded_range.bounded_range,
    "histogram": counts.histogram,
    "voting": counts.voting,
    "gaussian": gaussian.gaussian,
    "vectors": vectors.vectors,
    "dp-sgd": dp_sgd.dp_sgd,
    "secret": secret.secret,
    "compose": composition.compose,
    "table10": table10.table10,
}
for name, price in COMMANDS.items():
    app.command(name, cls=OneLineCommand)(price)
