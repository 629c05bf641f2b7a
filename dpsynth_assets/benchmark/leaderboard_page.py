"""The leaderboard as a page: Markdown, HTML and pictures of one list of blocks."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dpsynth_assets.benchmark.leaderboard import (
    CEILING,
    FLOOR,
    Leaderboard,
    Promise,
    Standing,
    leaderboard,
)
from dpsynth_assets.benchmark.running import DatasetBench, places
from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec
from dpsynth_assets.files.kept import JSON
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.metrics.metric import Metric
from dpsynth_assets.metrics.registry import benchmarked, leading
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.report.pages import (
    Block,
    Fold,
    Gallery,
    Heading,
    Notice,
    Paragraph,
    Picture,
    TableBlock,
    table_of,
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
    "worst case": "ε holds for every possible set of records.",
    "ex post": "ε depends on the records and is known only afterwards: such corpora are compared "
    "only with one another.",
    "secrets": "Only declared secrets are protected: the success of a guess is bounded.",
}
_READ = (
    "Every corpus of a dataset is scored on the same number of rows against the same held-out "
    "records. ± and intervals come from resampled seeds and rows. The gap runs from public_only, "
    "the public model alone, to one_real_example, the same model with a real record in its "
    "prompt, without privacy; a share of the gap is given only if the two differ by more than "
    "chance. Near-duplicates: share of rows with another row at a cosine of .95. Perplexity is "
    "that of the rows under the public model: it is low for fluent rows, even if they are wrong."
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
    return "; ".join(told) + "." if told else "No cell is finished yet."


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
    refused = [
        f"{each.line} at ε = {declared(each.asked_epsilon)}: {each.refusal}"
        for each in own
        if each.refusal
    ]
    if refused:
        told = tuple(Paragraph(line) for line in dict.fromkeys(refused))
        yield Fold("Methods whose plans are refused", told)
    if any((found := board.verdicts.get(dataset, {})).get("better", {}).values()):
        yield Fold("Comparison of each pair of corpora", tuple(_matrices(dataset, **found)))


def _table(lines: Sequence[Standing], caption: str) -> TableBlock:
    floor_last = sorted(lines, key=lambda each: each.line == FLOOR)
    columns = {title: shown for title, shown in _columns().items() if any(map(shown, floor_last))}
    return table_of(floor_last, columns, caption=caption, numeric={*columns} - {"corpus"})


def _matrices(
    dataset: str, better: Mapping[str, Mapping[str, Any]], notes: Sequence[str]
) -> Iterator[Block]:
    """At each ε, by which metrics the corpus of a row is better than that of a column."""
    rows = [row for table in better.values() for row in table.values()]
    letters: dict[str, str] = {}
    for title in dict.fromkeys(
        title for row in rows for titles in row.values() for title in titles
    ):
        letters[title] = next(c for c in title.upper() if c not in letters.values())
    legend = ", ".join(f"{letter} = {title}" for title, letter in letters.items())
    yield Paragraph(f"Metrics by which a row's corpus is better than a column's: {legend}.")
    for at, table in better.items():
        beaten = [name for name in table if any(name in row for row in table.values())]
        rows_of = tuple(
            (name, *("".join(letters[title] for title in row.get(other, [])) for other in beaten))
            for name, row in table.items()
        )
        header = ("better", *beaten)
        yield TableBlock(header, rows_of, (False,) * len(header), caption=f"{dataset}, {at}")
    yield from map(Paragraph, notes)


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
    scale, form, unit = (100, ".1f", " %") if metric.percent else (1, metric.form, "")
    spreads = score.std > 1e-9 * abs(score.value)
    spread = f" ± {scale * score.std:{form}}" if spreads else ""
    return f"{scale * score.value:{form}}{spread}{unit}"


def _share(metric: Metric, each: Standing) -> str:
    return str(each.gap_closed.get(metric.name) or "")


_MARKERS = "osD^vPX*"


def pictures(lines: Sequence[Standing], dataset: str) -> dict[str, bytes]:
    """PNG pictures by title; one is left out where it would show a single point a line."""
    best = leading()
    methods = [
        each for each in lines if each.asked_epsilon is not None and best.name in each.scores
    ]
    ends = {each.line: each for each in lines if each.promise == "reference"}
    colours = {line: index for index, line in enumerate(dict.fromkeys(e.line for e in methods))}
    largest = max((each.records for each in methods), default=0)
    whole = [each for each in methods if each.records == largest]
    timed = [each for each in whole if each.costs.get("processor_seconds")]
    sizes = {(each.line, each.asked_epsilon) for each in methods if each.records != largest}
    sized = [each for each in methods if (each.line, each.asked_epsilon) in sizes]
    budgets, counts = [e.asked_epsilon or 0.0 for e in methods], [e.records for e in methods]
    draw = partial(_lines, ends=ends, colours=colours)
    shown: dict[str, tuple[Any, Callable[[Standing], float], Any]] = {
        "ε": (whole, lambda each: each.epsilon or each.asked_epsilon or 0.0, budgets),
        "processor minutes": (timed, lambda each: each.costs["processor_seconds"] / 60, None),
        "records": (sized, lambda each: each.records, counts),
    }
    return {
        f"{dataset}: {best.title} against {label}": draw(standings, place, ticks, label=label)
        for label, (standings, place, ticks) in shown.items()
        if standings
    }


def _lines(
    standings: Sequence[Standing],
    place: Callable[[Standing], float],
    ticks: Sequence[float] | None,
    *,
    ends: Mapping[str, Standing],
    colours: Mapping[str, int],
    label: str,
) -> bytes:
    """Points with error bars, joined where `ticks` names their places, and ends as level lines.

    A method has the same colour and mark in every picture.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes, best = new_axes(width=5.6, height=3.4), leading()
    names = list(dict.fromkeys(each.line for each in standings))
    for line in names:
        index = colours[line]
        own = sorted((each for each in standings if each.line == line), key=place)
        scores = [each.scores[best.name] for each in own]
        axes.errorbar(
            [place(each) for each in own],
            [score.value for score in scores],
            yerr=[score.std for score in scores],
            fmt=_MARKERS[index % len(_MARKERS)] + ("" if ticks is None else "-"),
            markersize=4,
            linewidth=1.2,
            color=COLORS[index % len(COLORS)],
            label=shortened(line),
        )
    for role, style in ((FLOOR, ":"), (CEILING, "--")):
        if role in ends and best.name in ends[role].scores:
            level = ends[role].scores[best.name].value
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
    return to_png(axes, entries, xlabel=label, ylabel=best.title)


# What stands of a benchmark: its cells read back, its leaderboard written, cells carried over.

PICTURES = "pictures"
"""Folder of pictures beside the page."""


def benchmark_folder(name: str) -> Path:
    """Where the corpora, facts and scores of a benchmark are kept."""
    return home().benchmarks / name


def standing_leaderboard(spec: BenchmarkSpec, folder: Path | None = None) -> Leaderboard:
    """Reads back what is there; nothing is made."""
    kept = folder or benchmark_folder(spec.name)
    benches = {name: DatasetBench(spec, name, kept) for name in spec.datasets}
    cells = [(place, benches[place.dataset].found(place)) for place in places(spec)]
    found = [(place, scores) for place, scores in cells if scores is not None]
    codes = sorted({scores["code"] for _, scores in found if scores.get("code")})
    seconds = sum(scores.get("seconds", 0.0) for _, scores in found)
    facts = {
        "δ": declared(spec.delta),
        "rows scored": _rows_scored(spec),
        "most held-out records": max(each.held_out for each in spec.datasets.values()),
        "finished cells": len(found),
        "hours of all timed cells": f"{seconds / 3600:.1f}",
        "code": ", ".join(codes),
    }
    domains = {name: each.domain for name, each in spec.datasets.items()}
    return leaderboard(
        spec.name, found, missing=len(cells) - len(found), facts=facts, domains=domains
    )


def _rows_scored(spec: BenchmarkSpec) -> str:
    """The number of rows, and which datasets have another one."""
    own = (f"{each.scored_rows} on {n}" for n, each in spec.datasets.items() if each.scored_rows)
    return ", ".join([str(spec.scored_rows), *own])


def write_leaderboard(page: LeaderboardPage, folder: Path) -> dict[str, Path]:
    """Writes leaderboard.md with its pictures, .html and .json; returns the files by ending."""
    for name, png in page.picture_files.items():
        write_whole(folder / PICTURES / name, png)
    content = {
        "md": page.to_text(PICTURES),
        "html": page.to_html(),
        "json": json.dumps(page.board.to_json(), indent=1, ensure_ascii=False) + "\n",
    }
    files = {ending: folder / f"leaderboard.{ending}" for ending in content}
    for ending, file in files.items():
        write_whole(file, content[ending])
    return files


def export_cells(folder: Path, file: Path) -> int:
    """Writes facts and scores of all finished cells into one file, a line each; no rows."""
    lines = [
        json.dumps({"cell": path.stem, **json.loads(path.read_text("utf-8"))}, ensure_ascii=False)
        for path in sorted((folder / "scores").glob("*.json"))
    ]
    write_whole(file, "\n".join([*lines, ""]))
    return len(lines)


def import_cells(file: Path, folder: Path) -> int:
    """Reads cells that `export_cells` wrote: what is there already stays.

    A benchmark then continues from them; their rows are not there to be scored otherwise.
    """
    count = 0
    for line in file.read_text("utf-8").splitlines():
        scores = json.loads(line)
        name = scores.pop("cell")
        place = folder / "scores" / f"{name}.json"
        if not place.exists():
            write_whole(place, JSON.write(scores))
            count += 1
    return count
