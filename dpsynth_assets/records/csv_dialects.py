"""CSV files as programs write them: recognises separators, encodings and doubled columns.

**Privacy** The first line of a file without a header is a record, so nothing of it is repeated.
What is recognised follows from the header and from byte order marks alone, never from a record.
"""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.records.columns import ColumnNames, SourceError

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
    if encoding == _UTF_8 and not _is_utf_8(_first_line(start)):
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
            field="source.path",
            expected=f"columns whose names differ in {file}",
            got=f"{doubled[0]!r} more than once",
            remedy="Rename or drop one of them.",
        )
    if wanted & set(names):
        return
    for other in _others(start, declared):
        if wanted & set(_names(start, other)):
            raise _refusal(file, declared, other)


def refuse_stray_dialect(source: SourceSpec, kind: str) -> None:
    """Refuses a separator or an encoding of files that are not CSV: nothing would read it.

    Raises:
        SourceError: One is declared.
    """
    for name, usual in (("separator", None), ("encoding", _UTF_8)):
        if kind != "csv" and (declared := getattr(source, name)) != usual:
            raise SourceError(
                field=f"source.{name}",
                expected="a CSV file beside it",
                got=f"{declared!r} for a {kind} source",
                remedy="Drop it: the format says how its texts are written.",
            )


def is_utf_8(file: Path) -> bool | None:
    """Whether all bytes of a file are UTF-8 text; None where they are ASCII, as in most encodings.

    **Privacy** Reads the records: for the steward's terminal alone.
    """
    decoder = codecs.getincrementaldecoder(_UTF_8)()
    ascii_alone = True
    with opened(file) as raw:
        while block := raw.read(_BLOCK_BYTES):
            ascii_alone &= block.isascii()
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                return False
    return None if ascii_alone else not decoder.getstate()[0]


def opened(file: Path) -> gzip.GzipFile | io.BufferedReader:
    """Opens a file, packed or not, to read its unpacked bytes."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _others(start: bytes, declared: Dialect) -> Iterator[Dialect]:
    """Dialects that a file may have instead, the likeliest first."""
    likely = [declared.encoding, _marked(start) or _UTF_8]
    if not _is_utf_8(_first_line(start)):
        likely.append(_EIGHT_BIT)
    for encoding in dict.fromkeys(likely):
        for separator in dict.fromkeys([declared.separator, *_SEPARATORS]):
            yield replace(declared, separator=separator, encoding=encoding)


def _marked(start: bytes) -> str | None:
    """The encoding that a byte order mark, or the bytes of its first letter, show; None: neither.

    No text has null characters, so a letter with null bytes beside it is two or four bytes wide.
    """
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    nulls = [byte == 0 for byte in start[:4]]
    shapes: dict[tuple[bool, ...], str] = {
        (False, True, True, True): "utf-32-le",
        (True, True, True, False): "utf-32-be",
        (False, True, False, True): "utf-16-le",
        (True, False, True, False): "utf-16-be",
    }
    return shapes.get(tuple(nulls))


def _start(file: Path) -> bytes:
    try:
        with opened(file) as raw:
            return raw.read(_LONGEST_HEADER_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""  # Whoever reads it says so.


def _first_line(start: bytes) -> bytes:
    return next(iter(start.splitlines()), b"")


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode(_UTF_8)
    except UnicodeDecodeError:
        return False
    return True


def _names(start: bytes, dialect: Dialect) -> list[str]:
    """The names in the first line; none where it cannot be parsed."""
    text = start.decode(dialect.encoding, "replace").removeprefix("\ufeff")
    try:
        lines = text.splitlines()[dialect.lines_before_header :]
        return next(csv.reader(lines[:1], delimiter=dialect.separator), [])
    except csv.Error:
        return []


def _refusal(file: Path, declared: Dialect, found: Dialect) -> SourceError:
    """Says which of the two fields differs, and what to write there."""
    fields: Collection[str] = [
        name
        for name in ("separator", "encoding")
        if getattr(declared, name) != getattr(found, name)
    ]
    words = {
        "separator": (_word(declared.separator), _word(found.separator)),
        "encoding": (f"{declared.encoding} text", f"{found.encoding} text"),
    }
    written = [
        f"{name}: {json.dumps(value) if name == 'separator' else value}"
        for name, value in (("separator", found.separator), ("encoding", found.encoding))
        if name in fields
    ]
    return SourceError(
        field=f"source.{next(iter(fields))}",
        expected=f"{' and '.join(words[name][0] for name in fields)} in {file}",
        got=" and ".join(words[name][1] for name in fields),
        remedy=f"Write {' and '.join(written)} under source.",
    )


def _word(separator: str) -> str:
    return f"fields separated by {_SEPARATORS.get(separator, repr(separator))}"
