"""Canaries as byte patterns, in every spelling that software on the way may have given them.

Thousands of patterns are looked up at once: the first eight bytes at every place of a content are
read as one number, and only places whose number a small table knows are compared in full. Time
grows with the content, hardly with the number of canaries.
"""

import base64
import html
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np

OPENING_BYTES = 8
"""Canaries and their spellings are at least as long; shorter ones would turn up by chance."""

_TABLE_BITS = 22
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_BLOCK_BYTES = 1 << 24


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
                f"Expected canaries of at least {OPENING_BYTES} bytes, got a shorter one (number "
                f"{short[0]}). Plant longer canaries."
            )
        self._patterns: dict[bytes, tuple[int, str]] = {}
        for number, text in enumerate(canaries):
            for spelling, pattern in spellings(text):
                if len(pattern) >= OPENING_BYTES:
                    self._patterns.setdefault(pattern, (number, spelling))
        lengths = defaultdict[bytes, set[int]](set)
        for pattern in self._patterns:
            lengths[pattern[:OPENING_BYTES]].add(len(pattern))
        self._lengths = {opening: sorted(found) for opening, found in lengths.items()}
        self._longest = max(map(len, self._patterns), default=0)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[_slots(np.frombuffer(b"".join(self._lengths), dtype="<u8"))] = True

    def __len__(self) -> int:
        """Number of patterns."""
        return len(self._patterns)

    def find(self, content: bytes) -> set[tuple[int, str]]:
        """Canaries in a content, each with the spelling it was found in."""
        found: set[tuple[int, str]] = set()
        for start in range(0, len(content), _BLOCK_BYTES):
            found.update(self._in_block(content[start : start + _BLOCK_BYTES + self._longest]))
        return found

    def _in_block(self, block: bytes) -> Iterator[tuple[int, str]]:
        for offset in range(OPENING_BYTES):
            whole = (len(block) - offset) // OPENING_BYTES
            if whole <= 0:
                return
            openings = np.frombuffer(block, dtype="<u8", count=whole, offset=offset)
            for index in np.flatnonzero(self._table[_slots(openings)]):
                place = offset + OPENING_BYTES * int(index)
                yield from self._at(block, place)

    def _at(self, block: bytes, place: int) -> Iterator[tuple[int, str]]:
        for length in self._lengths.get(block[place : place + OPENING_BYTES], ()):
            known = self._patterns.get(block[place : place + length])
            if known is not None:
                yield known


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


def _slots(openings: np.ndarray) -> np.ndarray:
    return (openings * _MULTIPLIER) >> np.uint64(64 - _TABLE_BITS)
