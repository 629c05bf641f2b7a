"""One list of mechanisms, read in two directions: what settings cost, and what a target allows.

`dpsynth account` prices settings; `dpsynth calibrate` searches one field of the same settings.
"""

from collections.abc import Callable

import typer

from dpsynth_assets.cli.pricing import (
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
from dpsynth_assets.cli.pricing.commands import OneLineCommand

Command = Callable[..., None]

PRICE_LIST: dict[str, tuple[Command, Command | None]] = {
    "tokens": (tokens.price, None),  # with --target-epsilon, both in one
    "private-prediction": (private_prediction.price, private_prediction.calibrate),
    "svt": (tokens.price_test, None),  # searched for with the tokens it spares
    "bounded-range": (bounded_range.price, None),  # η is no setting: that of a mechanism is
    "histogram": (counts.price_histogram, counts.calibrate_histogram),
    "voting": (counts.price_voting, counts.calibrate_voting),
    "gaussian": (gaussian.price, gaussian.calibrate),
    "vectors": (vectors.price, vectors.calibrate),
    "dp-sgd": (dp_sgd.price, dp_sgd.calibrate),
    "secret": (secret.price, secret.calibrate),
}
"""Name of each mechanism to its price and its search."""

account, calibrate = (
    typer.Typer(
        no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=text
    )
    for text in ("Price mechanisms without any data.", "Find the noise that a target needs.")
)
for name, (price, search) in PRICE_LIST.items():
    account.command(name, cls=OneLineCommand)(price)
    if search is not None:
        calibrate.command(name, cls=OneLineCommand)(search)
account.command("compose", cls=OneLineCommand)(composition.compose)
account.command("table10", cls=OneLineCommand)(table10.table10)
