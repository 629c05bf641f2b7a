"""Rows of a CSV file, field by field: every line of the file ends in a row or is counted as broken.

A line whose fields are not as many as the header's, or whose quotation marks do not close, is one
broken row, and reading goes on with the line after it. A quotation mark within an unquoted field
stands for itself. Blank lines are no rows.

**Source** RFC 4180, but for the quotation marks within unquoted fields.
"""

import csv
import io
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.records.columns import (
    ColumnNames,
    SourceError,
    as_records,
    check_columns,
    guarded,
)
from dpsynth_assets.records.csv_dialects import Dialect, dialect_of, opened, refuse_dialect

CSV_FILE = "a CSV file with a header"
_LINES_PEEKED = 20

csv.field_size_limit(sys.maxsize)  # The module's own limit refuses texts of 128 kB.


def csv_columns(file: Path, source: SourceSpec) -> list[str]:
    """The names that the header of a CSV file gives to its columns.

    Raises:
        SourceError: It has no header, or the first line is none.
    """
    dialect = dialect_of(file, source)
    lines = _lines(file, dialect)
    names = guarded(lambda: _header(lines, dialect), file, CSV_FILE)
    if len(names) == 1:
        _refuse_preamble(lines, dialect, 1, file)
    return names


def csv_batches(
    file: Path, source: SourceSpec, columns: ColumnNames, rows: int
) -> Iterator[pl.DataFrame]:
    """Reads the named columns of a CSV file, at most `rows` rows at a time.

    Every column of the file is parsed, whichever are asked for.

    Raises:
        SourceError: The file is no CSV file of the declared dialect, lacks a column, or ends
            within a quoted field.
    """
    dialect = dialect_of(file, source)
    refuse_dialect(file, dialect, columns)
    lines = _lines(file, dialect)
    names = guarded(lambda: _header(lines, dialect), file, CSV_FILE)
    if set(columns.distinct) - set(names):
        _refuse_preamble(lines, dialect, len(names), file)
    check_columns(names, columns, file, schema=False)
    places = [names.index(name) for name in columns.distinct]
    found = _Rows(lines, dialect, len(names))
    while chunk := guarded(lambda: list(islice(found, rows)), file, CSV_FILE):
        data = {
            name: [None if row is None else row[place] or None for row in chunk]
            for name, place in zip(columns.distinct, places, strict=True)
        }
        frame = pl.DataFrame(data, schema=dict.fromkeys(columns.distinct, pl.String))
        yield as_records(frame, columns, file, readable=[row is not None for row in chunk])
    if found.unclosed is not None:
        raise SourceError(
            field="source.path",
            expected="quoted fields that end",
            got=f"{file}, which ends within one",
            remedy='Close the quotation mark, or write it twice ("") within a quoted field.',
            aside=f", from line {found.unclosed} on",
        )


def _lines(file: Path, dialect: Dialect) -> Iterator[str]:
    """Lines with their ends, from the header on; bytes that are no text become U+FFFD."""
    with opened(file) as raw:
        # Not splitlines(): U+2028 and its kin may stand inside a field.
        text = io.TextIOWrapper(raw, encoding=dialect.encoding, errors="replace", newline="")
        lines = islice(text, dialect.lines_before_header, None)
        yield from (line.removeprefix("\ufeff") if i == 0 else line for i, line in enumerate(lines))


def _header(lines: Iterator[str], dialect: Dialect) -> list[str]:
    return next(csv.reader(lines, delimiter=dialect.separator), [])


def _refuse_preamble(lines: Iterator[str], dialect: Dialect, width: int, file: Path) -> None:
    """Refuses a file with lines above the header, by how many fields lines have, not what."""
    below = islice(lines, _LINES_PEEKED)
    if any(_fields_alone(line, dialect) > max(width, 1) for line in below):
        raise SourceError(
            field="source.path",
            expected=f"the names of the columns in the first line of {file}",
            got="a first line with fewer fields than lines below it have",
            remedy="Drop the lines above the header; or, if it is the header, put fields that hold "
            "the separator in quotes.",
        )


def _fields_alone(line: str, dialect: Dialect) -> int:
    try:
        return len(next(csv.reader([line], delimiter=dialect.separator), []))
    except csv.Error:
        return 0


class _Rows:
    """The rows below a header: as many fields as it has, or None for a broken row."""

    def __init__(self, lines: Iterator[str], dialect: Dialect, width: int) -> None:
        self._lines, self._dialect, self._width = lines, dialect, width
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self._ended = False
        self._line = 1 + dialect.lines_before_header
        self._reader = csv.reader(self._feed(), delimiter=dialect.separator, strict=True)
        self.unclosed: int | None = None
        """The line where a quoted field begins that the file ends in."""

    def __iter__(self) -> Iterator[list[str] | None]:
        return self

    def __next__(self) -> list[str] | None:
        while True:
            self._taken.clear()
            row = self._parsed()
            if not self._taken[0].strip():
                self._line += 1
            elif row is not None and len(row) == self._width:
                self._line += len(self._taken)
                return row
            else:
                self._again.extendleft(reversed(self._taken[1:]))
                self._line += 1
                return None

    def _parsed(self) -> list[str] | None:
        """The next row as it is written; None where its quotation marks are wrong."""
        try:
            return next(self._reader)
        except csv.Error:
            if not self._ended:
                return None
            self.unclosed = self._line + 1
        raise StopIteration

    def _feed(self) -> Iterator[str]:
        while (
            line := self._again.popleft() if self._again else next(self._lines, None)
        ) is not None:
            self._taken.append(line)
            yield line
        self._ended = True
