"""One list of mechanisms, read in two directions: what settings cost, and what a target allows.

`dpsynth account` prices settings; `dpsynth calibrate` searches one field of the same settings.
"""

from collections.abc import Callable

import typer

from dpsynth_assets.cli.pricing import composition, gaussian, secret, tokens, with_histogram

Command = Callable[..., None]

PRICE_LIST: dict[str, tuple[Command, Command | None]] = {
    "tokens": (tokens.price_tokens, None),  # with --target-epsilon, both in one
    "private-prediction": (tokens.price_prediction, tokens.calibrate_prediction),
    "svt": (tokens.price_test, None),  # searched for with the tokens it spares
    "bounded-range": (composition.price_draws, None),  # η is no setting: that of a mechanism is
    "histogram": (gaussian.price_histogram, gaussian.calibrate_histogram),
    "voting": (gaussian.price_voting, gaussian.calibrate_voting),
    "gaussian": (gaussian.price, gaussian.calibrate),
    "vectors": (with_histogram.price_vectors, with_histogram.calibrate_vectors),
    "dp-sgd": (with_histogram.price_training, with_histogram.calibrate_training),
    "secret": (secret.price, secret.calibrate),
}
"""Name of each mechanism to its price and its search."""

account = typer.Typer(no_args_is_help=True, help="Price mechanisms without any data.")
calibrate = typer.Typer(no_args_is_help=True, help="Find the noise that a target needs.")
for name, (price, search) in PRICE_LIST.items():
    account.command(name)(price)
    if search is not None:
        calibrate.command(name)(search)
account.command("compose")(composition.compose)
account.command("table10")(tokens.table10)
