"""The leaderboard as a page: Markdown, HTML and pictures of one list of blocks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from dpsynth_assets.benchmark.leaderboard import CEILING, FLOOR, Leaderboard, Promise, Standing
from dpsynth_assets.metrics.metric import Metric
from dpsynth_assets.metrics.registry import benchmarked, leading
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.report.pages import (
    Block,
    Fold,
    Gallery,
    Heading,
    Notice,
    Paragraph,
    Picture,
    TableBlock,
    to_html,
    to_markdown,
)
from dpsynth_assets.report.plots import COLORS, new_axes, shortened, to_png

TITLES: dict[Promise, str] = {
    "worst case": "Worst-case guarantees",
    "ex post": "Ex-post guarantees",
    "secrets": "Guarantees for declared secrets alone",
}
NOTES: dict[Promise, str] = {
    "worst case": "ε holds for all records.",
    "ex post": "ε depends on the records and is known afterwards: such corpora are compared with "
    "one another alone.",
    "secrets": "Only the declared secret words are protected, by the bound on what a guess gains.",
}
_READ = (
    "Every corpus of a dataset is scored on the same number of rows against the same held-out "
    "records. ± and intervals come from resampled seeds and rows. The gap runs from public_only, "
    "the public model alone, to one_real_example, the same model after a real record and without "
    "privacy; a share of it stands only where the two differ beyond chance. Near-duplicates: share "
    "of rows with another row at a cosine of .95. Perplexity is that of rows under the public "
    "model: low for fluent rows, also for wrong ones."
)


@dataclass(frozen=True)
class LeaderboardPage:
    """A leaderboard as blocks; its pictures are drawn once for all that shows them.

    Attributes:
        board: The leaderboard.
    """

    board: Leaderboard

    @cached_property
    def pictures(self) -> Mapping[str, Mapping[str, bytes]]:
        """Dataset -> PNG pictures by title."""
        board = self.board
        return {dataset: pictures(board.of(dataset), dataset) for dataset in board.datasets}

    @property
    def picture_files(self) -> dict[str, bytes]:
        """PNG pictures by the names of their files, in the order of the page."""
        return {
            f"leaderboard_{dataset}_{number}.png": png
            for dataset, drawn in self.pictures.items()
            for number, png in enumerate(drawn.values(), start=1)
        }

    @property
    def blocks(self) -> list[Block]:
        """Everything that the page says, in order."""
        board = self.board
        made = f"dpsynth benchmark run {board.name}, then dpsynth benchmark report {board.name}"
        blocks: list[Block] = [
            Heading(f"Leaderboard: {board.name}", 1),
            Paragraph(f"Made by: {made}. {_facts(board)}"),
        ]
        if board.missing:
            blocks.append(
                Notice(f"{board.missing} cells are missing; the finished ones are below.")
            )
        blocks.append(Paragraph(_READ))
        for dataset in board.datasets:
            blocks += _dataset(board, dataset, self.pictures[dataset])
        return blocks

    def to_html(self) -> str:
        """One HTML file that needs nothing else."""
        return to_html(f"Leaderboard: {self.board.name}", self.blocks)

    def to_text(self, folder: str | None = None) -> str:
        """Markdown.

        Args:
            folder: Where its pictures lie, as links name it; None: no picture.
        """
        parts, drawn = [], iter(self.picture_files)
        for block in self.blocks:
            if not isinstance(block, Gallery):
                parts.append(to_markdown([block]))
            elif folder is not None:
                shown = [(picture.title, next(drawn)) for picture in block.pictures]
                links = "\n".join(f"![{title}]({folder}/{file})" for title, file in shown)
                parts.append(f"{links}\n")
        return "\n".join(parts)


def _facts(board: Leaderboard) -> str:
    told = [f"{name}: {value}" for name, value in board.facts.items()]
    return "; ".join(told) + "." if told else "No cell is there yet."


def _dataset(board: Leaderboard, dataset: str, drawn: Mapping[str, bytes]) -> Iterator[Block]:
    own = board.of(dataset)
    yield Heading(dataset, 2)
    ends = [each for each in own if each.promise == "reference"]
    for promise, title in TITLES.items():
        lines = [each for each in own if each.promise == promise]
        if lines:
            yield Heading(title, 3)
            yield Paragraph(NOTES[promise])
        for records in sorted({each.records for each in lines}, reverse=True):
            shown = [each for each in lines if each.records == records]
            yield _table([*ends, *shown], f"{dataset}, {records} records, {title.lower()}")
    if not any(each.promise in TITLES for each in own):
        yield _table(ends, dataset)
    if drawn:
        yield Gallery(tuple(Picture(title, png) for title, png in drawn.items()))
    refused = [f"{each.line} at ε = {each.asked:g}: {each.refusal}" for each in own if each.refusal]
    if refused:
        told = tuple(Paragraph(line) for line in dict.fromkeys(refused))
        yield Fold("Refused by their plans", told)
    if board.verdicts.get(dataset):
        decided = tuple(Paragraph(line) for line in board.verdicts[dataset])
        yield Fold("What is decided and what is not", decided)


def _table(lines: Sequence[Standing], caption: str) -> TableBlock:
    floor_last = sorted(lines, key=lambda each: each.line == FLOOR)
    columns = {title: list(map(shown, floor_last)) for title, shown in _columns().items()}
    told = {title: cells for title, cells in columns.items() if any(cells)}
    return TableBlock(
        header=tuple(told),
        rows=tuple(zip(*told.values(), strict=True)),
        numeric=(False, *([True] * (len(told) - 1))),
        caption=caption,
    )


def _columns() -> dict[str, Callable[[Standing], str]]:
    """What each column shows of a line, by its title."""
    columns: dict[str, Callable[[Standing], str]] = {
        "corpus": lambda each: each.line,
        "ε": _epsilon,
        "seeds": lambda each: str(each.seeds),
        "rows": lambda each: f"{each.costs.get('rows', 0):.0f}",
    }
    for metric in benchmarked("leaderboard"):
        columns[metric.narrow_title or metric.title] = partial(_score, metric)
        if metric.compared:
            name = f"{metric.gap_title or metric.title} " if metric != leading() else ""
            columns[f"{name}gap closed"] = partial(_share, metric)
    return columns | {
        "processor minutes": lambda each: _cost(each, "processor_seconds", 60),
        "memory (GiB)": lambda each: _cost(each, "peak_memory_mib", 1024),
        "tokens (thousands)": _tokens,
    }


def _cost(each: Standing, name: str, unit: float) -> str:
    return f"{each.costs[name] / unit:.1f}" if name in each.costs else ""


def _tokens(each: Standing) -> str:
    tokens = each.costs.get("tokens_read", 0.0) + each.costs.get("tokens_written", 0.0)
    return f"{tokens / 1000:,.0f}" if tokens else ""


def _epsilon(each: Standing) -> str:
    if each.promise == "reference":
        return "0" if each.line == FLOOR else "∞"
    return "" if each.epsilon is None else epsilon_up(each.epsilon)


def _score(metric: Metric, each: Standing) -> str:
    """Mean and ±; the mean alone where nothing was resampled."""
    score = each.scores.get(metric.name)
    if score is None:
        return ""
    mean = format(score.value, metric.form)
    return f"{mean} ± {score.std:{metric.form}}" if score.std > 1e-9 * abs(score.value) else mean


def _share(metric: Metric, each: Standing) -> str:
    return str(each.shares.get(metric.name) or "")


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


def _leading_score(each: Standing) -> tuple[float, float]:
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
    value: Callable[[Standing], tuple[float, float]] = _leading_score,
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
            level, _ = _leading_score(ends[role])
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
