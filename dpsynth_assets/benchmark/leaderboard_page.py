"""The leaderboard as a page: Markdown, HTML and pictures of one list of blocks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpsynth_assets.benchmark.leaderboard import Leaderboard, Promise, Standing
from dpsynth_assets.benchmark.leaderboard_plots import pictures
from dpsynth_assets.metrics.comparison import METRICS, GapShare
from dpsynth_assets.metrics.resampling import Estimate
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

TITLES: dict[Promise, str] = {
    "worst case": "Worst-case guarantees",
    "ex post": "Ex-post guarantees",
    "secrets": "Guarantees for declared secrets alone",
}
NOTES: dict[Promise, str] = {
    "worst case": "ε holds whatever the records are.",
    "ex post": "ε depends on the records and is known afterwards: such corpora are compared with "
    "one another alone.",
    "secrets": "Only the declared secret words are protected, by the bound on what a guess gains.",
}
_HEADER = (
    "corpus", "ε", "seeds", "rows", "MAUVE", "gap closed", "energy distance", "energy gap closed",
    "accuracy", "accuracy gap closed", "next word", "near-duplicates", "perplexity",
    "processor minutes", "memory (GiB)", "tokens (thousands)",
)  # fmt: skip
_READ = (
    "Every corpus of a dataset is scored on the same number of rows against the same held-out "
    "records. ± and intervals come from resampled seeds and rows. The gap runs from public_only, "
    "the public model alone, to one_real_example, the same model after a real record and without "
    "privacy; a share of it stands only where the two differ beyond chance. Near-duplicates: share "
    "of rows with another row at a cosine of .95. Perplexity is that of rows under the public "
    "model: low where they are fluent, whatever they say."
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
                Notice(f"{board.missing} cells are not there yet; the others stand below.")
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
    floor_last = sorted(lines, key=lambda each: each.line == "public_only")
    rows = [_row(each) for each in floor_last]
    told = [place for place in range(len(_HEADER)) if any(row[place] for row in rows)]
    return TableBlock(
        header=tuple(_HEADER[place] for place in told),
        rows=tuple(tuple(row[place] for place in told) for row in rows),
        numeric=(False, *([True] * (len(told) - 1))),
        caption=caption,
    )


def _row(each: Standing) -> tuple[str, ...]:
    scores, costs = each.scores, each.costs
    closed = [_share(each.shares.get(metric)) for metric in METRICS]
    tokens = costs.get("tokens_read", 0.0) + costs.get("tokens_written", 0.0)
    return (
        each.line,
        _epsilon(each),
        str(each.seeds),
        f"{costs.get('rows', 0):.0f}",
        _shown(scores.get("mauve"), ".3f"),
        closed[0],
        _shown(scores.get("energy_distance"), ".4f"),
        closed[1],
        _shown(scores.get("accuracy"), ".3f"),
        closed[2],
        _shown(scores.get("next_word_accuracy"), ".3f"),
        _shown(scores.get("near_duplicates"), ".2f"),
        _shown(scores.get("perplexity"), ".0f"),
        f"{costs['processor_seconds'] / 60:.1f}" if "processor_seconds" in costs else "",
        f"{costs['peak_memory_mib'] / 1024:.1f}" if "peak_memory_mib" in costs else "",
        f"{tokens / 1000:,.0f}" if tokens else "",
    )


def _epsilon(each: Standing) -> str:
    if each.promise == "reference":
        return "0" if each.line == "public_only" else "∞"
    return "" if each.epsilon is None else epsilon_up(each.epsilon)


def _shown(score: Estimate | None, form: str) -> str:
    """Mean and ±; the mean alone where nothing was resampled."""
    if score is None:
        return ""
    mean = format(score.value, form)
    return f"{mean} ± {score.std:{form}}" if score.std > 1e-9 * abs(score.value) else mean


def _share(share: GapShare | None) -> str:
    if share is None:
        return ""
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
