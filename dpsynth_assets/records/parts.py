"""The records of a source in parts: which part a record is in, and one pass that sorts them there.

A record's part follows from a keyed hash of its privacy unit. All records of a unit are in one
part, and so are all that share an id: whatever the rules, the bound and the held-out split look at
lies in one part, and each part becomes canonical by itself (`reading.canonical_records`).

**Privacy** The number of parts is declared and public. How many records a part has is private.
"""

from collections.abc import Iterator

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.records.hashing import Purpose, keyed_hash
from dpsynth_assets.records.record_filters import canonical_id, column_names
from dpsynth_assets.records.sources import source_batches
from dpsynth_assets.records.windows import in_window

PIECE_BYTES = 1 << 27
"""Memory of the rows that wait to be written, about; a public constant."""

_PART = "__part"

Pieces = dict[int, pl.DataFrame]
"""Rows of the source by the number of their part; parts without rows are missing."""


def pieces_of_source(spec: PrivateDatasetSpec, piece_bytes: int = PIECE_BYTES) -> Iterator[Pieces]:
    """Reads the source of a cohort once and sorts its rows into `spec.parts` parts.

    Args:
        spec: The declaration.
        piece_bytes: Memory that rows may take before they are passed on.

    Yields:
        Rows as `read_source` returns them, in file order within a part.

    Raises:
        SourceError: The source is missing, broken, or lacks a declared column.
    """
    waiting: dict[int, list[pl.DataFrame]] = {}
    held: int | float = 0
    for batch in source_batches(spec.source, column_names(spec)):
        rows = in_window(batch, spec)
        for number, own in rows_of_parts(rows, spec).items():
            waiting.setdefault(number, []).append(own)
            held += own.estimated_size()
        if held >= piece_bytes:
            yield {number: pl.concat(frames) for number, frames in waiting.items()}
            waiting, held = {}, 0
    if waiting:
        yield {number: pl.concat(frames) for number, frames in waiting.items()}


def rows_of_parts(rows: pl.DataFrame, spec: PrivateDatasetSpec) -> Pieces:
    """Sorts rows of a source into parts, by the unit of each row alone."""
    if rows.is_empty():
        return {}
    numbers = [part_of(unit, spec) for unit in rows.select(_unit(spec)).to_series()]
    numbered = rows.with_columns(pl.Series(_PART, numbers, dtype=pl.UInt32))
    found = numbered.partition_by(_PART, include_key=False, as_dict=True)
    return {int(number): own for (number,), own in found.items()}


def part_of(unit: str, spec: PrivateDatasetSpec) -> int:
    """The part of a unit, in [0, `spec.parts`): a keyed hash of it, from the unit alone."""
    return int.from_bytes(keyed_hash(Purpose.PART, spec.name, unit)[:8], "big") % spec.parts


def _unit(spec: PrivateDatasetSpec) -> pl.Expr:
    """What tells units apart: the unit's id, else the record's, else its text.

    In the form of canonical ids; a record without the id is set aside later, wherever it lies.
    Without any id nothing looks at two records together.
    """
    name = spec.privacy_unit.column or spec.columns.id or column_names(spec).text
    return canonical_id(pl.col(name)).fill_null("")
