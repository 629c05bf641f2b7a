"""Keyed hashes that give a record its name and its place, from the record alone.

The key is public (the dataset's name), so these hashes hide nothing. They make every choice about
a record a function of that record, which is what parallel composition asks for (docs/privacy.md).
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum


class Purpose(StrEnum):
    """The purpose of a hash; different purposes give unrelated hashes (at most 16 characters)."""

    RECORD_ID = "record id"
    UNIT_BOUND = "unit bound"
    HELD_OUT = "held out"
    PART = "part"
    SCORED = "scored"


def keyed_hash(purpose: Purpose, dataset: str, *parts: str) -> bytes:
    """Hashes `parts`, each with its length before it, so that no two lists collide by joining.

    Returns:
        16 bytes of BLAKE2b, keyed by the dataset's name and personalised by the purpose.
    """
    digest = hashlib.blake2b(digest_size=16, key=dataset.encode(), person=purpose.encode())
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def hash_rows(purpose: Purpose, dataset: str, columns: Sequence[Sequence[str]]) -> list[str]:
    """Hashes each row of aligned columns; returns 32 hexadecimal digits a row."""
    rows = zip(*columns, strict=True)
    return [keyed_hash(purpose, dataset, *row).hex() for row in rows]


def unit_interval(digest: str) -> float:
    """Maps a hash (hexadecimal) to [0, 1): its first 53 bits."""
    return (int(digest[:16], 16) >> 11) / 2**53
