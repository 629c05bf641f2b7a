"""Replaces a file atomically, synced to disk and readable by its owner only.

It stands in the kernel, which imports nothing of ours, because the ledger's own files change so.
"""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path


@contextmanager
def replaced(path: Path, *, only_if_absent: bool = False) -> Iterator[Path]:
    """Yields an empty file of mode 0600, which is `path`, on disk, when the block ends.

    A reader sees the old content or the new, never a mixture. An error or a kill leaves `path` as
    it was; an error leaves nothing else behind either, since a full disk needs the space.

    Args:
        path: The file. Its folder must be there: who comes too late must not bring it back.
        only_if_absent: Leave a file that is there, also where another process was first.
    """
    # Not the number of the process: processes of other machines may share the disk.
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield new
        flush(new)
        if only_if_absent:
            with suppress(FileExistsError):
                path.hardlink_to(new)
        else:
            new.replace(path)
        flush(path.parent)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def alone(place: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lets one process at a time into the block: a lock of the kernel, which a kill releases.

    Args:
        place: A folder, or a file, which is made and stays, since to remove it would race.
        waiting: Called once if another process holds the lock.

    Raises:
        OSError: The file cannot be made.
    """
    flags = os.O_RDONLY if place.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(place, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def owner_folder(folder: Path) -> Path:
    """Makes a folder, and those missing above it, of mode 0700; one that is there stays as it is.

    `mkdir(parents=True)` would make those above it as the umask says.
    """
    missing = takewhile(lambda each: not each.exists(), (folder, *folder.parents))
    for each in reversed(list(missing)):
        each.mkdir(mode=0o700, exist_ok=True)
    return folder


def flush(path: Path) -> None:
    """Waits until a file's or a folder's content is on disk: a commit must never outlive it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
