"""Records as JSON objects: several columns of a record make its text.

A text is a function of its own record: an absent value is null, whatever other records hold, and
numbers and lists are written by the type that a file declares (Parquet, Arrow) or that the record
itself has (JSON Lines). CSV has text alone; dates, times and decimal numbers become text. Keys
follow the declared order; there are no blanks between them, and letters stay letters.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

OBJECT = "\ufdd0object"
"""Column of the composed text; no column of a source has the name."""

_UNWRITABLE = (pl.Binary, pl.Object)


def compose_column(frame: pl.DataFrame, names: Sequence[str]) -> pl.Series:
    """Composes the text of every record of typed columns.

    Args:
        frame: Has the columns `names`, of types that `unwritable` passes.
        names: Columns, in the order of the keys.

    Returns:
        JSON objects named OBJECT; null where all columns are null. Numbers that are not finite
        are null.
    """
    whole = pl.struct(names).struct.json_encode()
    present = pl.any_horizontal(pl.col(name).is_not_null() for name in names)
    return frame.select(pl.when(present).then(whole).alias(OBJECT)).to_series()


def unwritable(schema: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first column whose type JSON cannot hold (raw bytes, Python objects); None if all fit."""
    return next((name for name in names if _holds_bytes(schema[name])), None)


def compose_record(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Composes the text of one JSON Lines record; None where it has none of the columns.

    Lone surrogates become U+FFFD, as they do in columns of text.
    """
    values = {name: _finite(record.get(name)) for name in names}
    if all(value is None for value in values.values()):
        return None
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _holds_bytes(dtype: Any) -> bool:
    if isinstance(dtype, pl.List | pl.Array):
        return _holds_bytes(dtype.inner)
    if isinstance(dtype, pl.Struct):
        return any(_holds_bytes(field.dtype) for field in dtype.fields)
    return dtype in _UNWRITABLE


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities, which Python reads and JSON does not know, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return value
