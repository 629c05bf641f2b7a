"""`dpsynth evaluate`: score a synthetic file against a real one, whatever tool made it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from dpsynth_assets.report.evaluation import CorpusInput, EvaluationResult

READERS = {".csv": "read_csv", ".jsonl": "read_ndjson", ".ndjson": "read_ndjson",
           ".parquet": "read_parquet"}  # fmt: skip
HELD_OUT_EVERY = 2


def evaluate(
    real: Annotated[Path, typer.Option(help="Real records: CSV, JSONL or Parquet.")],
    synthetic: Annotated[Path, typer.Option(help="Synthetic records: CSV, JSONL or Parquet.")],
    text_column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    label_column: Annotated[
        str, typer.Option(help="Column that holds the label, if there is one.")
    ] = "label",
    public: Annotated[
        Path | None, typer.Option(help="Public records: spans in them are no leak.")
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Rows read of each file.")] = 2_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.md and metrics.json.")
    ] = None,
) -> None:
    """Score synthetic text against real text: MAUVE, downstream accuracy, overlap.

    Every second real record is held out: MAUVE and accuracy use the held-out half, overlap the
    whole. The scores depend on the real text without noise; keep them internal.
    """
    frames = [_read(path, text_column, label_column, rows) for path in (real, synthetic)]
    documents = [] if public is None else _read(public, text_column, label_column, rows)[0]
    result = _score(frames[0], frames[1], documents, synthetic.stem)
    report = _write(result, output, f"{synthetic.name} against {real.name}")
    if as_json:
        typer.echo(json.dumps({"table": report.table, **result.to_json()}, indent=2))
        return
    _print(report.table, output)


Columns = tuple[list[str], list[str] | None]


def _read(path: Path, text_column: str, label_column: str, rows: int) -> Columns:
    import polars as pl

    if path.suffix.lower() not in READERS:
        _refuse(f"Expected a file ending in {', '.join(READERS)}, got {path}.")
    if not path.is_file():
        _refuse(f"Expected a file at {path}, got none. Check the path.")
    try:
        frame = getattr(pl, READERS[path.suffix.lower()])(path).head(rows)
    except (pl.exceptions.PolarsError, OSError):
        _refuse(f"Expected {path} to parse as {path.suffix.lower()[1:]}, and it does not.")
    if text_column not in frame.columns:
        _refuse(
            f"Expected a column {text_column!r} in {path}, got {', '.join(frame.columns)}. "
            "Name it with --text-column."
        )
    frame = frame.filter(pl.col(text_column).is_not_null())
    if len(frame) < HELD_OUT_EVERY * 2:
        _refuse(f"Expected at least {HELD_OUT_EVERY * 2} rows with text in {path}, got fewer.")
    texts = frame[text_column].cast(pl.String).to_list()
    if label_column not in frame.columns:
        return texts, None
    return texts, frame[label_column].cast(pl.String).fill_null("").to_list()


def _score(real: Columns, synthetic: Columns, public: list[str], name: str) -> "EvaluationResult":
    from dpsynth_assets.models.text_embedder import TextEmbedder
    from dpsynth_assets.report.evaluation import (
        CorpusInput,
        EvaluationSettings,
        LeakSource,
        evaluate as score,
    )

    embedder = TextEmbedder()

    def embedded(columns: Columns) -> "CorpusInput":
        texts, labels = columns
        return CorpusInput(texts=texts, labels=labels, embeddings=embedder.embed(texts))

    whole = embedded(real)

    def part(first: int) -> "CorpusInput":
        rows = slice(first, None, HELD_OUT_EVERY)
        labels = None if whole.labels is None else whole.labels[rows]
        return CorpusInput(
            texts=whole.texts[rows], labels=labels, embeddings=whole.embeddings[rows]
        )

    # The whole real file may be behind the synthetic one: overlap is sought in all of it.
    held_out, training = part(0), part(1)
    return score(
        {name: embedded(synthetic)},
        training,
        held_out,
        leaks=LeakSource(private=whole, public_texts=public),
        settings=EvaluationSettings(embedder=embedder.name),
    )


def _write(result: "EvaluationResult", output: Path | None, title: str) -> Any:
    from dpsynth_assets.report.rendering import ReportContext, render_report

    report = render_report(result, ReportContext(title=title))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "report.html").write_text(report.html, encoding="utf-8")
        (output / "report.md").write_text(report.markdown, encoding="utf-8")
        metrics = {"table": report.table, **result.to_json()}
        (output / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")
    return report


def _print(rows: Any, output: Path | None) -> None:
    columns = {"name": "corpus", "rows": "rows", "mauve": "MAUVE", "accuracy": "accuracy",
               "mean_words": "words", "distinct_2": "distinct-2",
               "shared_spans": "rows with a shared span"}  # fmt: skip
    table = Table(title="Internal: scored against real text, without noise")
    for title in columns.values():
        table.add_column(title)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    console = Console()
    console.print(table)
    if output is not None:
        console.print(f"Report: {output / 'report.html'}", soft_wrap=True, highlight=False)


def _cell(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _refuse(message: str) -> NoReturn:
    Console(stderr=True).print(message, style="red", highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(2)
