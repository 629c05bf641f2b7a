"""`dpsynth evaluate`: score any synthetic file against any real file, outside Dagster.

The scores are computed from real text without noise: they are for those who may read that text.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from pydantic import ValidationError

from dpsynth_assets.attacks.overlap import HeldRecords, verbatim_share
from dpsynth_assets.cli.column_profiles import is_csv
from dpsynth_assets.cli.init_decisions import recognised_source
from dpsynth_assets.cli.terminal import AsJson, answer, progress_bar, say, show_table
from dpsynth_assets.datasets.dataset_sections import MAX_SET_ASIDE
from dpsynth_assets.datasets.public_spec import PublicColumns, PublicSource
from dpsynth_assets.metrics.comparison import Compared, interval_rule
from dpsynth_assets.metrics.embedding_distances import (
    MINIMUM_ROWS,
    NOT_COMPUTED,
    mauve_is_installed,
)
from dpsynth_assets.metrics.evaluation import (
    CorpusScores,
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import LEAST_ROWS, ScoredSide, stratified_rows
from dpsynth_assets.metrics.registry import pictured
from dpsynth_assets.metrics.text import VERBATIM_SHARE
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.csv_files import is_utf_8
from dpsynth_assets.records.reading import read_public_source
from dpsynth_assets.records.record_filters import Purpose, hash_rows, unit_interval
from dpsynth_assets.records.sources import source_columns, source_files

HELD_OUT_SHARE = 0.5
"""MAUVE and accuracy need about as many held-out rows as rows to train on."""

_ROWS_PEEKED = 10_000
_LABELS_NAMED = 5


def evaluate(
    real: Annotated[Path, typer.Option()],
    synthetic: Annotated[Path, typer.Option()],
    text_column: str = "text",
    label_column: str = "label",
    encoding: str = "",
    public: Path | None = None,
    rows: Annotated[int, typer.Option(min=20)] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Score a synthetic corpus against real text: MAUVE, accuracy, diversity, copying.

    Args:
        real: Real records: CSV, JSON lines or Parquet.
        synthetic: Synthetic corpus in one of the same formats.
        text_column: Column of text in all files.
        label_column: Column of labels; accuracy needs it.
        encoding: Encoding of CSV files that are not UTF-8; default: guessed from the header.
        public: Public text: a span that occurs in it does not count as copied.
        rows: Maximum number of rows scored on each side; the corpus may have fewer.
        as_json: Print JSON.
    """
    columns = text_column, label_column, encoding
    real_rows, corpus = (read_rows(path, *columns) for path in (real, synthetic))
    public_rows = read_rows(public, *columns) if public else pl.DataFrame({"text": [], "label": []})
    source, held_out = split_by_content(real_rows)
    why_unlabelled = _without_accuracy({real: real_rows, synthetic: corpus}, label_column)
    if why_unlabelled:
        blank = pl.lit("").alias("label")
        source, held_out, corpus = (s.with_columns(blank) for s in (source, held_out, corpus))
    settings = EvaluationSettings(max_rows=min(rows, corpus.height))
    with progress_bar(quiet=as_json) as report:
        table, context = _score(source, held_out, corpus, public_rows, settings, report)
    context["verdicts"] = _verdicts(table, why_unlabelled, settings)
    answer(_summary(table, context), as_json, lambda: _print_table(table, context["verdicts"]))


def read_rows(path: Path, text_column: str, label_column: str, encoding: str = "") -> pl.DataFrame:
    """Reads texts and labels of a file as a run reads them, its dialect by its header.

    Raises:
        PrivacyError: The file, its format, the text column or its rows are missing, or
            more of them than ingestion would bear cannot be used.
    """
    try:
        source = recognised_source(str(path), "", encoding)
        if not is_csv(path) or all(is_utf_8(file) is not False for file in source_files(source)):
            source = recognised_source(str(path), "", "")
        labels = [label_column] if label_column in source_columns(source, _ROWS_PEEKED) else []
        columns = PublicColumns(text=text_column, labels=labels)
        frame, there = read_public_source(PublicSource(source=source, columns=columns))
    except ValidationError as error:
        raise PrivacyError(f"--encoding: {error.errors()[0]['msg']}") from None
    except SourceError as error:
        expected = "--text-column: expected" if error.field == "columns.text" else "Expected"
        line = f"{expected} {error.expected}, got {error.told}. {error.remedy}"
        raise PrivacyError(line) from None
    if there - frame.height > MAX_SET_ASIDE * there or frame.is_empty():
        raise PrivacyError(
            f"Expected text in every row of {path}, got {frame.height} rows with text out of "
            f"{there}. Fix the others: they are malformed, have no text, or are not UTF-8."
        )
    return frame


def _without_accuracy(files: Mapping[Path, pl.DataFrame], column: str) -> str:
    """Says why the labels of real rows and of a corpus, in this order, carry no accuracy."""
    for path, rows in files.items():
        if empty := (rows["label"] == "").sum():
            return (
                f"{empty:,} of {rows.height:,} rows of {path.name} have no value in a column "
                f"{column!r}; fill or drop them, or name another with --label-column"
            )
    real, corpus = (set(rows["label"]) for rows in files.values())
    if strange := sorted(corpus - real):
        named = ", ".join(map(repr, strange[:_LABELS_NAMED]))
        return f"no real row has the label {named} of the corpus; use equal labels in both files"
    return "" if len(real) > 1 else "all real rows have one label"


def split_by_content(real: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits real rows into source and held-out by a hash of their text, equal texts together.

    Raises:
        PrivacyError: One side would be empty.
    """
    digests = hash_rows(Purpose.HELD_OUT, "dpsynth evaluate", [real["text"].to_list()])
    held_out = [unit_interval(digest) < HELD_OUT_SHARE for digest in digests]
    if all(held_out) or not any(held_out):
        raise PrivacyError(
            f"Expected enough different real texts to hold some out, got {real.height} rows "
            "that are all on one side of the split. Give more real rows."
        )
    mask = pl.Series(held_out)
    return real.filter(~mask), real.filter(mask)


def _score(
    source: pl.DataFrame,
    held_out: pl.DataFrame,
    corpus: pl.DataFrame,
    public: pl.DataFrame,
    settings: EvaluationSettings,
    report: Callable[[float, str], None],
) -> tuple[list[CorpusScores], dict[str, Any]]:
    """Embeds at most `max_rows` rows of each side and scores corpus and real data."""
    from dpsynth_assets.models.text_embedder import TextEmbedder

    embedder = TextEmbedder()
    sides = {
        name: side[stratified_rows(side["label"].to_list(), settings.max_rows, settings.seed)]
        for name, side in (("source", source), ("held_out", held_out), ("corpus", corpus))
    }
    parts: dict[str, ScoredSide] = {}
    for index, (name, side) in enumerate(sides.items()):
        report(0.25 * index, f"embedding {side.height} texts ({name.replace('_', '-')})")
        parts[name] = ScoredSide.of(side, embedder.embed(side["text"].to_list()))
    report(0.75, "scoring")
    reference = PrivateReference(source=parts["source"], held_out=parts["held_out"])
    scored = dataclasses.replace(parts["corpus"], name="synthetic")
    public_texts = public["text"].to_list()
    evaluation = Evaluation(reference=reference, public_texts=public_texts, settings=settings)
    real, scores = evaluation.real_scores(), evaluation.scores(scored)
    # The maker of the corpus may have read every real row.
    seen = HeldRecords(texts=[*source["text"], *held_out["text"]])
    copied = verbatim_share(scored.texts, [seen], public_texts)
    values = {**scores.values, VERBATIM_SHARE.name: copied}
    table = [real, dataclasses.replace(scores, values=values)]
    return table, {"embedder": embedder.name, "evaluation": settings.to_json()}


def _verdicts(
    table: list[CorpusScores], why_unlabelled: str, settings: EvaluationSettings
) -> list[str]:
    """On how many rows both were scored, and where the corpus differs from real data."""
    few = settings.max_rows < MINIMUM_ROWS
    mauve = f"; MAUVE needs at least {MINIMUM_ROWS} rows on each side" if few else ""
    scored = f"Corpus and real data are scored on {settings.max_rows} rows{mauve}."
    if table[0].rows < settings.max_rows:
        scored = f"{scored} There are only {table[0].rows} real rows: give more."
    if why_unlabelled:
        scored = f"{scored} No accuracy: {why_unlabelled}."
    told = Compared({score.name: score.estimates for score in table}).verdicts()
    if not all(score.estimates for score in table):
        return [f"{scored} No verdict: it needs at least {LEAST_ROWS} rows on each side."]
    return [scored, *told, interval_rule("rows")]


def _summary(table: list[CorpusScores], context: dict[str, Any]) -> dict[str, Any]:
    """The corpus's scores at the top level, those of real data that have a picture beside them."""
    real, corpus = table
    beside = {f"{name}_real": real[name] for name in pictured()}
    return {**corpus.to_json(), **beside, **context}


def _print_table(table: list[CorpusScores], told: list[str]) -> None:
    from dpsynth_assets.report.pages import format_cell

    real, corpus = (score.to_json() for score in table)
    columns = {
        "score": lambda name: name.replace("_", " "),
        "synthetic": lambda name: format_cell(name, corpus[name], corpus),
        "real data": lambda name: format_cell(name, real[name], real),
    }
    known = [name for name in corpus if {corpus[name], real[name]} != {None}]
    names = [name for name in known if name != "name" and not name.endswith("_std")]
    show_table(names, columns, title="Internal: scored against real text")
    say(*told)
    if not mauve_is_installed():
        say(f"MAUVE: {NOT_COMPUTED}")
