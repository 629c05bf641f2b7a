"""CSV files as programs write them: separators, encodings, doubled columns, and rows.

**Privacy** The first line of a file without a header is a record, so nothing of it is repeated.
What is recognised follows from the header and from byte order marks alone, never from a record.

Every line of a file ends in a row or is counted as broken. A line whose fields are not as many as
the header's, or whose quotation marks do not close, is one broken row, and reading goes on with the
line after it. A quotation mark within an unquoted field stands for itself. Blank lines are no rows.

**Source** RFC 4180, but for the quotation marks within unquoted fields.
"""

import codecs
import csv
import io
import json
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    unpacked,
)

_LONGEST_HEADER_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_UTF_8 = "utf-8"
_EIGHT_BIT = "cp1252"
"""What most programs that write neither UTF-8 nor UTF-16 use; latin-1 without its gaps."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_NAMED = re.compile("\ufeff?sep=(.)[\r\n]", re.IGNORECASE)
"""What Excel reads a file's separator from."""
_MARKS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": _UTF_8,
}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one CSV file is written.

    Attributes:
        separator: The character between two fields.
        encoding: Python's name of the encoding.
        lines_before_header: 1 where the first line names the separator (`sep=;`), else 0.
    """

    separator: str
    encoding: str
    lines_before_header: int = 0

    def __str__(self) -> str:
        """Says what is in such a file."""
        separated_by = _SEPARATORS.get(self.separator, repr(self.separator))
        return f"{self.encoding} text with fields separated by {separated_by}"


def dialect_of(file: Path, source: SourceSpec) -> Dialect:
    """The dialect that a source declares for one of its files, or that its first line names."""
    usual = "\t" if ".tsv" in file.name.lower() else ","
    named = _NAMED.match(_start(file).decode(source.encoding, "replace"))
    return Dialect(
        separator=source.separator or (named[1] if named else usual),
        encoding=source.encoding,
        lines_before_header=1 if named else 0,
    )


def recognised_dialect(file: Path, declared: Dialect) -> Dialect:
    """The dialect that a file's header is written in; the declared one where none fits better.

    Args:
        file: A CSV file, packed or not.
        declared: What the file is taken for by its name.
    """
    start = _start(file)
    encoding = _marked(start) or _UTF_8
    first = next(iter(start.splitlines()), b"").decode(_UTF_8, "replace")
    if encoding == _UTF_8 and "\ufffd" in first:
        encoding = _EIGHT_BIT
    signs = dict.fromkeys([declared.separator, *_SEPARATORS])
    columns = {
        sign: len(_names(start, replace(declared, separator=sign, encoding=encoding)))
        for sign in signs
    }
    most = max(signs, key=lambda sign: columns[sign])  # The declared one is first among equals.
    return replace(declared, separator=most, encoding=encoding)


def refuse_dialect(file: Path, declared: Dialect, columns: ColumnNames) -> None:
    """Refuses a file of another separator or encoding than declared, or with a named column twice.

    Raises:
        SourceError: With what was recognised, and what to declare so that the file is read.
    """
    start, wanted = _start(file), set(columns.distinct)
    marked = _marked(start)
    if marked is not None and not declared.encoding.startswith(marked):
        raise _refusal(file, declared, replace(declared, encoding=marked))
    names = _names(start, declared)
    if doubled := sorted(name for name in wanted if names.count(name) > 1):
        raise SourceError(
            expected=f"columns whose names differ in {file}",
            got=f"{doubled[0]!r} more than once",
            remedy="Rename or drop one of them.",
        )
    if wanted & set(names):
        return
    found = recognised_dialect(file, declared)
    if wanted & set(_names(start, found)):
        raise _refusal(file, declared, found)


def refuse_stray_dialect(source: SourceSpec, kind: str) -> None:
    """Refuses a separator or an encoding of files that are not CSV: nothing would read it.

    Raises:
        SourceError: One is declared.
    """
    for name, usual in (("separator", None), ("encoding", _UTF_8)):
        if kind != "csv" and (declared := getattr(source, name)) != usual:
            raise SourceError(
                field=f"source.{name}",
                expected="a CSV file for this key",
                got=f"{declared!r} for a {kind} source",
                remedy="Drop this key: the format determines how texts are written.",
            )


def is_utf_8(file: Path) -> bool | None:
    """Whether all bytes of a file are UTF-8 text; None where they are ASCII, as in most encodings.

    **Privacy** Reads the records: for the steward's terminal alone.
    """
    decoder = codecs.getincrementaldecoder(_UTF_8)()
    ascii_alone = True
    with unpacked(file) as raw:
        while block := raw.read(_BLOCK_BYTES):
            ascii_alone &= block.isascii()
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return False
    return None if ascii_alone else not decoder.getstate()[0]


def _marked(start: bytes) -> str | None:
    """The encoding that a byte order mark, or the bytes of its first letter, show; None: neither.

    No text has null characters, so a letter with null bytes beside it is two or four bytes wide.
    """
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    wide = {2: "utf-16", 3: "utf-32"}.get(start[:4].count(0))
    order = "be" if start.startswith(b"\0") else "le"
    return wide and f"{wide}-{order}"


def _start(file: Path) -> bytes:
    try:
        with unpacked(file) as raw:
            return raw.read(_LONGEST_HEADER_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""  # The reader of the file reports it.


def _names(start: bytes, dialect: Dialect) -> list[str]:
    """The names in the first line; none where it cannot be parsed."""
    text = start.decode(dialect.encoding, "replace").removeprefix("\ufeff")
    try:
        lines = text.splitlines()[dialect.lines_before_header :]
        return next(csv.reader(lines[:1], delimiter=dialect.separator), [])
    except csv.Error:
        return []


def _refusal(file: Path, declared: Dialect, found: Dialect) -> SourceError:
    """Says how the file is written, and what to declare."""
    written = {"separator": json.dumps(found.separator), "encoding": found.encoding}
    differing = [name for name in written if getattr(declared, name) != getattr(found, name)]
    asked = " and ".join(f"{name}: {written[name]}" for name in differing)
    return SourceError(
        field=f"source.{differing[0]}",
        expected=f"{declared} in {file}",
        got=str(found),
        remedy=f"Write {asked} under source.",
    )


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
            expected="quoted fields that end",
            got=f"{file}, which ends within one",
            remedy='Close the quotation mark, or write it twice ("") within a quoted field.',
            aside=f", from line {found.unclosed} on",
        )


def _lines(file: Path, dialect: Dialect) -> Iterator[str]:
    """Lines with their ends, from the header on; bytes that are no text become U+FFFD."""
    with unpacked(file) as raw:
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
