"""One list of mechanisms, read in two directions: what settings cost, and what a target allows.

`dpsynth account` prices settings; `dpsynth calibrate` searches one field of the same settings.
"""

from collections.abc import Callable

import typer

from dpsynth_assets.cli.pricing import composition, secret, tokens, training

Command = Callable[..., None]

PRICE_LIST: dict[str, tuple[Command, Command | None]] = {
    "private-prediction": (tokens.price, tokens.calibrate),
    "dp-sgd": (training.price, training.calibrate),
    "secret": (secret.price, None),  # a plan finds the noise
}
"""Name of each mechanism to its price and its search."""

account = typer.Typer(no_args_is_help=True, help="Price mechanisms without any data.")
calibrate = typer.Typer(no_args_is_help=True, help="Find the noise that a target needs.")
for name, (price, search) in PRICE_LIST.items():
    account.command(name)(price)
    if search is not None:
        calibrate.command(name)(search)
account.command("compose")(composition.compose)
