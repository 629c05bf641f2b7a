"""Pictures of a report and of Dagster metadata, as small PNG bytes.

Colours are Okabe and Ito's, which readers with colour-blindness can distinguish. Figures are made
through the object interface with the Agg canvas: no display, no global state, safe in threads.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.privacy.directed_rounding import epsilon_up

if TYPE_CHECKING:
    import polars as pl


COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#444444")
_DPI = 90
_LEGEND_CHARACTERS, _LEGEND_MARK = 14, 6
"""Characters of a legend in an inch, and those that a mark and its blanks take."""


def scores_plot(
    rows: Sequence[Mapping[str, Any]],
    metric: str,
    floor: float | None = None,
    ceiling: float | None = None,
) -> bytes:
    """A horizontal bar a corpus, with lines at the public-only floor and non-private ceiling.

    Args:
        rows: Rows of the report's table; those without the metric are left out.
        metric: Name of the score; `<metric>_std`, where given, is drawn as an error bar.
        floor: Score of the public-only reference.
        ceiling: Score of the non-private reference.
    """
    from dpsynth_assets.metrics.registry import registered

    shown = [row for row in rows if row.get(metric) is not None][::-1]
    axes = new_axes(width=6.4, height=1.2 + 0.36 * max(1, len(shown)))
    values = [float(row[metric]) for row in shown]
    spread = [float(row.get(f"{metric}_std") or 0.0) for row in shown]
    places = np.arange(len(shown))
    axes.barh(places, values, xerr=spread, height=0.62, color=COLORS[0], ecolor="#444444")
    axes.set_yticks(places, [_row_name(row) for row in shown])
    for value, name, color in ((floor, "floor", COLORS[5]), (ceiling, "ceiling", COLORS[2])):
        if value is not None:
            axes.axvline(value, color=color, linestyle="--", linewidth=1.4, label=name)
    axes.set_xlim(left=0)
    ends, known = sum(value is not None for value in (floor, ceiling)), registered()[metric]
    return to_png(axes, ends, xlabel=known.axis or known.title)


def cumulative_plot(
    values: Mapping[str, Sequence[float] | np.ndarray], quantity: str, items: str
) -> bytes:
    """Share of items at or below each value, a line a corpus."""
    axes = new_axes(width=6.4, height=3.2)
    for line, numbers in zip(line_styles(values), values.values(), strict=True):
        ordered = np.sort(np.asarray(numbers, dtype=float))
        shares = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step([0.0, *ordered], [0.0, *shares], where="post", **line)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return to_png(
        axes,
        len(values),
        xlabel=quantity,
        ylabel=f"share of {items}",
        ylim=(0, 1.02),
        xlim=(0, None),
    )


def to_markdown(png: bytes, alt: str) -> str:
    """An inline image that Dagster's Markdown shows."""
    description = alt.replace("]", " ").replace("[", " ").replace("\n", " ")
    return f"![{description}]({data_uri(png)})"


def data_uri(png: bytes) -> str:
    """The picture as a `data:` address."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def new_axes(width: float, height: float) -> Any:
    """Opens a figure of this size in inches; returns its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.tick_params(labelsize=8)
    return axes


def line_styles(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Colour, dash and label of a line for each name; dashed where colours come again."""
    for index, name in enumerate(names):
        style = "-" if index < len(COLORS) else "--"
        color = COLORS[index % len(COLORS)]
        yield {"linestyle": style, "color": color, "label": shortened(name)}


def to_png(axes: Any, entries: int = 0, **shown: Any) -> bytes:
    """Renders a figure as PNG.

    Args:
        axes: What was drawn on.
        entries: Names of a legend above the axes, where they hide no bar; too many are left out.
        shown: Labels, limits and ticks of the axes.
    """
    axes.set(**shown)
    if 0 < entries <= 2 * len(COLORS):
        _, names = axes.get_legend_handles_labels()
        fitting = int(axes.figure.get_figwidth() * _LEGEND_CHARACTERS)
        columns = fitting // (max(map(len, names), default=0) + _LEGEND_MARK)
        axes.legend(
            fontsize=7,
            frameon=False,
            ncols=max(1, min(4, entries, columns)),  # A wider legend would squeeze the axes.
            loc="lower left",
            bbox_to_anchor=(0, 1),
        )
    buffer = BytesIO()
    # Tight: a legend that is wider than the axes is not cut.
    axes.figure.savefig(buffer, format="png", metadata={"Software": None}, bbox_inches="tight")
    return buffer.getvalue()


def shortened(name: str, characters: int = 28) -> str:
    """Cuts a name for a picture, and keeps dollar signs from starting mathematics."""
    shown = name if len(name) <= characters else f"{name[: characters - 1]}…"
    return shown.replace("$", r"\$")  # a dollar sign would start mathematics


def _row_name(row: Mapping[str, Any]) -> str:
    epsilon = row.get("epsilon")
    if epsilon is None:
        return shortened(str(row["name"]))
    shown = epsilon_up(epsilon) if isinstance(epsilon, int | float) else str(epsilon)
    return f"{shortened(str(row['name']))} (ε = {shown})"


# Pictures of methods: what private prediction cost and wrote, and how an evolution went.
#
# Those of the first are of two kinds, kept apart by their names. `internal_pictures` is computed
# from private data without noise: for the steward's report alone. `released_pictures`,
# `rebalancing_plot` and `votes_by_rank_plot` read what was released alone, and may go wherever that
# goes.


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
