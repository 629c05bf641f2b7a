"""The columns that are asked of a source, how values become text, and refusals of a source.

Errors name the file and never repeat its content: polars' own messages quote the offending field.

Where several columns of a record make its text, it is a JSON object, a function of its own record:
an absent value is null, independent of other records, and numbers and lists are written by the type
that a file declares (Parquet, Arrow) or that the record itself has (JSON Lines). CSV has text
alone; dates, times and decimal numbers become text. Keys follow the declared order; there are no
blanks between them, and letters stay letters.
"""

import difflib
import gzip
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

READABLE, IS_TEXT = "__readable", "__is_text"
"""Flags beside the columns: the record could be parsed; its text is absent or a string."""

_TEXT_TYPES = (pl.String, pl.Categorical, pl.Enum, pl.Null)
_WITHOUT_TEXT = (pl.List, pl.Array, pl.Struct, pl.Object, pl.Duration)

_OTHER_COLUMN = {
    True: "Name one of these columns.",
    False: "Name the column as the source does; a CSV file needs a header line.",
}

_FAILURES = {
    "NoDataError": ", which is empty",
    "DuplicateError": " with two columns of one name",
}

T = TypeVar("T")


class SourceError(ValueError):
    """A source that cannot be read; says where, expected, got, remedy, and no content.

    What follows from the records (`aside`) is for the steward's terminal (`told`): the message
    itself may stand in a log.
    """

    def __init__(
        self, *, expected: str, got: str, remedy: str, field: str = "source.path", aside: str = ""
    ) -> None:
        self.field, self.expected, self.got, self.remedy = field, expected, got, remedy
        self.told = f"{got}{aside}"
        super().__init__(f"{field}: expected {expected}, got {got}. {remedy}")


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Columns to read: `{field of the declaration: column of the source}`.

    Attributes:
        text: Column of the text; OBJECT where it is composed.
        others: Label, id and unit columns by field.
        object: Columns that the text is composed of, in order; empty: none is.
        any_type: Whether lists and objects are read as JSON instead of refused, and a text may be
            of any type: where the columns have no roles yet.
    """

    text: str
    others: dict[str, str]
    object: tuple[str, ...] = ()
    any_type: bool = False

    @property
    def fields(self) -> dict[str, str]:
        """Every column with the field that names it, those of the text first."""
        if not self.object:
            return {"columns.text": self.text, **self.others}
        parts = {f"columns.object.{i}": name for i, name in enumerate(self.object)}
        return {**parts, **self.others}

    @property
    def distinct(self) -> list[str]:
        """Every column that is read once, those of the text first."""
        return list(dict.fromkeys(self.fields.values()))

    @property
    def written(self) -> list[str]:
        """Every column that `read_source` returns once, the text first."""
        return list(dict.fromkeys([self.text, *self.others.values()]))


def check_columns(
    known: Sequence[str], columns: ColumnNames, file: Path | str, *, schema: bool
) -> None:
    """Refuses a source without one of the columns.

    Args:
        known: Column names that the source has.
        columns: Columns that are asked for.
        file: Where they were looked for.
        schema: Whether the names come from a schema. Otherwise a close one is told to the steward
            alone: without a header the first line of a CSV file is a private record.

    Raises:
        SourceError: A column is not there.
    """
    for field, name in columns.fields.items():
        if name not in known:
            got = f"columns {', '.join(known)}" if schema else "none of this name"
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            advice = f"Did you mean {close[0]!r}?" if close and schema else _OTHER_COLUMN[schema]
            aside = f", but {close[0]!r}" if close and not schema else ""
            expected = f"column {name!r} in {file}"
            raise SourceError(field=field, expected=expected, got=got, remedy=advice, aside=aside)


def unpacked(file: Path) -> gzip.GzipFile | io.BufferedReader:
    """Opens a file, packed or not, to read its unpacked bytes."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def guarded(
    read: Callable[[], T], file: Path | str, expected: str, remedy: str = "Write the file again."
) -> T:
    """Runs `read`; where it fails, raises an error that carries no word of the failure.

    Raises:
        SourceError: Outside the handler, so that the failure is not even chained to it.
    """
    try:
        return read()
    except Exception as error:  # noqa: BLE001
        kind = type(error).__name__
    got = f"{file}{_FAILURES.get(kind, f' that fails with {kind}')}"
    raise SourceError(expected=expected, got=got, remedy=remedy)


def as_records(
    frame: pl.DataFrame,
    columns: ColumnNames,
    file: Path | str,
    readable: Sequence[bool] | None = None,
) -> pl.DataFrame:
    """Casts typed columns to text, by the type the file declares.

    Args:
        frame: Has the columns.
        columns: Columns that are asked for.
        file: Where they were read.
        readable: Which rows could be parsed; None: all.
    """
    if columns.object:
        frame = frame.with_columns(_composed(frame, columns, file))
    declared = frame.schema[columns.text]
    wrong = not isinstance(declared, _TEXT_TYPES) and declared != pl.Binary
    if wrong and not columns.any_type:
        raise SourceError(
            field="columns.text",
            expected="a column of text",
            got=f"type {_kind(declared)} in {columns.text!r} of {file}",
            remedy="Name the column that holds the text, or store it as strings.",
        )
    texts = [_as_text(frame[name], columns, file) for name in columns.written]
    flags = [True] * frame.height if readable is None else readable
    return pl.DataFrame(texts).with_columns(
        pl.Series(READABLE, flags, dtype=pl.Boolean), pl.lit(True).alias(IS_TEXT)
    )


def _kind(declared: pl.DataType) -> str:
    """A type without what it holds: categories of an Enum and names in a Struct are data."""
    return declared.base_type().__name__


def _composed(frame: pl.DataFrame, columns: ColumnNames, file: Path | str) -> pl.Series:
    name = unwritable(frame.schema, columns.object)
    if name is not None:
        raise SourceError(
            field=f"columns.object.{columns.object.index(name)}",
            expected="a column that JSON can hold",
            got=f"type {_kind(frame.schema[name])} in {name!r} of {file}",
            remedy="Leave it out, or store it as text.",
        )
    return compose_column(frame, columns.object)


def _as_text(series: pl.Series, columns: ColumnNames, file: Path | str) -> pl.Series:
    if isinstance(series.dtype, _WITHOUT_TEXT) and columns.any_type:
        written = series.to_frame().select(pl.struct(series.name).struct.json_encode())
        return written.to_series().alias(series.name)
    if isinstance(series.dtype, _WITHOUT_TEXT):
        field = next(field for field, name in columns.others.items() if name == series.name)
        raise SourceError(
            field=field,
            expected="a column of single values",
            got=f"type {_kind(series.dtype)} in {series.name!r} of {file}",
            remedy="Name another column, or store this one as strings.",
        )
    if series.dtype == pl.Binary:
        is_text = series.name == columns.text
        values = [None if value is None else _bytes_text(value, is_text) for value in series]
        return pl.Series(series.name, values, dtype=pl.String)
    if series.dtype == pl.Float32:  # Its own shortest decimal: 0.1, not 0.10000000149.
        series = series.cast(pl.String).cast(pl.Float64)
    if series.dtype.is_float():
        return pl.Series(series.name, [float_text(value) for value in series], dtype=pl.String)
    return series.cast(pl.String)


def _bytes_text(value: bytes, is_text: bool) -> str:
    """Reads bytes as UTF-8; others that are no text but an id, such as a UUID, in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("utf-8", "replace") if is_text else value.hex()


def empty_rows(columns: ColumnNames) -> pl.DataFrame:
    """What a source without records is read as."""
    texts = dict.fromkeys(columns.written, pl.String)
    return pl.DataFrame(schema={**texts, READABLE: pl.Boolean, IS_TEXT: pl.Boolean})


def float_text(value: float | None) -> str | None:
    """Writes 4.0 as '4': a column of whole numbers with gaps is often stored as floats."""
    if value is None or math.isnan(value):
        return None
    return str(int(value)) if value.is_integer() else repr(value)


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
