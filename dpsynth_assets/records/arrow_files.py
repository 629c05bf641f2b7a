"""Arrow and Parquet files through pyarrow, where a text that is not UTF-8 spoils only itself."""

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq


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
