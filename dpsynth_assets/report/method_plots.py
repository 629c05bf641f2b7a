"""Pictures of methods: what private prediction cost and wrote, and how an evolution went.

Those of the first are of two kinds, kept apart by their names. `internal_pictures` is computed from
private data without noise: for the steward's report alone.
`released_pictures` and `evolution_pictures` read released facts and rows alone, and may go wherever
those go.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.report.plots import (
    COLORS,
    cumulative_plot,
    line_styles,
    new_axes,
    shortened,
    to_png,
)

if TYPE_CHECKING:
    import polars as pl

TITLES = {
    "batch_costs": "Ex-post cost of each batch (internal)",
    "token_costs": "Ex-post cost of a token by its place in a document (internal)",
    "noisy_cluster_sizes": "Released counts of clusters before and after rebalancing",
    "private_tokens": "Tokens drawn from private predictions",
    "tokens_per_batch": "Tokens in each batch",
    "documents_per_batch": "Documents in each batch",
    "votes_by_rank": "Released votes of the candidates, by rank, one line per round",
    "votes_by_label": "Released votes of the last round, by label",
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


def token_counts(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """(private, public) tokens drawn, from a corpus's facts; None where they do not say."""
    if "private_tokens" not in facts:
        return None
    return int(facts["private_tokens"]), int(facts.get("public_tokens", 0))


def by_batch(rows: "pl.DataFrame") -> dict[str, np.ndarray]:
    """Tokens and documents in each batch of released rows; empty where rows name no batch."""
    import polars as pl

    batch, tokens = f"{OWN_COLUMNS}batch", f"{OWN_COLUMNS}n_tokens"
    if not {batch, tokens} <= set(rows.columns):
        return {}
    known = rows.filter(pl.col(batch).is_not_null()).group_by(batch)
    batches = known.agg(tokens=pl.col(tokens).sum(), documents=pl.len()).sort(batch)
    if batches.is_empty():
        return {}
    return {name: batches[name].to_numpy() for name in ("tokens", "documents")}


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


def released_pictures(
    corpora: Mapping[str, tuple[Mapping[str, Any], "pl.DataFrame"]],
) -> dict[str, bytes]:
    """Pictures of released numbers; none of a single point.

    Args:
        corpora: Released facts and rows of each corpus by name.
    """
    counted = {name: n for name, (facts, _) in corpora.items() if (n := token_counts(facts))}
    batches = {name: by_batch(rows) for name, (_, rows) in corpora.items()}
    pictures = {}
    if any(sum(counts) for counts in counted.values()):
        pictures["private_tokens"] = private_share_plot(counted)
    for kind in ("tokens", "documents"):
        shown = {name: got[kind] for name, got in batches.items() if len(got.get(kind, ())) > 1}
        if shown:
            pictures[f"{kind}_per_batch"] = cumulative_plot(shown, f"{kind} a batch", "batches")
    return pictures


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


# Pictures of an evolution: who won the votes, and how rounds converge. All of it is released.
#
# Everything is read off the released file of generations (`methods.evolution.population`) and, for
# the Fréchet distance, off public text.

_MOST_PER_LABEL = 60
_MOST_LABELS = 12


def evolution_pictures(
    generations: "pl.DataFrame", labels: Sequence[str], noise_std: float | None = None
) -> dict[str, bytes]:
    """PNG pictures by name.

    Args:
        generations: The released file.
        labels: Label values by number.
        noise_std: Standard deviation of the votes' noise; None where votes have no noise of
            their own.
    """
    return {
        "votes_by_rank": votes_by_rank_plot(generations, noise_std),
        "votes_by_label": votes_by_label_plot(generations, labels, noise_std),
    }


def votes_by_rank_plot(generations: "pl.DataFrame", noise_std: float | None) -> bytes:
    """Votes against rank; within the grey band two standard deviations of noise lie."""
    axes = new_axes(width=6.4, height=3.2)
    rounds = generations.partition_by("iteration", maintain_order=True)
    names = (f"round {number}" for number in range(1, len(rounds) + 1))
    for line, frame in zip(line_styles(names), rounds, strict=True):
        votes = np.sort(frame["votes"].to_numpy())[::-1]
        axes.plot(np.arange(1, len(votes) + 1), votes, linewidth=1.2, **line)
    _noise_band(axes, noise_std)
    axes.set_yscale("symlog", linthresh=_SYMLOG_BELOW)
    return to_png(axes, len(rounds), xlabel="candidate, most votes first", ylabel="released votes")


def votes_by_label_plot(
    generations: "pl.DataFrame", labels: Sequence[str], noise_std: float | None
) -> bytes:
    """Bars of the last round's best candidates of each label; survivors stand out.

    **Source** SecPE, Figure 4.
    """
    axes = new_axes(width=7.0, height=3.2)
    last = generations.filter(generations["iteration"] == generations["iteration"].max())
    shown = list(range(min(len(labels), _MOST_LABELS)))
    start, middles = 0, []
    for number in shown:
        of_label = last.filter(last["label"] == number).sort("votes", descending=True)
        of_label = of_label.head(max(4, _MOST_PER_LABEL // max(1, len(shown)) * 2))
        places = np.arange(start, start + of_label.height)
        survived = (of_label["survived"] > 0).to_numpy()
        colors = [COLORS[0] if alive else COLORS[1] for alive in survived.tolist()]
        axes.bar(places, of_label["votes"].to_numpy(), width=0.9, color=colors)
        middles.append(places.mean() if len(places) else start)
        start += of_label.height + 2
    _noise_band(axes, noise_std)
    axes.axhline(0, color="#444444", linewidth=0.8)
    names = [shortened(labels[number] or "all", 14) for number in shown]
    axes.set_xticks(middles, names, rotation=20 if len(shown) > 4 else 0)
    axes.grid(visible=False, axis="x")
    return to_png(axes, xlabel="label; survivors blue, others orange", ylabel="released votes")


def _noise_band(axes: object, noise_std: float | None) -> None:
    if noise_std is not None:
        axes.axhspan(  # type: ignore[attr-defined]
            -2 * noise_std, 2 * noise_std, color="#BBBBBB", alpha=0.35, linewidth=0
        )
