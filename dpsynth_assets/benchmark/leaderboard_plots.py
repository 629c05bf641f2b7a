"""Pictures of one dataset's lines: score against ε, records and cost, and rows obtainable."""

from collections.abc import Callable, Mapping, Sequence

from dpsynth_assets.benchmark.leaderboard import CEILING, FLOOR, Standing
from dpsynth_assets.metrics.registry import leading
from dpsynth_assets.report.plots import COLORS, new_axes, shortened, to_png

_MARKERS = "osD^vPX*"


def pictures(lines: Sequence[Standing], dataset: str) -> dict[str, bytes]:
    """PNG pictures by title; one is left out where it would show a single point a line."""
    best = leading()
    methods = [each for each in lines if each.asked is not None and best.name in each.scores]
    ends = {each.line: each for each in lines if each.promise == "reference"}
    if not methods:
        return {}
    largest = max(each.records for each in methods)
    colours = {line: index for index, line in enumerate(dict.fromkeys(e.line for e in methods))}
    epsilons = [each.asked or 0.0 for each in methods]
    drawn = {
        f"{dataset}: {best.title} against ε": _lines(
            [each for each in methods if each.records == largest],
            lambda each: each.epsilon or each.asked or 0.0,
            "ε",
            ends,
            colours,
            ticks=epsilons,
        ),
        f"{dataset}: {best.title} against processor minutes": _lines(
            [e for e in methods if e.records == largest and e.costs.get("processor_seconds")],
            lambda each: each.costs["processor_seconds"] / 60,
            "processor minutes",
            ends,
            colours,
        ),
        f"{dataset}: rows obtainable": _lines(
            [each for each in methods if each.records == largest],
            lambda each: each.epsilon or each.asked or 0.0,
            "ε",
            {},
            colours,
            ticks=epsilons,
            value=lambda each: (each.costs.get("rows", 0.0), 0.0),
            name="rows",
        ),
    }
    if len({each.records for each in methods}) > 1:
        sizes = {(each.line, each.asked) for each in methods if each.records != largest}
        drawn[f"{dataset}: {best.title} against records"] = _lines(
            [each for each in methods if (each.line, each.asked) in sizes],
            lambda each: float(each.records),
            "records",
            ends,
            colours,
            ticks=[each.records for each in methods],
        )
    return drawn


def _score(each: Standing) -> tuple[float, float]:
    score = each.scores[leading().name]
    return score.value, score.std


def _lines(
    standings: Sequence[Standing],
    place: Callable[[Standing], float],
    label: str,
    ends: Mapping[str, Standing],
    colours: Mapping[str, int],
    *,
    ticks: Sequence[float] | None = None,
    value: Callable[[Standing], tuple[float, float]] = _score,
    name: str = "",
) -> bytes:
    """Points with error bars, joined where `ticks` names their places, and ends as level lines.

    A method has the same colour and mark in every picture.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes = new_axes(width=5.6, height=3.4)
    names = list(dict.fromkeys(each.line for each in standings))
    for line in names:
        index = colours[line]
        own = sorted((each for each in standings if each.line == line), key=place)
        scores = [value(each) for each in own]
        axes.errorbar(
            [place(each) for each in own],
            [score for score, _ in scores],
            yerr=[spread for _, spread in scores],
            fmt=_MARKERS[index % len(_MARKERS)] + ("" if ticks is None else "-"),
            markersize=4,
            linewidth=1.2,
            color=COLORS[index % len(COLORS)],
            label=shortened(line),
        )
    for role, style in ((FLOOR, ":"), (CEILING, "--")):
        if role in ends and leading().name in ends[role].scores:
            level, _ = _score(ends[role])
            axes.axhline(level, color="#444444", linestyle=style, linewidth=1.2, label=role)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    if ticks is not None:
        axes.set_xticks(sorted(set(ticks)))
        low, high = axes.get_xlim()  # Points of one budget must not fill the whole width.
        axes.set_xlim(min(low, min(ticks) / 1.5), max(high, max(ticks) * 1.5))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)
    entries = len(names) + len(ends)
    return to_png(axes, entries, xlabel=label, ylabel=name or leading().title)
