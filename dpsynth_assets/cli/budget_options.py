"""Options of a budget, checked where they are given."""

import typer

from dpsynth_assets.privacy.directed_rounding import declared

LARGEST_DELTA = 1e-3
"""δ of a dataset file is below it."""


def epsilon_option(value: float) -> float:
    """Refuses an ε that buys nothing.

    Raises:
        typer.BadParameter: It is not above 0.
    """
    if not value > 0:
        raise typer.BadParameter(
            f"Expected a number above 0, got {declared(value)}. Common are 1 to 10."
        )
    return value


def delta_option(value: float) -> float:
    """Refuses a δ that protects nobody.

    Raises:
        typer.BadParameter: It is not between 0 and `LARGEST_DELTA`.
    """
    if not 0 < value < LARGEST_DELTA:
        most = declared(LARGEST_DELTA)
        raise typer.BadParameter(
            f"Expected a number above 0 and below {most}, got {declared(value)}. Choose a power of "
            "ten well below one in the number of records."
        )
    return value
