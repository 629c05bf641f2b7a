"""Readers of JSON Lines, Arrow and Parquet files, where a broken value spoils only its record.

JSON Lines are parsed line by line. Arrow and Parquet are read by pyarrow, where a text that is not
UTF-8 spoils only itself.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from dpsynth_assets.records.columns import (
    IS_TEXT,
    READABLE,
    ColumnNames,
    check_columns,
    float_text,
    guarded,
)
from dpsynth_assets.records.objects import compose_record


def read_arrow_stream(file: Path) -> pl.DataFrame:
    """Reads one Arrow file of a Hugging Face `save_to_disk` folder.

    Columns of class numbers are read as their names, which `dataset_info.json` beside it holds.
    """
    with pa.memory_map(str(file)) as source:
        frame = _frame(pa.ipc.open_stream(source).read_all())
    for column, names in _class_names(file.parent).items():
        if column in frame.columns:
            frame = frame.with_columns(_named(frame[column], names))
    return frame


def declared_rows(file: Path) -> int:
    """Number of rows that the footer of a Parquet file declares; reads no row."""
    return int(pq.read_metadata(file).num_rows)


def parquet_batches_lossy(file: Path, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
    """Reads as `read_parquet_lossy` does, at most `rows` rows at a time."""
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=rows, columns=list(columns)):
            yield _frame(pa.Table.from_batches([batch])).select(columns)


def read_parquet_lossy(file: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Reads a Parquet file whose texts may hold bytes that are not UTF-8 (they become U+FFFD)."""
    return _frame(pq.read_table(file, columns=list(columns)))


def _frame(table: pa.Table) -> pl.DataFrame:
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(index, field.name, _valid_text(table.column(index)))
    return pl.DataFrame(pl.from_arrow(table))


def _valid_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.large_binary()).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    return column


def _class_names(folder: Path) -> dict[str, list[str]]:
    info = folder / "dataset_info.json"
    features = json.loads(info.read_text(encoding="utf-8")).get("features") if info.exists() else {}
    return {
        column: feature["names"]
        for column, feature in (features or {}).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    }


def _named(numbers: pl.Series, names: list[str]) -> pl.Series:
    """Replaces class numbers by names; -1, Hugging Face's mark for no label, is absent."""
    values = [None if n is None or not 0 <= n < len(names) else names[n] for n in numbers]
    return pl.Series(numbers.name, values, dtype=pl.String)


def read_json_lines(file: Path, columns: ColumnNames) -> pl.DataFrame:
    """Reads the named columns of a JSON Lines file (`.gz` too): `read_source` says what returns.

    Raises:
        SourceError: The file cannot be opened, or no record has one of the columns.
    """
    lines = guarded(lambda: _lines(file), file, "a JSON Lines file")
    records = [_json_object(line) for line in lines]
    known = {key for record in records if record for key in record}
    if known:
        check_columns(sorted(known), columns, file, schema=False)
    return _as_rows(records, columns)


def json_lines_batches(file: Path, columns: ColumnNames, rows: int) -> Iterator[pl.DataFrame]:
    """Reads as `read_json_lines` does, at most `rows` records at a time.

    Raises:
        SourceError: As there; a column that no record has is known at the end only.
    """
    known: set[str] = set()
    lines = _streamed_lines(file)
    while chunk := guarded(lambda: list(islice(lines, rows)), file, "a JSON Lines file"):
        records = [_json_object(line) for line in chunk]
        known.update(key for record in records if record for key in record)
        yield _as_rows(records, columns)
    if known:
        check_columns(sorted(known), columns, file, schema=False)


def _as_rows(records: Sequence[dict[str, Any] | None], columns: ColumnNames) -> pl.DataFrame:
    texts = [_text(record, columns) if record else None for record in records]
    data: dict[str, Any] = {
        name: [_json_text(record.get(name)) if record else None for record in records]
        for name in columns.written
    }
    if columns.object:
        data[columns.text] = texts
    data[READABLE] = [record is not None for record in records]
    data[IS_TEXT] = [text is None or isinstance(text, str) for text in texts]
    schema = {**dict.fromkeys(columns.written, pl.String), READABLE: pl.Boolean}
    return pl.DataFrame(data, schema={**schema, IS_TEXT: pl.Boolean})


def _lines(file: Path) -> list[str]:
    data = file.read_bytes()
    data = gzip.decompress(data) if file.suffix == ".gz" else data
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")
    # Not splitlines(): U+2028 and its kin may stand inside a JSON string.
    return [line for line in text.split("\n") if line.strip()]


def _streamed_lines(file: Path) -> Iterator[str]:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        lines: Iterable[bytes] = opened
        for number, line in enumerate(lines):
            start = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
            text = start.decode("utf-8", errors="replace")
            if text.strip():
                yield text.removesuffix("\n")


def _text(record: dict[str, Any], columns: ColumnNames) -> Any:
    if columns.object:
        return compose_record(record, columns.object)
    return record.get(columns.text)


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json_text(value: Any) -> str | None:
    """Writes a JSON scalar as text; lone surrogates become U+FFFD, other values are absent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, str | int):
        return str(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return None
