"""Values of a table of scores as every page and command shows them."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up, rounded_up

_PERCENT = {
    "gap_closed_mauve", "gap_closed_energy_distance", "gap_closed_accuracy",
    "verbatim_share", "near_duplicate_share",
}  # fmt: skip
_DECIMALS = {
    "mauve": 3, "accuracy": 3, "energy_distance": 4, "next_word_accuracy": 3,
    "next_word_perplexity": 1, "mean_words": 1, "seconds": 0, "length_distance": 1,
    "distinct_1": 3, "distinct_2": 3, "distinct_3": 3, "label_distance": 3, "frechet_distance": 3,
}  # fmt: skip
_EPSILONS = {"epsilon", "ex_post_epsilon"}
"""Columns that bound what a release tells: written rounded up, as δ is."""


BUYS_NOTHING = 1e-6


def left_in_words(epsilon: float | None) -> str:
    """What is left of a budget: `0 left` where it is a rest of floating-point arithmetic."""
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
    row = row or {}
    if key in _PERCENT:
        return _percent(key, value, row)
    if isinstance(value, int):
        return f"{value:,}"
    spread = row.get(f"{key}_std")
    form = f".{_DECIMALS[key]}f" if key in _DECIMALS else ".3g"
    return f"{value:{form}}" if spread is None else f"{value:{form}} ± {spread:{form}}"


def _percent(key: str, value: float, row: Mapping[str, Any]) -> str:
    if not key.startswith("gap"):
        return f"{100 * value:.1f} %"
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is None or high is None:
        return f"{100 * value:.0f} %"
    return f"{100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
