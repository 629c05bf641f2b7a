"""Readers of JSON Lines, Arrow and Parquet files, where a broken value spoils only its record.

JSON Lines are parsed line by line. Arrow and Parquet are read by pyarrow, where a text that is not
UTF-8 spoils only itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from dpsynth_assets.records.columns import (
    IS_TEXT,
    READABLE,
    ColumnNames,
    SourceError,
    check_columns,
    compose_record,
    float_text,
    guarded,
    unpacked,
)

_JSON_FILE = "a JSON Lines file, one object per line"


def arrow_columns(file: Path) -> list[str]:
    """The columns of one Arrow file of a Hugging Face `save_to_disk` folder; reads no row."""
    with pa.memory_map(str(file)) as source:
        return list(pa.ipc.open_stream(source).schema.names)


def arrow_batches(file: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Reads one Arrow file, in the pieces that it was written in."""
    with pa.memory_map(str(file)) as source:
        for batch in pa.ipc.open_stream(source):
            yield _frame(pa.Table.from_batches([batch])).select(columns)


def parquet_class_names(file: Path) -> dict[str, list[str]]:
    """Names of class numbers, which Hugging Face writes into the schema of a Parquet file.

    Raises:
        SourceError: They cannot be read.
    """
    written = (pq.read_schema(file).metadata or {}).get(b"huggingface")
    return _class_names(written, ("info", "features"), file)


def saved_class_names(folder: Path) -> dict[str, list[str]]:
    """The same of a folder that `save_to_disk` wrote."""
    info = folder / "dataset_info.json"
    return _class_names(info.read_bytes() if info.exists() else None, ("features",), info)


def named_classes(frame: pl.DataFrame, names: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Replaces class numbers by names in a frame; -1, Hugging Face's mark for no label, is absent.

    So is any number without a name. A column that holds no numbers has the names already.
    """
    return frame.with_columns(
        frame[column]
        .cast(pl.Float64)
        .replace_strict(
            [float(n) for n in range(len(own))], own, default=None, return_dtype=pl.String
        )
        for column, own in names.items()
        if column in frame.columns and frame.schema[column].is_numeric()
    )


def declared_rows(file: Path) -> int:
    """Number of rows that the footer of a Parquet file declares; reads no row."""
    return int(pq.read_metadata(file).num_rows)


def parquet_batches_lossy(file: Path, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
    """Reads a Parquet file whose texts may hold bytes that are not UTF-8 (they become U+FFFD)."""
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(batch_size=rows, columns=list(columns)):
            yield _frame(pa.Table.from_batches([batch])).select(columns)


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


def _class_names(written: bytes | None, place: Sequence[str], file: Path) -> dict[str, list[str]]:
    def names() -> dict[str, list[str]]:
        found = json.loads(written) if written else {}
        for name in place:
            found = found.get(name) or {}
        classes = {
            column: feature["names"]
            for column, feature in found.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
        return TypeAdapter(dict[str, list[str]]).validate_python(classes)

    expected = "Hugging Face's metadata with the features of the columns"
    return guarded(names, file, expected, "Save the dataset again, or write it without metadata.")


def json_columns(file: Path, rows: int) -> list[str]:
    """Keys of the first records of a JSON Lines file, in the order in which they come."""
    lines = islice(_streamed_lines(file), rows)
    chunk = guarded(lambda: list(lines), file, _JSON_FILE)
    records = [_json_object(line) for line in chunk]
    _refuse_array(chunk, records, file)
    return list(dict.fromkeys(key for record in records if record for key in record))


def json_lines_batches(file: Path, columns: ColumnNames, rows: int) -> Iterator[pl.DataFrame]:
    """Reads the named columns of a JSON Lines file (`.gz` too), at most `rows` records at a time.

    Raises:
        SourceError: The file cannot be opened or is one JSON array; or no record has one of the
            columns, which is known at the end only.
    """
    known: set[str] = set()
    lines = _streamed_lines(file)
    while chunk := guarded(lambda: list(islice(lines, rows)), file, _JSON_FILE):
        records = [_json_object(line) for line in chunk]
        if not known:
            _refuse_array(chunk, records, file)
        known.update(key for record in records if record for key in record)
        yield _as_rows(records, columns)
    if known:
        check_columns(sorted(known), columns, file, schema=False)


def _refuse_array(lines: Sequence[str], records: Sequence[object], file: Path) -> None:
    """Refuses one JSON array in place of lines."""
    if lines and lines[0].lstrip().startswith("[") and sum(map(bool, records)) < 2:
        raise SourceError(
            expected=_JSON_FILE,
            got=f"{file}, which begins as a JSON array",
            remedy="Write its elements one per line, e.g. jq -c '.[]' FILE.",
        )


def _as_rows(records: Sequence[dict[str, Any] | None], columns: ColumnNames) -> pl.DataFrame:
    texts = [_text(record, columns) if record else None for record in records]
    data: dict[str, Any] = {
        name: [_json_text(record.get(name), columns) if record else None for record in records]
        for name in columns.written
    }
    if columns.object:
        data[columns.text] = texts
    data[READABLE] = [record is not None for record in records]
    data[IS_TEXT] = [text is None or isinstance(text, str) for text in texts]
    schema = {**dict.fromkeys(columns.written, pl.String), READABLE: pl.Boolean}
    return pl.DataFrame(data, schema={**schema, IS_TEXT: pl.Boolean})


def _streamed_lines(file: Path) -> Iterator[str]:
    with unpacked(file) as lines:
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


def _json_text(value: Any, columns: ColumnNames) -> str | None:
    """Writes a JSON scalar as text; lone surrogates become U+FFFD, other values are absent."""
    if isinstance(value, list | dict) and columns.any_type:
        value = json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, str | int):
        return str(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return None
