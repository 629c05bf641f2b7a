"""Proof that some entries are in the ledger, for a reader who may not see the others.

The hash chain (`chain`) is verified by reading every entry. Here the same entries are the leaves of
a Merkle tree (RFC 9162, section 2.1): its head is one hash, and an entry is shown to belong to a
head by one sibling hash a level. The number of entries is hashed into the head, since the root of a
tree alone does not fix it. Who owns the ledger publishes heads (`dpsynth ledger head`); an entry
that is edited later no longer leads to a head that somebody has noted down.

**Privacy** A leaf holds the public columns of an entry alone; of a commit these include digests of
released rows or weights, functions of what its charge paid for. Realised ex-post bounds are
functions of private data without noise, and so are digests and signatures that seal them, and how
long a private stage took: they are in no leaf, which shows the day of a charge and no time of what
followed. So a head may be published for any ledger. The hash of an entry in the chain
may not (`report.label.public_head`), and a recovery, which names the last entry that was seen, is
shown without that entry's hash.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger.schema import COMMIT, RECOVERY, LedgerEntry, canonical_json

_WITHHELD: Mapping[str, Any] = {
    "run_id": "",
    "signature": None,
    "artifact_digest": None,
    "artifact_uri": None,
    "ex_post_epsilon": None,
    "previous_hash": "",
    "hash": "",
}
"""Columns that no leaf holds: private ones, what seals them, and places on the owner's machine."""

_SHOWN = frozenset(LedgerEntry._fields) - frozenset(_WITHHELD)

_SEEN = "seen"
"""Parameter of a recovery: the last entry before it, with its hash in the chain."""

_DAY = len("2026-01-01")
_MOST_ENTRIES = 1 << 63
_LEAF, _NODE, _HEAD = b"\x00", b"\x01", b"\x02"


@dataclass(frozen=True)
class TreeHead:
    """Head of the tree over the first entries of a ledger.

    Attributes:
        entries: How many entries it covers, >= 1.
        root: Hexadecimal SHA-256 over their number and the root of the tree.
    """

    entries: int
    root: str


@dataclass(frozen=True)
class ProvenEntry:
    """The public part of an entry, and the hashes that lead from it to a head.

    Attributes:
        entry: With the columns that no leaf holds left empty.
        path: Hexadecimal sibling hashes, lowest level first.
    """

    entry: LedgerEntry
    path: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Public columns and path as JSON values."""
        return {"entry": _public_columns(self.entry), "path": list(self.path)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ProvenEntry":
        """Reads what `to_json` wrote.

        Raises:
            PrivacyError: A column is missing or unknown, or has a value that no leaf holds.
        """
        columns = dict(stored["entry"])
        entry = LedgerEntry(**_WITHHELD, **columns) if set(columns) == _SHOWN else None
        if entry is None or _public_columns(entry) != columns:
            raise PrivacyError("expected the public columns of a ledger entry, got others.")
        return cls(entry, tuple(map(str, stored["path"])))


def tree_head(entries: Iterable[LedgerEntry]) -> TreeHead:
    """Computes the head of the tree over entries, in order.

    Raises:
        PrivacyError: There are no entries.
    """
    return _head(_levels([_leaf(entry) for entry in entries]))


def proven(
    entries: Sequence[LedgerEntry], chosen: Iterable[LedgerEntry]
) -> tuple[TreeHead, list[ProvenEntry]]:
    """Computes the head over all entries, and a path to it from each that was chosen.

    Args:
        entries: The whole ledger, in order.
        chosen: Entries of it.
    """
    levels = _levels([_leaf(entry) for entry in entries])
    shown = [ProvenEntry(_public_part(each), _path(levels, each.seq - 1)) for each in chosen]
    return _head(levels), shown


def leads_to(proof: ProvenEntry, head: TreeHead) -> bool:
    """Says whether an entry is the one of its number under a head.

    **Source** RFC 9162, section 2.1.3.2.
    """
    place, last = proof.entry.seq - 1, head.entries - 1
    if not 0 <= place <= last < _MOST_ENTRIES:
        return False
    found, path = _leaf(proof.entry), list(proof.path)
    while last > 0:
        if place % 2 or place < last:
            if not path:
                return False
            sibling = bytes.fromhex(path.pop(0))
            found = _node(sibling, found) if place % 2 else _node(found, sibling)
        place, last = place // 2, last // 2
    return not path and _sized(head.entries, found) == head.root


def _public_part(entry: LedgerEntry) -> LedgerEntry:
    """Empties the columns that no leaf holds."""
    shown = entry._replace(parameters_json=_told(entry), recorded_at=_day(entry))
    return shown._replace(**_WITHHELD)


def _public_columns(entry: LedgerEntry) -> dict[str, Any]:
    columns = {name: getattr(entry, name) for name in _SHOWN}
    return columns | {"parameters_json": _told(entry), "recorded_at": _day(entry)}


def _day(entry: LedgerEntry) -> str:
    """The day of an entry; none of a commit, which comes when a private stage has ended."""
    return "" if entry.kind == COMMIT else entry.recorded_at[:_DAY]


def _told(entry: LedgerEntry) -> str | None:
    """An entry's parameters; those of a recovery without the entry that was seen before it."""
    if entry.kind != RECOVERY:
        return entry.parameters_json
    return canonical_json({k: v for k, v in entry.parameters.items() if k != _SEEN})


def _leaf(entry: LedgerEntry) -> bytes:
    content = canonical_json(_public_columns(entry)).encode()
    return hashlib.sha256(_LEAF + content).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _head(levels: Sequence[Sequence[bytes]]) -> TreeHead:
    count = len(levels[0])
    return TreeHead(count, _sized(count, levels[-1][0]))


def _sized(entries: int, root: bytes) -> str:
    """Hashes the number of entries into a head: paths of a tree may lead to its root under another.

    **Source** The signed head of RFC 9162, section 4.10, holds the size of its tree for this.
    """
    return hashlib.sha256(_HEAD + entries.to_bytes(8, "big") + root).hexdigest()


def _levels(leaves: list[bytes]) -> list[list[bytes]]:
    """All levels, leaves first: neighbours are hashed together, an odd last one moves up as it is.

    That is the tree of RFC 9162, which splits at the largest power of two.
    """
    if not leaves:
        raise PrivacyError(
            "Expected entries in the ledger, got none: there is no head yet. Release first."
        )
    levels = [leaves]
    while len(below := levels[-1]) > 1:
        above = [_node(*below[i : i + 2]) for i in range(0, len(below) - 1, 2)]
        levels.append(above + below[len(above) * 2 :])
    return levels


def _path(levels: Sequence[Sequence[bytes]], place: int) -> tuple[str, ...]:
    path = []
    for level in levels[:-1]:
        if (place ^ 1) < len(level):
            path.append(level[place ^ 1].hex())
        place //= 2
    return tuple(path)
