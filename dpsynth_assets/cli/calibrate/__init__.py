"""`dpsynth calibrate`: the noise, or the number of tokens, that a target allows, without data."""

from collections.abc import Callable

import typer

from dpsynth_assets.cli.account.options import OneLineCommand
from dpsynth_assets.cli.calibrate import (
    counts,
    dp_sgd,
    gaussian,
    private_prediction,
    secret,
    vectors,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Find the noise that a target needs.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "private-prediction": private_prediction.private_prediction,
    "histogram": counts.histogram,
    "voting": counts.voting,
    "gaussian": gaussian.gaussian,
    "vectors": vectors.vectors,
    "dp-sgd": dp_sgd.dp_sgd,
    "secret": secret.secret,
}
for name, search in COMMANDS.items():
    app.command(name, cls=OneLineCommand)(search)
