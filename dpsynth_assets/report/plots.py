"""Pictures of a report and of Dagster metadata, as small PNG bytes.

Colours are Okabe and Ito's, which readers with colour-blindness can distinguish. Figures are made
through the object interface with the Agg canvas: no display, no global state, safe in threads.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from dpsynth_assets.privacy.directed_rounding import epsilon_up

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
