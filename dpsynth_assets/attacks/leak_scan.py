"""Searches folders for canaries in every byte: file names, contents, archives and compressed data.

Databases are read table by table (a value may be across pages), Parquet and Arrow files column by
column, archives and compressed values once unpacked, a few layers deep. A report names files and
spellings and never a canary.

Canaries are byte patterns, in every spelling that software on the way may have given them.
Thousands of patterns are looked up at once by an automaton (Aho-Corasick): time grows with the
content, hardly with the number of canaries. Small contents are searched together, as the automaton
is made for each search.
"""

import base64
import html
import io
import json
import os
import sqlite3
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import polars as pl

LEAST_BYTES = 8
"""Canaries and their spellings are at least as long; shorter ones would turn up by chance."""

_BLOCK_BYTES = 1 << 24
_BYTEWISE = "latin-1"
"""Every byte is one character, as the automaton is one of texts."""


class Needles:
    """Patterns of a set of canaries. Canaries are known by their number; no repr shows them."""

    def __init__(self, canaries: Sequence[str]) -> None:
        """Spells every canary.

        Args:
            canaries: Distinct texts; found by their position in this sequence.

        Raises:
            ValueError: A canary is shorter than eight bytes.
        """
        short = [number for number, text in enumerate(canaries) if len(text.encode()) < 8]
        if short:
            raise ValueError(
                f"Expected canaries of at least {LEAST_BYTES} bytes, got a shorter one (number "
                f"{short[0]}). Plant longer canaries."
            )
        self._patterns: dict[bytes, tuple[int, str]] = {}
        for number, text in enumerate(canaries):
            for spelling, pattern in spellings(text):
                if len(pattern) >= LEAST_BYTES:
                    self._patterns.setdefault(pattern, (number, spelling))
        texts = [[pattern.decode(_BYTEWISE) for pattern in self._patterns]]
        self._texts = pl.Series(texts, dtype=pl.List(pl.String))
        self.longest = max(map(len, self._patterns), default=0)

    def __len__(self) -> int:
        """Number of patterns."""
        return len(self._patterns)

    def find(self, contents: Sequence[bytes]) -> list[set[tuple[int, str]]]:
        """Canaries in each content, each with the spelling it was found in."""
        texts = pl.Series([each.decode(_BYTEWISE) for each in contents], dtype=pl.String)
        found = texts.str.extract_many(self._texts, overlapping=True)
        return [{self._patterns[text.encode(_BYTEWISE)] for text in each} for each in found]


def spellings(text: str) -> Iterator[tuple[str, bytes]]:
    """Yields every spelling of a text that is searched for, with its name."""
    for name, version in (("as it is", text), ("lower", text.lower()), ("upper", text.upper())):
        yield name, version.encode()
    raw = text.encode()
    escaped = json.dumps(text)[1:-1]
    yield "JSON", escaped.encode()
    yield "JSON in JSON", json.dumps(escaped)[1:-1].encode()
    yield "HTML", html.escape(text).encode()
    yield "URL", quote(text).encode()
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        yield encoding, text.encode(encoding)
    yield "hexadecimal", raw.hex().encode()
    yield "hexadecimal", raw.hex().upper().encode()
    for shift in range(3):
        pattern = _base64_core(raw, shift)
        yield "base64", pattern
        yield "base64", pattern.translate(bytes.maketrans(b"+/", b"-_"))


def _base64_core(raw: bytes, shift: int) -> bytes:
    """The digits that depend on `raw` alone where it begins `shift` bytes after a triple does."""
    encoded = base64.b64encode(bytes(shift) + raw)
    first = (0, 2, 3)[shift]
    return encoded[first : (shift + len(raw)) * 8 // 6]


MAXIMUM_UNPACKED_BYTES = 1 << 28
"""More than this is not unpacked from one archive or value; the report says so."""

_GZIP = b"\x1f\x8b"
_DEEPEST = 3
_BATCH_BYTES = 1 << 20
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Canaries found in one file.

    Attributes:
        path: The file.
        spelling: How they are written there.
        canaries: How many different ones.
    """

    path: str
    spelling: str
    canaries: int


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Result of a scan: what was read and what was found.

    Attributes:
        canaries: Number of canaries searched for.
        patterns: Number of byte patterns they were spelled as.
        files: Number of files read.
        bytes_searched: Bytes compared, unpacked ones included.
        leaks: Where canaries were found; empty where none was.
        unread: Files or parts that could not be read or unpacked, with the reason.
    """

    canaries: int
    patterns: int
    files: int
    bytes_searched: int
    leaks: tuple[Leak, ...]
    unread: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Says whether everything was read and no canary was found."""
        return not self.leaks and not self.unread


class _Unreadable(Exception):  # noqa: N818 - it ends the reading of one piece, not of the scan
    """A piece of a file that cannot be unpacked."""


def scan_folders(
    folders: Sequence[Path], canaries: Sequence[str], exclude: Sequence[Path] = ()
) -> LeakReport:
    """Searches folders for canaries.

    Args:
        folders: Where to search; a file below two of them is read once.
        canaries: Texts of at least eight bytes.
        exclude: Folders that may hold private data: the sensitive store, the sources.
    """
    distinct = list(dict.fromkeys(canaries))
    needles = Needles(distinct)
    found: dict[tuple[str, str], set[int]] = {}
    unread: list[str] = []
    files: set[Path] = set()
    searched = 0

    def blocks() -> Iterator[tuple[Path, bytes]]:
        for path in _files(folders, exclude):
            for content in _contents(path, unread):
                for start in range(0, len(content), _BLOCK_BYTES):
                    yield path, content[start : start + _BLOCK_BYTES + needles.longest]

    for batch in _batched(blocks(), lambda block: len(block[1]), _BLOCK_BYTES):
        paths, contents = zip(*batch, strict=True)
        files.update(paths)
        searched += sum(min(len(content), _BLOCK_BYTES) for content in contents)
        for path, hits in zip(paths, needles.find(contents), strict=True):
            for number, spelling in hits:
                found.setdefault((str(path), spelling), set()).add(number)
    leaks = [Leak(path=p, spelling=s, canaries=len(n)) for (p, s), n in sorted(found.items())]
    return LeakReport(
        canaries=len(distinct),
        patterns=len(needles),
        files=len(files),
        bytes_searched=searched,
        leaks=tuple(leaks),
        unread=tuple(unread),
    )


def _files(folders: Sequence[Path], exclude: Sequence[Path]) -> Iterator[Path]:
    """Regular files, each once; links are not followed, since what they name is not in here."""
    left_out = {folder.resolve() for folder in exclude}
    seen: set[Path] = set()
    for folder in folders:
        for parent, below, names in os.walk(folder.resolve()):
            below[:] = [name for name in below if Path(parent, name) not in left_out]
            for path in sorted(Path(parent, name) for name in names):
                if path not in seen and path.is_file() and not path.is_symlink():
                    seen.add(path)
                    yield path


def _contents(path: Path, unread: list[str]) -> Iterator[bytes]:
    """The name of a file, its bytes, and everything packed in them."""
    yield str(path).encode("utf-8", "surrogateescape")
    try:
        content = path.read_bytes()
    except OSError as error:
        unread.append(f"{path}: {error.strerror or type(error).__name__}")
        return
    yield content
    try:
        if content.startswith(b"SQLite format 3\0"):
            yield from _joined(_database_values(path))
        else:
            yield from _unpacked(content, depth=0)
    except _Unreadable as problem:
        unread.append(f"{path}: {problem}")


def _unpacked(content: bytes, depth: int) -> Iterator[bytes]:
    """Unpacks what is packed in some bytes, and what is packed in that."""
    if depth == _DEEPEST:
        return
    for inner in _packed(content):
        yield inner
        yield from _unpacked(inner, depth + 1)


def _packed(content: bytes) -> Iterator[bytes]:
    if content.startswith(_GZIP):
        yield from _gzip_members(content)
    elif content.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _zip_members(content)
    elif content.startswith(b"PAR1"):
        yield from _columns(pl.read_parquet, content)
    elif content.startswith(b"ARROW1"):
        yield from _columns(pl.read_ipc, content)


def _gzip_members(content: bytes) -> Iterator[bytes]:
    while content.startswith(_GZIP):
        unpacked, content = _inflated(content, wbits=31)
        yield unpacked


def _inflated(content: bytes, wbits: int) -> tuple[bytes, bytes]:
    """Unpacks one stream of gzip (31) or zlib (15) data; returns what follows it as well.

    Raises:
        _Unreadable: It is damaged, cut short, or larger than what is unpacked.
    """
    unpacker = zlib.decompressobj(wbits)
    try:
        unpacked = unpacker.decompress(content, MAXIMUM_UNPACKED_BYTES)
    except zlib.error:
        raise _Unreadable("damaged compressed data") from None
    if unpacker.unconsumed_tail:
        raise _Unreadable("unpacks to more bytes than the search reads")
    if not unpacker.eof:
        raise _Unreadable("compressed data that ends too early")
    return unpacked, unpacker.unused_data


def _zip_members(content: bytes) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAXIMUM_UNPACKED_BYTES:
                raise _Unreadable("unpacks to more bytes than the search reads")
            for member in archive.infolist():
                yield member.filename.encode()
                yield archive.read(member)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error):
        raise _Unreadable("an archive that cannot be opened") from None


def _columns(read: Callable[..., pl.DataFrame], content: bytes) -> Iterator[bytes]:
    """Text and binary columns, and every other column as JSON."""
    try:
        frame = read(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError):
        raise _Unreadable("a table that cannot be opened") from None
    yield "\n".join(frame.columns).encode()
    for column in frame.get_columns():
        if column.dtype == pl.Binary:
            yield from _joined(value for value in column if value is not None)
        elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
            values = column.cast(pl.String)
            yield from _joined(value.encode() for value in values if value is not None)
        elif column.dtype.is_nested():
            yield column.to_frame().write_ndjson().encode()


def _database_values(path: Path) -> Iterator[bytes]:
    """Every text and blob of every table of a SQLite file; blobs also unpacked."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with connection:
            connection.text_factory = bytes
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in tables.fetchall():
                quoted = name.decode().replace('"', '""')
                for row in connection.execute(f'SELECT * FROM "{quoted}"'):  # noqa: S608
                    for value in row:
                        if isinstance(value, bytes):
                            yield value
                            yield from _compressed_value(value)
        connection.close()
    except sqlite3.Error:
        raise _Unreadable("a database that cannot be read") from None


def _compressed_value(value: bytes) -> Iterator[bytes]:
    """Dagster keeps snapshots as zlib data; what only looks like it is left as it is."""
    if value[:1] == b"\x78":
        try:
            yield _inflated(value, wbits=15)[0]
        except _Unreadable:
            return
    else:
        yield from _unpacked(value, depth=1)


def _joined(values: Iterator[bytes]) -> Iterator[bytes]:
    """Joins small values: looking up each by itself would cost more than the search."""
    return map(b"\n".join, _batched(values, len, _BATCH_BYTES))


def _batched(values: Iterator[Value], size: Callable[[Value], int], most: int) -> Iterator[Any]:
    """Lists of values whose sizes add up to at least `most`, but for the last one."""
    batch: list[Value] = []
    held = 0
    for value in values:
        batch.append(value)
        held += size(value)
        if held >= most:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


# Planted canaries in a corpus, in any case, spacing and hyphenation.
#
# Text and canaries are folded to letters and digits alone, so `X7QK-4Z9W`, `x7qk 4z9w` and
# `X7QK4Z9W` are one canary. Every place of a text is looked up once among the canaries' openings:
# time grows with the text, not with the number of canaries.

MINIMUM_CHARACTERS = 6
"""Shorter canaries would be found inside ordinary words."""


def contains_canary(texts: Sequence[str], canaries: Sequence[str]) -> bool:
    """Says whether any canary occurs in any text.

    Raises:
        ValueError: A canary has fewer than `MINIMUM_CHARACTERS` letters and digits.
    """
    return find_canaries(texts, canaries) > 0


def find_canaries(texts: Sequence[str], canaries: Sequence[str]) -> int:
    """Counts the distinct canaries that occur in at least one text.

    Raises:
        ValueError: A canary has fewer than `MINIMUM_CHARACTERS` letters and digits.
    """
    folded = sorted({_fold(canary) for canary in canaries})
    if not folded:
        return 0
    if (shortest := min(map(len, folded))) < MINIMUM_CHARACTERS:
        raise ValueError(
            f"Expected canaries of at least {MINIMUM_CHARACTERS} letters and digits, got one of "
            f"{shortest}. Plant longer canaries."
        )
    words = pl.Series([_fold(text) for text in texts], dtype=pl.String)
    found = words.str.extract_many(folded, overlapping=True)
    return found.explode().drop_nulls().n_unique()


def _fold(text: str) -> str:
    """Keeps letters and digits, compatibility-folded and case-folded."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
