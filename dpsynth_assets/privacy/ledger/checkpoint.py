"""The book as of a verified entry, kept by one machine: a step then verifies only what is new.

A step is a process of its own, and would verify the whole chain before it charges anything. With a
checkpoint it begins where an earlier process of this machine ended, at an entry whose hash it finds
unchanged in the ledger. What that saves is verifying again that nobody altered earlier entries;
they cannot lower a sum any more, since sums come from the checkpoint. A ledger that was replaced or
cut off no longer holds the entry, and is refused.

Whoever may write the file may understate what was spent. It lies on the machine that reads private
data, for its owner alone, and so asks for no trust that its owner does not have. What an auditor
is told never rests on it: a verification reads the whole chain, and compares the file with it.

A check before a charge covers so: the digest of the checkpoint's sums, the entry they end with, the
chain from there to the last entry, and the witness. `verify`, which an audit and every release gate
run, covers every entry, the append-only triggers, and the checkpoint.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.charges import FilterSum
from dpsynth_assets.privacy.ledger.plans import Charges
from dpsynth_assets.privacy.ledger.replacing import owner_folder, replaced
from dpsynth_assets.privacy.ledger.schema import LedgerEntry
from dpsynth_assets.privacy.ledger.terms import BudgetTerms, SecretTerms

FORMAT = 9
"""To be raised with any change of what accounts hold, or of how entries are posted to them."""

ENTRIES_BETWEEN = 500
"""A process writes a new checkpoint once so many entries follow the last: 15 ms to verify."""

_OTHERS_MAY_WRITE = 0o022
_PLAIN = (
    "cohort",
    "dataset",
    "adaptive",
    "plan_json",
    "reserved",
    "committed",
    "has_ex_post",
    "largest_budget",
)


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
        return _book(stored) if stored["format"] == FORMAT else None

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
            f"the checkpoint {self.path} is not what these entries come to: the ledger is not the "
            "one it was made from, or the file was altered. Delete it once you know why"
        )


def _json(book: Book) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "seq": book.seq,
        "head": book.head,
        "partitions": book.partitions,
        "accounts": [_account_json(account) for account in book.accounts.values()],
    }


def _book(stored: dict[str, Any]) -> Book:
    """The very book, its maps in the order in which entries made them."""
    return Book(
        stored["seq"],
        stored["head"],
        accounts={row["cohort"]: _account(row) for row in stored["accounts"]},
        partitions=stored["partitions"],
    )


def _account_json(account: CohortAccount) -> dict[str, Any]:
    secret = account.secret
    return {
        **{name: getattr(account, name) for name in _PLAIN},
        "opened": account.opened.to_json(),
        "latest": account.latest.to_json(),
        "rho_units": f"{account.spent.units:x}",
        "sampled": account.spent.sampled,
        "charges": _rows(account.charges),
        "secret_charges": _rows(account.secret_charges),
        "secret": None if secret is None else asdict(secret),
        "public_facts": sorted(account.public_facts),
        "ex_post": account.ex_post,
    }


def _account(row: dict[str, Any]) -> CohortAccount:
    return CohortAccount(
        **{name: row[name] for name in _PLAIN},
        opened=BudgetTerms.from_json(row["opened"]),
        latest=BudgetTerms.from_json(row["latest"]),
        spent=FilterSum(int(row["rho_units"], 16), Counter(row["sampled"])),
        charges=_charges(row["charges"]),
        secret_charges=_charges(row["secret_charges"]),
        secret=None if row["secret"] is None else SecretTerms(**row["secret"]),
        public_facts=set(row["public_facts"]),
        ex_post=row["ex_post"],
    )


def _rows(charges: Charges) -> list[tuple[str, str, int]]:
    return [(asset, event_json, times) for (asset, event_json), times in charges.items()]


def _charges(rows: list[tuple[str, str, int]]) -> Charges:
    return Counter({(asset, event_json): times for asset, event_json, times in rows})
