"""CSV files as programs write them: recognises other separators, encodings and doubled columns.

**Privacy** The first line of a file without a header is a record, so nothing of it is repeated. A
dialect is named only where its header has the columns that the declaration names.
"""

import csv
import gzip
import zlib
from pathlib import Path

from dpsynth_assets.records.columns import ColumnNames, SourceError

_LONGEST_HEADER_BYTES = 1 << 16
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_MARKS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
}


def refuse_dialect(file: Path, separator: str, columns: ColumnNames) -> None:
    """Refuses a file that is not UTF-8, has another separator, or has a named column twice.

    Args:
        file: A CSV file, packed or not.
        separator: What separates its fields, by its name.
        columns: Columns that are asked for.

    Raises:
        SourceError: With what was recognised, and how to write the file so that it is read.
    """
    start = _start(file)
    for mark in sorted(_MARKS, key=len, reverse=True):
        if start.startswith(mark):
            raise _refusal(file, "UTF-8 text", f"{_MARKS[mark]} text", "Save it as UTF-8.")
    header = start.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    wanted = set(columns.distinct)
    names = _names(header, separator)
    if doubled := sorted(name for name in wanted if names.count(name) > 1):
        got = f"{doubled[0]!r} more than once"
        raise _refusal(file, "columns whose names differ", got, "Rename or drop one of them.")
    if wanted & set(names):
        return
    for other, word in _SEPARATORS.items():
        if wanted & set(_names(header, other)) and other != separator:
            raise _refusal(
                file,
                f"fields separated by {_SEPARATORS[separator]}",
                f"{word}",
                "Name a file with tabs .tsv; save any other with commas."
                if other == "\t"
                else "Save it with commas, or with tabs as .tsv.",
            )


def _start(file: Path) -> bytes:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            return opened.read(_LONGEST_HEADER_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""  # Whoever reads it says so.


def _names(text: str, separator: str) -> list[str]:
    """The names in a header line; none where it cannot be parsed."""
    try:
        return next(csv.reader(text.splitlines()[:1], delimiter=separator), [])
    except csv.Error:
        return []


def _refusal(file: Path, expected: str, got: str, remedy: str) -> SourceError:
    return SourceError(
        field="source.path", expected=f"{expected} in {file}", got=got, remedy=remedy
    )
