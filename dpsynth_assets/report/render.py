"""The internal evaluation report, as Markdown and as one HTML file that needs nothing else.

Both are written from one list of blocks. Text is escaped by the page writer and nowhere else, so a
corpus cannot put markup into the report. Samples come from corpora the caller hands over; the
caller leaves out any that copies private text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from dpsynth_assets.metrics.evaluation import REAL_DATA
from dpsynth_assets.metrics.registry import pictured, reported
from dpsynth_assets.metrics.surviving_terms import HOLDERS, TOLD, least_holders
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.report import plots
from dpsynth_assets.report.pages import (
    Block,
    Facts,
    Fold,
    Gallery,
    Heading,
    Notice,
    Paragraph,
    Picture,
    TableBlock,
    Tile,
    Tiles,
    format_cell,
    leaves,
    shortened,
    to_html,
    to_markdown,
)

BANNER = (
    "INTERNAL: scored against private held-out text without noise. Not covered by any privacy "
    "guarantee. Do not publish it, and do not use it to choose what to release."
)
PICTURE_TITLES = {"lengths": "Words per text", **plots.TITLES}
READING = (
    "± is the standard deviation over resampled rows, of the corpus and of the held-out records, "
    "which are resampled alike for all corpora. A share of the gap between floor and ceiling is "
    "given with its 95 % interval, and only where the 95 % interval of the difference of floor "
    "and ceiling excludes zero. MAUVE is measured against held-out records and is comparable "
    "only between rows of this table. Accuracy is of a linear classifier on frozen embeddings, "
    "trained on the corpus and tested on held-out records. Floor is the public model alone, "
    "ceiling the same model with a real record in its prompt and no privacy. The row of real "
    "data shows what a perfect generator would reach, and how much held-out and source records "
    "overlap without copying. A row named `… model` is a model trained privately on the records "
    "themselves: it has no text."
)
Samples = Mapping[str, Sequence[tuple[str, str]]]
"""(label, text) rows of each corpus that may be shown, in the corpus's order."""


Columns = Sequence[tuple[str, str]]
"""Keys of a table's row with their titles."""


def score_columns() -> Columns:
    """Columns of the table of scores; a share of the gap beside each score that is compared."""
    scores = []
    for metric in reported("scores"):
        scores.append((metric.name, metric.title))
        if metric.compared:
            scores.append((metric.gap, f"{metric.gap_title or metric.title} gap closed"))
    guarantee = (("guarantee", "guarantee"), ("epsilon", "ε"), ("ex_post_epsilon", "ex-post ε"))
    facts = (("delta", "δ"), ("rows", "rows"), ("scored_rows", "rows scored"))
    return [("name", "corpus"), *guarantee, *scores, *facts, ("seconds", "seconds")]


def text_columns() -> Columns:
    """Columns of the table of texts and of what they repeat."""
    return [("name", "corpus"), *((metric.name, metric.title) for metric in reported("text"))]


def surviving_blocks(table: Sequence[Mapping[str, Any]]) -> list[Block]:
    """How much of what records say is in each corpus; none where no term was counted."""
    bands = [(metric.name, metric.title) for metric in reported("terms")]
    if not any(row.get(name) is not None for row in table for name, _ in bands):
        return []
    rows = [{**row, HOLDERS: _least_holders(row)} for row in table]
    columns = [("name", "corpus"), *bands, (HOLDERS, "records needed at least")]
    shares = _table(rows, columns, "Terms of the records that each corpus has")
    return [Heading("What survives", 2), Paragraph(TOLD), shares]


def _least_holders(row: Mapping[str, Any]) -> int | None:
    """Of a corpus whose ε and δ hold for every dataset."""
    guarantee = row.get("guarantee"), row.get("epsilon"), row.get("delta")
    match guarantee:
        case "dp", float(epsilon), float(delta):
            return least_holders(epsilon, delta)
    return None


@dataclass(frozen=True)
class Report:
    """One report in two forms."""

    markdown: str
    html: str


def render_report(
    table: Sequence[Mapping[str, Any]],
    context: Mapping[str, Any],
    plots: Mapping[str, bytes],
    samples: Samples,
    verdicts: Sequence[str] = (),
) -> Report:
    """Writes a report.

    Args:
        table: A row a corpus, with the keys of `score_columns` and `text_columns`; a missing key or
            None shows as a dash.
        context: Facts of the cohort and constants of the evaluation; nested mappings are
            flattened.
        plots: PNG pictures by name.
        samples: (label, text) rows of corpora that may be shown, by corpus.
        verdicts: Sentences above the table: on how many rows, who is better, what is undecided.
    """
    title = f"Evaluation of {context.get('cohort', 'a cohort')}"
    titles = PICTURE_TITLES | {name: metric.picture for name, metric in pictured().items()}
    pictures = tuple(Picture(titles.get(name, name), png) for name, png in plots.items())
    shown: list[Block] = [Heading("Pictures", 2), Gallery(pictures)] if pictures else []
    blocks: list[Block] = [
        Heading(title, 1),
        Notice(BANNER),
        summary(table, context),
        Heading("Scores", 2),
        *(Paragraph(sentence) for sentence in verdicts),
        _table(table, score_columns(), "Scores of each corpus, of references and of real data"),
        Fold("How to read these scores", (Paragraph(READING), *_meanings(table))),
        *shown,
        Heading("Text and copying", 2),
        _table(table, text_columns(), "Text of each corpus, and what it repeats"),
        *surviving_blocks(table),
        *sample_blocks(samples),
        Heading("How this was measured", 2),
        *_measured(context),
    ]
    return Report(markdown=to_markdown(blocks), html=to_html(title, blocks))


def _meanings(table: Sequence[Mapping[str, Any]]) -> list[Block]:
    """What the numbers of metrics say, of those for which any row has a value."""
    shown = [each for each in reported() if any(row.get(each.name) is not None for row in table)]
    told = tuple((each.title, each.meaning) for each in shown if each.meaning)
    return [Facts(told)] if told else []


def _measured(context: Mapping[str, Any]) -> list[Block]:
    """Facts of the cohort, and settings of the evaluation behind a fold."""
    settings = {key: value for key, value in context.items() if isinstance(value, Mapping)}
    others = {key: value for key, value in context.items() if key not in settings}
    fold = Fold("Settings of the evaluation", (Facts(_facts(settings)),))
    return [Facts(_facts(others)), *([fold] if settings else [])]


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns, caption: str) -> TableBlock:
    """Takes the columns for which any row has a value."""
    shown = [
        (key, title) for key, title in columns if any(row.get(key) is not None for row in rows)
    ]
    return TableBlock(
        header=tuple(title for _, title in shown),
        rows=tuple(tuple(format_cell(key, row.get(key), row) for key, _ in shown) for row in rows),
        numeric=tuple(key not in {"name", "guarantee"} for key, _ in shown),
        caption=caption,
    )


def _facts(context: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (": ".join(names).replace("_", " "), _fact(names[-1], value))
        for names, value in leaves(context)
    )


def _fact(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, float) and "budget" in name:
        return declared(value)
    if isinstance(value, float) and name.endswith(("epsilon", "posterior")):
        return epsilon_up(value)
    if isinstance(value, float) and name.endswith("delta"):
        return rounded_up(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


Row = Mapping[str, Any]


def private_rows(table: Sequence[Row]) -> list[Row]:
    """Rows of corpora that are neither real data nor references, nor models without text."""
    return [r for r in table if r["name"] != REAL_DATA and r.get("role", "corpus") == "corpus"]


def summary(table: Sequence[Row], context: Mapping[str, Any]) -> Tiles:
    """Corpora, their highest scores and the cohort's spend."""
    own = private_rows(table)
    tiles = [Tile("Corpora", str(len(own)), "beside references and real data")]
    for key, metric in pictured().items():
        scored = [row for row in own if row.get(key) is not None]
        if scored:
            sign = -1.0 if metric.less_is_better else 1.0
            best = max(scored, key=lambda row: sign * float(row[key]))
            spread = best.get(f"{key}_std")
            beside = "" if spread is None else f" (± {format_cell(key, spread)})"
            name = f"{'Lowest' if metric.less_is_better else 'Highest'} {metric.title}"
            tiles.append(Tile(name, format_cell(key, best[key]), best["name"] + beside))
    rows = [row["scored_rows"] for row in table if row.get("scored_rows")]
    if rows:
        least, most = f"{min(rows):,}", f"{max(rows):,}"
        of_each = least if least == most else f"{least} to {most}"
        tiles.append(Tile("Rows scored", of_each, "of each corpus"))
    if "guaranteed_epsilon" in context:
        budget = f"of {declared(context['budget_epsilon'])}, δ = {rounded_up(context['delta'])}"
        tiles.append(Tile("ε guaranteed", epsilon_up(context["guaranteed_epsilon"]), budget))
    if "written" in context:
        tiles.append(Tile("Written", str(context["written"])))
    return Tiles(tuple(tiles))


SAMPLE_ROWS = 10
"""Lines of a table, more only where there are more labels."""
CORPORA_BESIDE = 4
"""Corpora in one table; further ones stand in a table below, with the same labels."""
SAMPLE_CHARACTERS = 600


def sample_blocks(samples: Samples) -> list[Block]:
    """Writes tables with a column a corpus and a label a line, every label at least once."""
    shown = {name: rows for name, rows in samples.items() if rows}
    if not shown:
        return []
    names = list(shown)
    labels = {label for rows in shown.values() for label, _ in rows}
    lines = list(aligned_samples(shown, max(SAMPLE_ROWS, len(labels))))
    blocks: list[Block] = [
        Heading("Samples of synthetic text", 2),
        Paragraph(
            "The first rows of each corpus by label, every label at least once; a dash means "
            "that a corpus has no further row of that label. Long texts are cut."
        ),
    ]
    for start in range(0, len(names), CORPORA_BESIDE):
        beside = slice(start, start + CORPORA_BESIDE)
        header = ("label", *names[beside])
        rows = tuple((label or "—", *texts[beside]) for label, texts in lines)
        caption = f"Samples of {', '.join(names[beside])}"
        plain = (False,) * len(header)
        blocks.append(TableBlock(header, rows, plain, of_texts=True, caption=caption))
    return blocks


def aligned_samples(
    samples: Samples, rows: int = SAMPLE_ROWS, characters: int = SAMPLE_CHARACTERS
) -> Iterator[tuple[str, list[str]]]:
    """Takes labels in turn, and of every corpus its next row of that label.

    Args:
        samples: Rows of each corpus.
        rows: Lines.
        characters: Longest text that is shown whole.

    Yields:
        A label, and a text for each corpus; a dash where it has none left.
    """
    of_label = {
        name: {label: iter([t for found, t in own if found == label]) for label, _ in own}
        for name, own in samples.items()
    }
    labels = sorted({label for own in samples.values() for label, _ in own})
    for label in islice(cycle(labels), rows if labels else 0):
        texts = [next(own.get(label, iter(())), None) for own in of_label.values()]
        yield label, [shortened(text, characters) for text in texts]
