"""Values of a table of scores as every page and command shows them."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up, rounded_up

_EPSILONS = {"epsilon", "ex_post_epsilon"}
"""Columns that bound what a release tells: written rounded up, as δ is."""


BUYS_NOTHING = 1e-6


def left_in_words(epsilon: float | None) -> str:
    """What is left of a budget: `0 left` where it is a rest of floating-point arithmetic.

    Args:
        epsilon: Its ε; None: the account has no bound.
    """
    nothing = epsilon is not None and 0 < epsilon < BUYS_NOTHING
    return f"{'0' if nothing else epsilon_down(epsilon)} left"


def format_cell(key: str, value: Any, row: Mapping[str, Any] | None = None) -> str:
    """Shows one value of the table: shares in percent, None as a dash.

    Args:
        key: Its column.
        value: The value.
        row: The row it stands in, whose `<key>_std` is shown as ±, and whose `<key>_low` and
            `<key>_high` as an interval.
    """
    if value is None:
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key in _EPSILONS:
        return epsilon_up(value)
    if key == "delta":
        return rounded_up(value, ".3g")
    return _score(key, value, row or {})


def _score(key: str, value: float, row: Mapping[str, Any]) -> str:
    """A score by the form of its metric; other numbers with three digits."""
    from dpsynth_assets.metrics.registry import registered

    metrics = registered()
    if key.removeprefix("gap_closed_") in metrics and key not in metrics:
        return _share(key, value, row)
    metric = metrics.get(key)
    if metric is not None and metric.percent:
        return f"{100 * value:.1f} %"
    if isinstance(value, int):
        return f"{value:,}"
    form = ".0f" if key == "seconds" else ".3g" if metric is None else metric.form
    spread = row.get(f"{key}_std")
    return f"{value:{form}}" if spread is None else f"{value:{form}} ± {spread:{form}}"


def _share(key: str, value: float, row: Mapping[str, Any]) -> str:
    """A share of the gap with its interval."""
    from dpsynth_assets.metrics.comparison import GapShare

    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is None or high is None:
        return f"{100 * value:.0f} %"
    return str(GapShare(value, low, high))
