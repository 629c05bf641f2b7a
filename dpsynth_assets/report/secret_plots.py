"""Pictures of secret protection: noise ratios, and votes of records beside those of clusters."""

from collections.abc import Sequence

import numpy as np

from dpsynth_assets.metrics.secret_comparison import NoiseComparison
from dpsynth_assets.report.plots import COLORS, new_axes, to_png

_LEVELS = (
    ("noise_ratio_printed", "as printed: not a guarantee", COLORS[5], "--"),
    ("noise_ratio_needed", "printed sampling, exact mixture", COLORS[1], "-"),
    ("noise_ratio_if_used", "sampling that uses the data, exact", COLORS[0], "-"),
)


def noise_ratio_plot(rows: Sequence[NoiseComparison], against: str) -> bytes:
    """σ_GDP / σ_secret of each level of noise.

    Args:
        rows: Comparisons, in ascending order of what they differ in.
        against: `ratio` or `secrets`, the attribute on the horizontal axis.
    """
    figure, axes = new_axes(width=6.4, height=3.6)
    places = [getattr(row, against) for row in rows]
    numbers = [row.to_json() for row in rows]
    for key, name, color, style in _LEVELS:
        values = [number[key] if np.isfinite(number[key]) else np.nan for number in numbers]
        axes.plot(places, values, style, marker="o", markersize=3, color=color, label=name)
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set_yscale("log")
    if against == "ratio":
        axes.set_xscale("log")
    axes.set(
        xlabel={"ratio": "r / p", "secrets": "number of secrets"}[against],
        ylabel="σ of GDP for one record / σ",
    )
    figure.legend(loc="outside upper left", ncols=1, fontsize=8, frameon=False)
    return to_png(figure)


def vote_plot(exact: np.ndarray, representative: np.ndarray, shown: int = 60) -> bytes:
    """Votes of records above those of representatives, for the candidates with most of either.

    Args:
        exact: (C,) votes of records without noise.
        representative: (C,) votes of representatives.
        shown: Candidates shown, those with most exact votes first.
    """
    figure, axes = new_axes(width=6.4, height=3.2)
    order = np.argsort(-exact, kind="stable")[:shown]
    places = np.arange(len(order))
    for sign, votes, name, color in (
        (1, exact, "votes of records", COLORS[0]),
        (-1, representative, "votes of representatives", COLORS[1]),
    ):
        axes.bar(places, sign * votes[order] / votes.sum(), width=0.9, color=color, label=name)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set(xlabel="candidates, most votes of records first", ylabel="share of all votes")
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    return to_png(figure)
