"""Reading a package that a stranger may have made: regular files alone, up to a size.

A FIFO, a device or a link to one would hold the reader or never end; a file that is swapped while
it is opened is still only read as far as it was long when it was opened.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LONGEST_TEXT = 1 << 26
"""Bytes of a label, a card, a proof or prompts: a proof of 30,000 entries."""
LONGEST_FILE = 1 << 36
"""Bytes of a file of rows or weights."""

_CHUNK_BYTES = 1 << 22


def text_of(path: Path) -> str:
    """A text file in UTF-8.

    Raises:
        OSError: It is no regular file, or too long.
        ValueError: It is not UTF-8.
    """
    with _opened(path, LONGEST_TEXT) as (file, length):
        return file.read(length).decode("utf-8")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: It is no regular file, or too long.
    """
    digest = hashlib.sha256()
    with _opened(path, LONGEST_FILE) as (file, length):
        left = length
        while block := file.read(min(left, _CHUNK_BYTES)):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path, longest: int) -> Iterator[tuple[BinaryIO, int]]:
    """The open file and its length; it is opened without waiting for anybody to write."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path.name}: expected a file, got something else.")
        if found.st_size > longest:
            raise OSError(f"{path.name}: expected at most {longest} bytes, got {found.st_size}.")
        yield file, found.st_size
