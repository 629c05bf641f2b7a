"""Reading a source some rows at a time: the same rows in the same order as `sources.read_source`.

Memory is bounded by a batch of rows for CSV in UTF-8, JSON Lines and Parquet, whatever the size of
a file. CSV of another encoding and Arrow files are read whole, file by file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.records.columns import (
    IS_TEXT,
    READABLE,
    ColumnNames,
    as_records,
    guarded,
)
from dpsynth_assets.records.file_formats import json_lines_batches, parquet_batches_lossy
from dpsynth_assets.records.refusals import refuse_little_memory, refuse_unpacked_bytes
from dpsynth_assets.records.sources import (
    CSV_FILE,
    PARQUET_FILE,
    REMOTE,
    admitted_format,
    bytes_of_text,
    csv_query,
    parquet_query,
    read_typed,
    remote_query,
    source_files,
)

BATCH_ROWS: Final = 20_000
"""Rows of a batch, about; a public constant."""


def source_batches(source: SourceSpec, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    """Reads the named columns of every file of a source, batch by batch.

    Yields:
        Frames as `read_source` returns them; joined they are what it returns.

    Raises:
        SourceError: As `read_source`, though perhaps after some batches.
    """
    if source.path.startswith("hf://"):
        query = remote_query(source, columns)
        for batch in _batches(query, source.path, *REMOTE):
            yield as_records(batch, columns)
        return
    for file in source_files(source):
        yield from _file_batches(file, source, columns)


def empty_rows(columns: ColumnNames) -> pl.DataFrame:
    """What `read_source` returns for a source without records."""
    texts = dict.fromkeys(columns.written, pl.String)
    return pl.DataFrame(schema={**texts, READABLE: pl.Boolean, IS_TEXT: pl.Boolean})


def _file_batches(file: Path, source: SourceSpec, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    kind = admitted_format(file, source)
    if kind == "jsonl":
        yield from json_lines_batches(file, columns, BATCH_ROWS)
    elif kind == "csv":
        for batch in _batches(csv_query(file, source, columns), file, CSV_FILE):
            yield as_records(batch, columns)
    elif kind == "parquet":
        for batch in _parquet_batches(file, columns):
            yield as_records(batch, columns)
    else:
        refuse_little_memory(file)
        yield from read_typed(file, source, columns, kind).iter_slices(BATCH_ROWS)


def _parquet_batches(file: Path, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    """Reads all texts once to see that they are UTF-8: polars refuses a file for one that is not.

    Raises:
        SourceError: The file is broken, or unpacks to far more than text does.
    """
    query = parquet_query(file, columns)
    try:
        refuse_unpacked_bytes(file, bytes_of_text(query))
    except pl.exceptions.PolarsError:
        batches = parquet_batches_lossy(file, columns.distinct, BATCH_ROWS)
        yield from _guarded(batches, file, PARQUET_FILE)
    else:
        yield from _batches(query, file, PARQUET_FILE)


def _batches(query: pl.LazyFrame, file: Path | str, *told: str) -> Iterator[pl.DataFrame]:
    batches = guarded(lambda: query.collect_batches(chunk_size=BATCH_ROWS), file, *told)
    yield from _guarded(batches, file, *told)


def _guarded(
    batches: Iterator[pl.DataFrame], file: Path | str, *told: str
) -> Iterator[pl.DataFrame]:
    """Passes batches on; a failure between them carries no word of its own message."""
    while (batch := guarded(lambda: next(batches, None), file, *told)) is not None:
        yield batch
