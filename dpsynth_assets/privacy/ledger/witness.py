"""Record that an installation keeps of its ledger, apart from it, so that a loss is noticed.

A ledger that was deleted, emptied, restored from an older copy or replaced by another database
verifies by itself: a hash chain shows no missing tail. The witness holds the number and the hash of
the last entry that this installation saw. A ledger without that entry is not the one that was
charged, and nothing is charged to it until a person has decided what to do.
"""

import json
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger.replacing import alone, owner_folder, replaced


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
