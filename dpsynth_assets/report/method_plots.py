"""Pictures of methods: what private prediction cost and wrote, and how an evolution went.

Those of the first are of two kinds, kept apart by their names. `internal_pictures` is computed from
private data without noise: for the steward's report alone.
`released_pictures`, `rebalancing_plot` and `votes_by_rank_plot` read what was released alone, and
may go wherever that goes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.report.plots import COLORS, line_styles, new_axes, shortened, to_png

if TYPE_CHECKING:
    import polars as pl

TITLES = {
    "batch_costs": "Ex-post cost of each batch (internal)",
    "token_costs": "Ex-post cost of a token by its place in a document (internal)",
    "noisy_cluster_sizes": "Released counts of clusters before and after rebalancing",
    "private_tokens": "Tokens drawn from private predictions",
    "votes_by_rank": "Released votes of the candidates, by rank, one line per round",
}
"""Captions by name of a picture, for a report."""

BINS = 30
_SYMLOG_BELOW = 10
_MOST_BARS = 120


# What is drawn


def batch_costs(internal: Mapping[str, Any]) -> np.ndarray:
    """(batches,) ex-post ε of a run's batches, from its internal facts; empty without any."""
    return np.asarray(internal.get("ex_post_epsilon_by_batch", ()), dtype=float)


def position_costs(internal: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`count`, `mean`, `p10`, `p50`, `p90` by place in a document; empty without any draw."""
    kept = internal.get("token_cost_by_position", {})
    shown = {name: np.asarray(values, dtype=float) for name, values in kept.items()}
    return shown if len(shown.get("count", ())) else {}


def share_below_half(costs: np.ndarray) -> float:
    """Share of batches that cost less than half of the most expensive one.

    The most expensive batch is the run's bound where a unit's change touches one batch.

    **Source** Amin et al. 2025, Section 6: "many batches are <50% of the stated guarantee".
    """
    return float(np.mean(costs < costs.max() / 2)) if len(costs) else 0.0


def token_counts(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """(private, public) tokens drawn, from a corpus's facts; None where they do not say."""
    if "private_tokens" not in facts:
        return None
    return int(facts["private_tokens"]), int(facts.get("public_tokens", 0))


def rebalanced_counts(facts: Mapping[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Noisy counts of each label's centres before and after rebalancing, from released facts.

    Returns:
        By label two float arrays of one length, centres that were kept first, then by their count
        before: NaN where a centre was dropped.
    """
    labels = [str(label or "all") for label in facts["labels"]]
    parts = zip(facts["centers"], facts["dp_counts"], facts["dp_counts_before"], strict=True)
    return {
        label: _ranked(*(np.asarray(part) for part in each))
        for label, each in zip(labels, parts, strict=True)
    }


def _ranked(
    kept: np.ndarray, after: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    counts = np.full(len(before), np.nan)
    counts[kept] = after
    order = np.lexsort((-before, np.isnan(counts)))
    return before[order].astype(float), counts[order]


# Pictures by name


def internal_pictures(internal: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Pictures of private numbers: they stay in the internal report.

    Args:
        internal: Internal facts of each corpus by name.
    """
    costs = {name: cost for name, facts in internal.items() if len(cost := batch_costs(facts))}
    places = {name: mean for name, facts in internal.items() if (mean := position_costs(facts))}
    pictures = {}
    if costs:
        pictures["batch_costs"] = batch_cost_plot(costs)
    if places:
        pictures["token_costs"] = position_cost_plot(places)
    return pictures


def released_pictures(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """Pictures of released numbers; none where nothing was drawn.

    Args:
        facts: Released facts of each corpus by name.
    """
    counted = {name: n for name, told in facts.items() if (n := token_counts(told))}
    drawn = any(sum(counts) for counts in counted.values())
    return {"private_tokens": private_share_plot(counted)} if drawn else {}


# Plots


def batch_cost_plot(costs: Mapping[str, np.ndarray]) -> bytes:
    """Batches by ex-post cost, with the most expensive batch of each run.

    **Source** Amin et al. 2025, Appendix D.4, Figures 3 and 4.
    """
    axes = new_axes(width=6.4, height=3.2)
    edges = np.linspace(0.0, max(values.max() for values in costs.values()) or 1.0, BINS + 1)
    for index, (name, values) in enumerate(costs.items()):
        color = COLORS[index % len(COLORS)]
        label = f"{shortened(name)}: {share_below_half(values):.0%} below half of the largest"
        axes.hist(values, edges, color=color, alpha=0.7, label=label)
        axes.axvline(values.max(), color=color, linestyle="--", linewidth=1.2)
    axes.yaxis.get_major_locator().set_params(integer=True)
    return to_png(
        axes,
        len(costs),
        xlabel="ex-post ε of a batch (dashed: the largest)",
        ylabel="batches",
        xlim=(0, None),
    )


def position_cost_plot(places: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """Mean cost of a token along a document, with the middle eight tenths as a band.

    **Source** Amin et al. 2025, Appendix D.4, Figures 5 and 6.
    """
    axes = new_axes(width=6.4, height=3.2)
    for index, (name, costs) in enumerate(places.items()):
        color = COLORS[index % len(COLORS)]
        place = np.arange(len(costs["mean"]))
        axes.fill_between(place, costs["p10"], costs["p90"], color=color, alpha=0.2, linewidth=0)
        axes.plot(place, costs["mean"], color=color, label=f"{shortened(name)}, mean")
        axes.plot(place, costs["p50"], color=color, linestyle=":", linewidth=1.2)
    return to_png(
        axes,
        len(places),
        xlabel="place in the document (tokens; dotted: median, band: 10-90 %)",
        ylabel="ex-post ε of a token",
        ylim=(0, None),
    )


def private_share_plot(tokens: Mapping[str, tuple[int, int]]) -> bytes:
    """Share of private tokens of each corpus; the rest were public ones, which are free.

    **Source** Amin et al. 2024, Section 6: the fraction of tokens that had to be private.
    """
    shown = [(name, counts) for name, counts in tokens.items() if sum(counts)][::-1]
    axes = new_axes(width=6.4, height=1.2 + 0.36 * max(1, len(shown)))
    shares = np.array([private / (private + public) for _, (private, public) in shown])
    places = np.arange(len(shown))
    bars = axes.barh(places, shares, 0.62, color=COLORS[0], label="private")
    axes.barh(places, 1 - shares, 0.62, left=shares, color=COLORS[1], label="public, free")
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], label_type="center", color="white",
                   fontsize=8)  # fmt: skip
    axes.set_yticks(places, [shortened(name) for name, _ in shown])
    return to_png(axes, 2, xlabel="share of the drawn tokens", xlim=(0, 1))


def rebalancing_plot(labels: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """Bars of each label's noisy counts: wide before rebalancing, narrow after it.

    Args:
        labels: What `rebalanced_counts` gives. Dropped centres beyond the room are left out.

    **Source** Amin et al. 2025, section 4.1 and Figure 2, c) and d).
    """
    axes = new_axes(width=7.0, height=3.2)
    room, start = max(1, _MOST_BARS // max(1, len(labels))), 0
    middles = []
    for before, after in labels.values():
        shown = max(room, int(np.isfinite(after).sum()))
        places = start + np.arange(len(before[:shown]))
        first = start == 0
        axes.bar(places, before[:shown], 0.9, color=COLORS[1], label="before" if first else None)
        axes.bar(places, after[:shown], 0.45, color=COLORS[0], label="after" if first else None)
        middles.append(places.mean() if len(places) else start)
        start += len(places) + 2
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xticks(middles, [shortened(name, 16) for name in labels])
    axes.grid(visible=False, axis="x")
    return to_png(axes, 2, xlabel="label; its clusters, kept ones first", ylabel="noisy count")


def votes_by_rank_plot(generations: "pl.DataFrame", noise_std: float | None) -> bytes:
    """Votes against rank; within the grey band two standard deviations of noise lie.

    Args:
        generations: The released file (`methods.evolution.population`).
        noise_std: Standard deviation of the votes' noise; None where votes have no noise of
            their own.
    """
    axes = new_axes(width=6.4, height=3.2)
    rounds = generations.partition_by("iteration", maintain_order=True)
    names = (f"round {number}" for number in range(1, len(rounds) + 1))
    for line, frame in zip(line_styles(names), rounds, strict=True):
        votes = np.sort(frame["votes"].to_numpy())[::-1]
        axes.plot(np.arange(1, len(votes) + 1), votes, linewidth=1.2, **line)
    if noise_std is not None:
        axes.axhspan(-2 * noise_std, 2 * noise_std, color="#BBBBBB", alpha=0.35, linewidth=0)
    axes.set_yscale("symlog", linthresh=_SYMLOG_BELOW)
    return to_png(axes, len(rounds), xlabel="candidate, most votes first", ylabel="released votes")
