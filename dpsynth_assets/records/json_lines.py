"""JSON Lines, parsed line by line: a broken line or an odd value spoils only its own record."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.records.columns import (
    IS_TEXT,
    READABLE,
    ColumnNames,
    check_columns,
    float_text,
    guarded,
)
from dpsynth_assets.records.objects import compose_record


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
