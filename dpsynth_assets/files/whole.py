"""Writes files and folders atomically, readable by their owner only, and checks free space.

`replaced` and `alone` stand in the kernel, which imports nothing of ours: the ledger uses them. A
disk has a rename, which moves a finished folder into place in one step. An object store has none:
there every file is written first and one file, the marker, last; a folder without its marker is not
there. A folder that is there already changes places with its successor in one step, too: whenever a
process is killed, the old folder or the new one is there, whole.

Free room on disks is asked for before a release is charged.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from upath import UPath

from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.ledger.replacing import alone, flush, owner_folder, replaced


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Replaces a file, in a folder that is made if need be, both for their owner alone.

    Args:
        path: The file; see `replaced`.
        content: Text is written as UTF-8.
    """
    with replaced(owner_folder(path.parent) / path.name) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def is_held(place: Path) -> bool:
    """Says whether any process holds a lock on a file or a folder.

    Raises:
        OSError: It is not there, or is a link.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


MARKER = "complete.json"
"""Last file of a folder in an object store: name -> SHA-256 of every other file."""


@contextmanager
def written_whole(final: Folder) -> Iterator[Path]:
    """Yields an empty local folder, whose content is at `final`, on disk, when the block ends.

    An error leaves nothing behind, a killed process nothing that is taken for the folder.
    """
    if isinstance(final, Path):
        with _beside(final, Path.replace) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory(prefix="dpsynth-") as scratch:
        temporary = Path(scratch)
        yield temporary
        (temporary / MARKER).write_text(json.dumps(file_digests(temporary), sort_keys=True))
        upload(temporary, final, last=MARKER)


@contextmanager
def replaced_whole(final: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `final`, on disk, when the block ends.

    One process at a time replaces a folder; what a killed one left beside it is removed. An error
    leaves `final` as it is.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with alone(final.parent):
        own = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{8}}(\.old)?")
        for left in [each for each in final.parent.iterdir() if own.fullmatch(each.name)]:
            shutil.rmtree(left, ignore_errors=True)
        with _beside(final, _take_place) as temporary:
            yield temporary


_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux (renameat2, section 2 of the manual)."""
_AT_WORKING_FOLDER = -100
_HAS_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def _take_place(new: Path, final: Path) -> None:
    """Puts `new` where `final` is, and what was there where `new` was; one step where it can be.

    File systems of other machines (NFS) know no exchange. There two renames follow each other, and
    a kill between them leaves the old folder beside, under the name of a temporary one.
    """
    if not final.exists():
        new.replace(final)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None:
        places = (_AT_WORKING_FOLDER, os.fsencode(new), _AT_WORKING_FOLDER, os.fsencode(final))
        if exchange(*places, _EXCHANGE) == 0:
            return
        if (number := ctypes.get_errno()) not in _HAS_NO_EXCHANGE:
            raise OSError(number, os.strerror(number), str(final))
    aside = new.with_name(f"{new.name}.old")
    final.replace(aside)
    new.replace(final)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _beside(final: Path, take_place: Callable[[Path, Path], object]) -> Iterator[Path]:
    """Yields an empty folder, which takes the place of `final`, on disk, when the block ends."""
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        flush_all(temporary)
        take_place(temporary, final)
        flush(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # A full disk needs the space.


def flush_all(folder: Path) -> None:
    """Waits until a folder is on disk with all that is in it."""
    for path in (*folder.rglob("*"), folder):
        flush(path)


def upload(local: Path, final: UPath, *, last: str) -> None:
    """Replaces the content of `final` by that of `local`: `last` goes first and comes last.

    Args:
        local: Folder of finished files.
        final: Prefix of an object store.
        last: Name of the file that says that all others are there.
    """
    store, names = final.fs, [name for name in file_names(local) if name != last]
    earlier = file_names(final)
    if last in earlier:
        store.rm_file((final / last).path)
    for name in earlier:
        if name not in (*names, last):
            store.rm_file((final / name).path)
    for name in (*names, last):
        store.pipe_file((final / name).path, (local / name).read_bytes())


def download_whole(source: UPath, final: Path) -> Path:
    """Copies a marked folder of an object store to the disk, unless it is there already.

    Raises:
        OSError: A file is not the one that the marker lists.
    """
    if final.is_dir():
        return final
    listed = json.loads((source / MARKER).read_text())
    with written_whole(final) as folder:
        for name, expected in listed.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.fs.get_file((source / name).path, str(target))
            if digest_of(target) != expected:
                raise OSError(f"Expected {name} of {source} as it was stored, got other bytes.")
    return final


def file_names(folder: Folder) -> list[str]:
    """Names of all files in a folder, relative to it, with slashes, sorted; none without it."""
    if isinstance(folder, Path):
        files = (path for path in folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(folder).as_posix() for path in files)
    prefix = folder.path.rstrip("/") + "/"
    return sorted(name.removeprefix(prefix) for name in folder.fs.find(prefix))


def file_digests(folder: Folder) -> dict[str, str]:
    """Name -> SHA-256 of every file in a folder but the marker."""
    return {name: digest_of(folder / name) for name in file_names(folder) if name != MARKER}


LONGEST_TEXT = 1 << 26
"""Bytes of a label, card, prompts or proof (of 30,000 entries)."""


def short_text(path: Path) -> str:
    """Reads a file of at most `LONGEST_TEXT` bytes, also where it grows meanwhile.

    Raises:
        ValueError: It is longer, or no UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(LONGEST_TEXT + 1)
    if len(content) > LONGEST_TEXT:
        raise ValueError(f"Expected at most {LONGEST_TEXT:,} bytes in {path.name}, got more.")
    return content.decode()


def digest_of(path: Folder) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


LEAST_FREE_BYTES = 16 << 20
"""Left free on every disk beside a release: for the ledger, logs and the database's journal."""

BYTES_OF_A_TOKEN = 32
"""As text (four or five in English), or in JSON its number and, at most, a number of 20 digits."""

BYTES_OF_A_ROW = 256
"""Beside its text: label, number, votes and what else a row says of itself."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes of disk that a release takes at most, from public facts alone.

    Attributes:
        release: Its stored value.
        kept: What an unfinished draw keeps to go on with: a checkpoint, or finished passes.
        corpus: The rows that are published from it.
    """

    release: int = 0
    kept: int = 0
    corpus: int = 0


def bytes_of_texts(texts: int, tokens: int) -> int:
    """Bounds the bytes of texts with at most this many tokens each."""
    return texts * (tokens * BYTES_OF_A_TOKEN + BYTES_OF_A_ROW)


def missing_room(needs: Sequence[tuple[str, Path, int]]) -> str | None:
    """Compares what places need with what their disks have; places on one disk are added up.

    A disk that is mounted read-only is left out: writing there fails with its own message.

    Args:
        needs: Name of each place, its folder, which need not exist, and the bytes it will take.

    Returns:
        One sentence on the first disk with too little room; None where all have enough.
    """
    disks: dict[int, list[tuple[str, Path, int]]] = {}
    for name, place, size in needs:
        found = _existing(place)
        disks.setdefault(found.stat().st_dev, []).append((name, found, size))
    for places in disks.values():
        disk = os.statvfs(places[0][1])
        if disk.f_flag & os.ST_RDONLY:
            continue
        free = disk.f_bavail * disk.f_frsize
        needed = LEAST_FREE_BYTES + sum(size for _, _, size in places)
        if free < needed:
            names = ", ".join(name for name, _, _ in places)
            return (
                f"Expected at least {-(-needed >> 20)} MiB of free space on the disk of "
                f"{places[0][1]} ({names}), got {free >> 20}."
            )
    return None


def _existing(place: Path) -> Path:
    """The folder itself, or the nearest one above it that exists and may be found."""
    return next(path for path in (place, *place.absolute().parents) if os.access(path, os.F_OK))


class Checkpoint(Protocol):
    """Owner-only files of one unfinished stage, from which a killed run resumes under its charge.

    **Privacy** What lies here is part of the release that was paid for, and not shown to others
    until the whole is committed. A run that dies draws again only what it had not checkpointed, so
    nothing that depends on later draws may be shown (logs, progress, public losses included)
    before the checkpoint that holds them is saved.
    """

    @property
    def saved(self) -> Path | None:
        """Folder of the last saved checkpoint; None at the first start."""

    def filled(self, write: Callable[[Path], object]) -> Path:
        """Makes an owner-only folder of the next checkpoint, or of the stage's files.

        Args:
            write: Puts the files into an empty folder. Called again, on an empty folder, once there
                is room on a disk that was full: it must not change what it writes.
        """

    def save(self, folder: Path) -> None:
        """Makes a filled folder the last checkpoint: whole or not at all, on disk at the end."""
