"""Free room on disks, asked for before a release is charged."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
