"""Refuses files before reading them: archives, pickles, decompression bombs, links out of a folder.

Everything here looks at a file as a whole, never at one record, so a refusal is a refusal of the
source. What one record can do (control characters, ten megabytes of text, a formula, instructions
to a model) is dealt with record by record in `record_filters.py`.
"""

import gzip
import stat
import zlib
from pathlib import Path, PurePath

from dpsynth_assets.records.columns import SourceError

LONGEST_TEXT_CHARACTERS = 1_000_000
"""Longest text used where a declaration names no limit: a public constant."""

LARGEST_RATIO = 200
"""Text shrinks five to twenty times; what unpacks to more than this is made to fill a disk."""

UNSUSPICIOUS_BYTES = 1 << 28
"""An archive that unpacks to less is read, with any ratio."""

LARGEST_ROWS_PER_BYTE = 100
UNSUSPICIOUS_ROWS = 10_000_000

_BLOCK_BYTES = 1 << 20
_PICKLE = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_FOREIGN = {
    **dict.fromkeys(_PICKLE, "a pickle, which would run code when it is read"),
    b"PK\x03\x04": "a zip archive (also what torch.save writes)",
    b"PK\x05\x06": "a zip archive",
    b"\x7fELF": "a program",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
}


def refuse_traversal(path: str) -> None:
    """Refuses a relative path that climbs out of where it starts.

    Raises:
        SourceError: It contains `..`.
    """
    if "://" not in path and ".." in PurePath(path).parts:
        raise SourceError(
            expected="a path without '..'",
            got=f"{path!r}",
            remedy="Write an absolute path, or move the files.",
        )


def refuse_links_away(files: list[Path], below: Path) -> None:
    """Refuses files that a folder or a glob found and that lie elsewhere.

    A link that a declaration names itself is its author's choice; one that somebody put into a
    folder is not.

    Raises:
        SourceError: A file is a link out of `below`.
    """
    inside = below.resolve()
    # The Hugging Face cache links `snapshots/<revision>/…` to `blobs/` beside it.
    snapshots = [folder for folder in inside.parents if folder.name == "snapshots"]
    allowed = [inside, *(folder.parent / "blobs" for folder in snapshots)]
    for file in files:
        if not any(file.resolve().is_relative_to(folder) for folder in allowed):
            raise SourceError(
                expected=f"files inside {below}",
                got=f"{file}, a link out of it",
                remedy="Copy the file there, or name it by its own path.",
            )


def refuse_no_file(file: Path) -> None:
    """Refuses pipes, devices and sockets: reading one may never end.

    Raises:
        SourceError: It is no ordinary file.
    """
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise SourceError(
            expected="an ordinary file",
            got=f"{file}, which is {kind}",
            remedy="Write the records to a file first.",
        )


def refuse_unpacked_bytes(file: Path, size: int) -> None:
    """Refuses a file whose texts are far larger than text can be in a file of its size.

    Raises:
        SourceError: More than 256 MiB, at more than 200 times the file's own size.
    """
    if size > max(UNSUSPICIOUS_BYTES, LARGEST_RATIO * file.stat().st_size):
        raise SourceError(
            expected=f"a file that unpacks to at most {LARGEST_RATIO} times its size",
            got=f"{file}, which unpacks to more",
            remedy="Write the file again from the original records.",
        )


def refuse_foreign(file: Path, kind: str) -> None:
    """Refuses a file whose first bytes say that it is no table of text.

    Raises:
        SourceError: It is a pickle, an archive or a program; the line says which.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
    if start.startswith(b"\x1f\x8b"):
        refuse_bomb(file)
        if kind in {"csv", "jsonl"} and file.suffix != ".gz":
            raise _foreign(file, kind, "gzip data under another name")
        start = _unpacked_start(file)
    for magic, name in _FOREIGN.items():
        if start.startswith(magic):
            raise _foreign(file, kind, name)


def refuse_bomb(file: Path) -> None:
    """Refuses a gzip file that unpacks to far more than text does. Unpacks it once, in pieces.

    Raises:
        SourceError: More than 256 MiB come out, at more than 200 times the file's own size.
    """
    most = max(UNSUSPICIOUS_BYTES, LARGEST_RATIO * file.stat().st_size)
    size = 0
    try:
        with gzip.open(file) as unpacked:
            while block := unpacked.read(_BLOCK_BYTES):
                size += len(block)
                if size > most:
                    break
    except (OSError, EOFError, zlib.error):
        return  # Damaged: the reader of the file reports it.
    refuse_unpacked_bytes(file, size)


def refuse_many_rows(file: Path, rows: int) -> None:
    """Refuses a Parquet file that declares more rows than its bytes can mean.

    Raises:
        SourceError: More than ten million rows, at more than a hundred a byte.
    """
    if rows > max(UNSUSPICIOUS_ROWS, LARGEST_ROWS_PER_BYTE * file.stat().st_size):
        raise SourceError(
            expected=f"a Parquet file of at most {LARGEST_ROWS_PER_BYTE} rows per byte",
            got=f"{file}, which declares more",
            remedy="Write the file again from the records themselves.",
        )


def _unpacked_start(file: Path) -> bytes:
    try:
        with gzip.open(file) as unpacked:
            return unpacked.read(8)
    except (OSError, EOFError, zlib.error):
        return b""


def _foreign(file: Path, kind: str, name: str) -> SourceError:
    return SourceError(
        expected=f"a {kind} file",
        got=f"{file}, which is {name}",
        remedy="Write the records as CSV, JSON Lines or Parquet.",
    )
