"""What an installation keeps of its ledger, apart from it: a witness, and verified sums.

**The witness.** A ledger that was deleted, emptied, restored from an older copy or replaced by
another database verifies by itself: a hash chain shows no missing tail. The witness holds the
number and the hash of the last entry that this installation saw. A ledger without that entry is not
the one that was charged, and nothing is charged to it until a person has decided what to do.

**The checkpoint.** It holds the book as of a verified entry, so that a step verifies only what is
new. A step is a process of its own, and would verify the whole chain before it charges anything.
With a checkpoint it begins where an earlier process of this machine ended, at an entry whose hash
it finds unchanged in the ledger. What that saves is verifying again that no person altered earlier
entries; they cannot lower a sum any more, since sums come from the checkpoint. A ledger that was
replaced or cut off no longer holds the entry, and is refused.

Who can write the file can understate what was spent. It lies on the machine that reads private
data, for its owner alone, and so asks for no trust that its owner does not have. What an auditor
is told never rests on it: a verification reads the whole chain, and compares the file with it.

A check before a charge covers: the digest of the checkpoint's sums, the entry they end with, the
chain from there to the last entry, and the witness. `verify`, which an audit and every release gate
run, covers every entry, the append-only triggers, and the checkpoint.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.actors import Approvals
from dpsynth_assets.privacy.ledger.charges import Charges, FilterSum
from dpsynth_assets.privacy.ledger.replacing import alone, owner_folder, replaced
from dpsynth_assets.privacy.ledger.schema import (
    ApprovalTerms,
    BudgetTerms,
    LedgerEntry,
    SecretTerms,
)


@dataclass(frozen=True)
class Seen:
    """The last entry that was seen.

    Attributes:
        seq: Its number, >= 1.
        hash: Its hash.
        recorded_at: When it was recorded, ISO 8601.
    """

    seq: int
    hash: str
    recorded_at: str


class Witness:
    """One installation's witness: a file for its owner alone, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Names the folder; it need not exist."""
        self.path = folder / "ledger.json"

    def load(self) -> Seen | None:
        """The state seen last; None where none was.

        Raises:
            LedgerIntegrityError: The file is there and cannot be read.
        """
        try:
            stored = json.loads(self.path.read_text())
            return Seen(int(stored["seq"]), str(stored["hash"]), str(stored["recorded_at"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise LedgerIntegrityError(
                f"Expected what this installation has seen of its ledger in {self.path}, got a "
                f"file that cannot be read ({type(problem).__name__}). Nothing was charged. "
                "Restore the file; delete it only once `dpsynth ledger verify --head HASH` shows "
                "that nothing is missing."
            ) from None

    def refuse_missing(self, file: Path | None) -> None:
        """Refuses to begin a new file where an earlier ledger was seen.

        Raises:
            LedgerIntegrityError: One was seen, and its file is gone.
        """
        if file is not None and not file.exists() and (seen := self.load()) is not None:
            raise _lost(seen, f"no file at {file}")

    def compare(self, book: Book, holds: Callable[[Seen], bool]) -> None:
        """Refuses a ledger without the last entry that this installation saw, or remembers more.

        Args:
            book: The ledger, up to the last entry that was read.
            holds: Says whether it holds an entry. Another process may have appended since the book
                was read: then the database knows more.

        Raises:
            LedgerIntegrityError: The entry is missing.
        """
        seen = self.load()
        if seen is not None and not holds(seen):
            raise _lost(seen, f"a ledger of {book.seq} entries without it")
        if book.seq and (seen is None or seen.seq < book.seq):
            self.note(Seen(book.seq, book.head, ""))

    def note(self, seen: Seen) -> None:
        """Remembers an entry, unless a later one was noted by another process."""
        with suppress(OSError), self._alone():
            known = self.load()
            if known is None or known.seq < seen.seq:
                self._write(seen)

    def replace(self, seen: Seen) -> None:
        """Remembers an entry of another ledger: a person has accepted or restored it."""
        with self._alone():
            self._write(seen)

    def _write(self, seen: Seen) -> None:
        for left in self.path.parent.glob(f".{self.path.name}.*"):
            left.unlink()  # Of a killed writer: one at a time is here.
        with replaced(self.path) as new:
            new.write_text(json.dumps(vars(seen)))

    def _alone(self) -> AbstractContextManager[None]:
        return alone(owner_folder(self.path.parent) / ".lock")


def _lost(seen: Seen, found: str) -> LedgerIntegrityError:
    when = f" of {seen.recorded_at}" if seen.recorded_at else ""
    return LedgerIntegrityError(
        f"Expected ledger entry {seen.seq}{when}, which this installation has seen, got {found}: "
        "the ledger was deleted, replaced or rolled back. Nothing was charged. Restore it with "
        "`dpsynth ledger restore FILE`, or accept the loss with `dpsynth ledger accept`."
    )


CHECKPOINT_FORMAT = 14
"""To be raised with any change of what accounts hold, or of how entries are posted to them."""

ENTRIES_BETWEEN = 500
"""A process writes a new checkpoint once this many entries follow the last: 15 ms to verify."""


_OTHERS_MAY_WRITE = 0o022


class Checkpoint:
    """One ledger's checkpoint on this machine."""

    def __init__(self, folder: Path, url: str) -> None:
        """Names the file; it need not exist.

        Args:
            folder: Folder of the owner's.
            url: The ledger's URL, whose digest names the file: ledgers do not share one. Nothing
                of its password goes into the name.
        """
        place = make_url(url).render_as_string(hide_password=True)
        name = hashlib.sha256(place.encode()).hexdigest()[:16]
        self.path = folder / f"verified-{name}.json"

    def load(self) -> Book | None:
        """The book that was saved; None without one, or one that is damaged or not ours."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                digest, body = file.readline().strip(), file.read()
        except OSError:
            return None
        ours = status.st_uid == os.getuid() and not status.st_mode & _OTHERS_MAY_WRITE
        if not ours or hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        stored = json.loads(body)
        return _book(stored) if stored["format"] == CHECKPOINT_FORMAT else None

    def save(self, book: Book) -> None:
        """Replaces the file; a disk that takes none costs time, and is no failure."""
        with suppress(OSError):
            owner_folder(self.path.parent)
            body = json.dumps(_json(book), separators=(",", ":")).encode()
            with replaced(self.path) as new:
                new.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)

    def remove(self) -> None:
        """Removes the file: the next process verifies the whole chain."""
        self.path.unlink(missing_ok=True)

    def problem(self, entries: Iterable[LedgerEntry]) -> str | None:
        """Replays the chain from its beginning and says where the checkpoint differs from it.

        Args:
            entries: All entries in order, of a chain that verifies.
        """
        kept = self.load()
        if kept is None:
            return None
        replayed = Book()
        for entry in islice(entries, kept.seq):
            replayed.post(entry)
        if kept == replayed:
            return None
        return (
            f"the checkpoint {self.path} does not match these entries: the ledger is not the one "
            "it was made from, or the file was altered. Delete it once you know why"
        )


def _json(book: Book) -> dict[str, Any]:
    accounts = [_coded(0, vars(each)) for each in book.accounts.values()]
    given = {cohort: asdict(each) for cohort, each in book.approvals.items()}
    return {**vars(book), "accounts": accounts, "approvals": given, "format": CHECKPOINT_FORMAT}


def _book(stored: dict[str, Any]) -> Book | None:
    """The very book, its maps in the order in which entries made them; None if a field is missing.

    A field that took its default would be read as less spent.
    """
    names = {each.name for each in fields(CohortAccount)}
    if any(row.keys() != names for row in stored["accounts"]):
        return None
    accounts = [CohortAccount(**_coded(1, row)) for row in stored["accounts"]]
    named = {each.cohort: each for each in accounts}
    approvals = {
        name: Approvals(
            **{**each, "standing": each["standing"] and ApprovalTerms(**each["standing"])}
        )
        for name, each in stored["approvals"].items()
    }
    return Book(stored["seq"], stored["head"], named, stored["partitions"], approvals)


def _coded(way: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of an account as JSON holds them (0), or as the account does (1)."""
    return {
        name: _CODED[name][way](value) if name in _CODED else value
        for name, value in fields.items()
    }


def _rows(charges: Charges) -> list[tuple[str, str, int]]:
    return [(asset, event_json, times) for (asset, event_json), times in charges.items()]


def _charges(rows: list[tuple[str, str, int]]) -> Charges:
    return Counter({(asset, event_json): times for asset, event_json, times in rows})


_CODED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "opened": (BudgetTerms.to_json, BudgetTerms.from_json),
    "latest": (BudgetTerms.to_json, BudgetTerms.from_json),
    "spent": (
        lambda spent: [f"{spent.units:x}", spent.sampled],
        lambda kept: FilterSum(int(kept[0], 16), Counter(kept[1])),
    ),
    "charges": (_rows, _charges),
    "secret_charges": (_rows, _charges),
    "secret": (lambda terms: terms and asdict(terms), lambda kept: kept and SecretTerms(**kept)),
    "public_facts": (sorted, set),
}
"""How fields of an account are written and read that JSON does not hold as they are."""
