"""Reservations of a long ledger: kept in an indexed file, read one by one, and new ones in memory.

A step asks after a handful of reservations, and a ledger has tens of thousands. So a checkpoint
keeps them in a file of its own (SQLite, beside the checkpoint), in which a step looks up what it
needs. Sums never come from here: they are in the checkpoint, under its digest. A row is no charge
and no commit by itself: it counts only where the ledger holds the entry, which every look-up asks.
An altered row could make a release be paid for again, or be refused as altered; it cannot lower
what was spent, and it cannot make private data be read without a charge.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger.replacing import replaced
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE

Value = TypeVar("Value")
Committed = tuple[str | None, str | None]
KindsOf = Callable[[str], Collection[str]]
"""Kinds of the entries that a ledger holds of a reservation."""

_TABLES = (
    """CREATE TABLE kept (reservation TEXT PRIMARY KEY, key TEXT, place INTEGER, committed INTEGER,
       digest TEXT, uri TEXT) WITHOUT ROWID""",
    "CREATE INDEX kept_of_key ON kept (key)",
    "CREATE TABLE held (reserved INTEGER, committed INTEGER)",
    "INSERT INTO held VALUES (0, 0)",
)


def no_kinds(_: str) -> Collection[str]:
    """Answers for no ledger: nothing is in it."""
    return ()


class KeptReservations:
    """Reservations that the checkpoint of a machine has verified, by id and by key.

    Look-ups return what the ledger holds as well. A process that was killed between writing this
    file and its checkpoint leaves rows that no checkpoint means; if the ledger is then rolled back,
    these rows are of charges that were lost.

    Attributes:
        reserved: Number of them: the first so many of the ledger.
        committed: Number of commits among the same entries.
    """

    def __init__(
        self, path: Path, reserved: int, committed: int, kinds_of: KindsOf = no_kinds
    ) -> None:
        """Names the file and how much of it is meant: it may hold later entries as well.

        Args:
            path: The file.
            reserved: Number of reservations that are meant.
            committed: Number of commits that are meant.
            kinds_of: Asks the ledger; without it, no look-up finds anything.
        """
        self.path, self.reserved, self.committed = path, reserved, committed
        self._kinds_of = kinds_of

    @property
    def is_whole(self) -> bool:
        """Whether the file is there and holds all that is meant."""
        try:
            (held,) = self._rows("SELECT reserved, committed FROM held")
        except (LedgerIntegrityError, ValueError):
            return False
        return int(held[0]) >= self.reserved and int(held[1]) >= self.committed

    def key_of(self, reservation: str) -> str | None:
        """Key of a reservation."""
        query = "SELECT key FROM kept WHERE reservation = ? AND place <= ?"
        rows = self._rows(query, reservation, self.reserved)
        return next((key for (key,) in rows if RESERVE in self._kinds_of(reservation)), None)

    def commit_of(self, reservation: str) -> Committed | None:
        """Digest and address that were committed for a reservation."""
        query = "SELECT digest, uri FROM kept WHERE reservation = ? AND committed <= ?"
        rows = self._rows(query, reservation, self.committed)
        return next((row for row in rows if COMMIT in self._kinds_of(reservation)), None)

    def of_key(self, key: str) -> list[str]:
        """Reservations of a key, in order."""
        query = "SELECT reservation FROM kept WHERE key = ? AND place <= ? ORDER BY place"
        rows = self._rows(query, key, self.reserved)
        return [name for (name,) in rows if RESERVE in self._kinds_of(name)]

    def released(self, key: str) -> str | None:
        """The reservation of a key that was committed first."""
        query = "SELECT reservation FROM kept WHERE key = ? AND committed <= ? ORDER BY committed"
        rows = self._rows(query, key, self.committed)
        return next((name for (name,) in rows if COMMIT in self._kinds_of(name)), None)

    def all_reserved(self) -> Iterator[tuple[str, str]]:
        """Every reservation with its key, in order."""
        query = "SELECT reservation, key FROM kept WHERE place <= ? ORDER BY place"
        yield from self._rows(query, self.reserved)

    def all_committed(self) -> Iterator[tuple[str, Committed]]:
        """Every committed reservation with digest and address, in order of the commits."""
        query = "SELECT reservation, digest, uri FROM kept WHERE committed <= ? ORDER BY committed"
        for name, digest, uri in self._rows(query, self.committed):
            yield name, (digest, uri)

    def with_later(
        self, reserved: Mapping[str, str], committed: Mapping[str, Committed]
    ) -> "KeptReservations":
        """Adds later entries to the file, and removes others that stand in their places.

        Raises:
            sqlite3.Error: The file cannot be written.
        """
        added = KeptReservations(
            self.path, self.reserved + len(reserved), self.committed + len(committed)
        )
        with closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            self._remove_others(connection, added, reserved, committed)
            connection.executemany(
                "INSERT INTO kept VALUES (?, ?, ?, NULL, NULL, NULL) "
                "ON CONFLICT (reservation) DO UPDATE SET key = excluded.key, "
                "place = excluded.place",
                ((n, key, self.reserved + i) for i, (n, key) in enumerate(reserved.items(), 1)),
            )
            connection.executemany(
                "UPDATE kept SET committed = ?, digest = ?, uri = ? WHERE reservation = ?",
                (
                    (self.committed + i, digest, uri, name)
                    for i, (name, (digest, uri)) in enumerate(committed.items(), 1)
                ),
            )
            connection.execute(
                "UPDATE held SET reserved = max(reserved, ?), committed = max(committed, ?)",
                (added.reserved, added.committed),
            )
        return added

    def _remove_others(
        self,
        connection: sqlite3.Connection,
        added: "KeptReservations",
        reserved: Collection[str],
        committed: Collection[str],
    ) -> None:
        """Removes what a lost end of the ledger left in the places that are about to be filled.

        What lies beyond them may be of another process that knows more of this ledger: it stays.
        """
        places = "SELECT reservation FROM kept WHERE place > ? AND place <= ?"
        found = connection.execute(places, (self.reserved, added.reserved)).fetchall()
        connection.executemany(
            "DELETE FROM kept WHERE reservation = ?",
            [row for row in found if row[0] not in reserved],
        )
        commits = "SELECT reservation FROM kept WHERE committed > ? AND committed <= ?"
        found = connection.execute(commits, (self.committed, added.committed)).fetchall()
        connection.executemany(
            "UPDATE kept SET committed = NULL, digest = NULL, uri = NULL WHERE reservation = ?",
            [row for row in found if row[0] not in committed],
        )

    @classmethod
    def written_anew(
        cls, path: Path, reserved: Mapping[str, str], committed: Mapping[str, Committed]
    ) -> "KeptReservations":
        """Replaces the file by one of these entries, for its owner alone.

        Raises:
            OSError, sqlite3.Error: The file cannot be written.
        """
        with replaced(path) as new:
            empty = cls(new, 0, 0)
            with closing(empty._connect()) as connection, connection:
                for statement in _TABLES:
                    connection.execute(statement)
            filled = empty.with_later(reserved, committed)
        return cls(path, filled.reserved, filled.committed)

    def _connect(self) -> sqlite3.Connection:
        """Opens the file for one question: forked processes must not share a connection."""
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=rw", uri=True, timeout=60)

    def _rows(self, query: str, *values: object) -> list[Any]:
        try:
            with closing(self._connect()) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error as problem:
            raise LedgerIntegrityError(
                f"Expected reservations of the ledger in {self.path}, got a file that cannot be "
                f"read ({problem}). Nothing was charged. Delete it: it is made anew."
            ) from None


class Layered(MutableMapping[str, Value], Generic[Value]):
    """A map whose older part is looked up in a file, and whose newer part is in memory."""

    def __init__(
        self,
        look_up: Callable[[str], Value | None],
        everything: Callable[[], Iterator[tuple[str, Value]]],
        count: int,
    ) -> None:
        """Takes the older part as a look-up, as an iterator, and as a number."""
        self.later: dict[str, Value] = {}
        self._look_up, self._everything, self._count = look_up, everything, count

    def __getitem__(self, name: str) -> Value:
        found = self.later[name] if name in self.later else self._look_up(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: Value) -> None:
        self.later[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("Expected a ledger to grow, got a removal.")

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, _ in self._everything())
        yield from self.later

    def __len__(self) -> int:
        return self._count + len(self.later)

    def __eq__(self, other: object) -> bool:
        """Compares names, values and their order, like the maps of a book that was replayed."""
        if not isinstance(other, Mapping):
            return NotImplemented
        mine = [*self._everything(), *self.later.items()]
        return mine == list(other.items())

    __hash__ = None  # type: ignore[assignment]
