"""The ledger entries behind a package, each with its path to a head (`privacy.ledger.proof`)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.privacy.ledger.proof import ProvenEntry, TreeHead, leads_to, proven
from dpsynth_assets.privacy.ledger.schema import RECOVERY, RESERVE

PROOF_FILE = "ledger_proof.json"
SCHEMA = "dpsynth/ledger-proof/1"


@dataclass(frozen=True, kw_only=True)
class LedgerProof:
    """What a package shows of the ledger that paid for it.

    Attributes:
        head: Head that all paths lead to.
        package: The entry that names the package's files by their digests.
        entries: Every entry of the cohort and every recovery of the ledger, up to the one that the
            label was written after, and the package's own, in order.
    """

    head: TreeHead
    package: LedgerEntry
    entries: tuple[ProvenEntry, ...]

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry], reservation: str, last: int) -> "LedgerProof":
        """Collects the proof of one package.

        Args:
            entries: The whole ledger, in order.
            reservation: The package's own entry.
            last: Number of the entry that its label was written after.
        """
        package = next(e for e in entries if e.kind == RESERVE and e.reservation == reservation)
        head, shown = proven(entries, [*entries_behind(entries, package.cohort, last), package])
        return cls(head=head, package=package, entries=tuple(shown))

    def write(self, folder: Path) -> None:
        """Writes the proof into a package."""
        (folder / PROOF_FILE).write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        document = {
            "schema": SCHEMA,
            "head": vars(self.head),
            "package": self.package.reservation,
            "entries": [each.to_json() for each in self.entries],
        }
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def behind(self, last: int) -> list[LedgerEntry]:
        """Entries from which the label follows.

        Args:
            last: Number of the entry that the label was written after.

        Raises:
            PrivacyError: The proof shows others than these and the package's own.
        """
        shown = [each.entry for each in self.entries]
        behind = entries_behind(shown, self.package.cohort, last)
        if shown != [*behind, self.package]:
            raise PrivacyError("expected only the entries behind the label, got further ones.")
        return behind

    @classmethod
    def read(cls, folder: Path) -> "LedgerProof":
        """Reads a package's proof, and follows every path.

        Raises:
            PrivacyError: There is none, or it cannot be read, or an entry leads to another head.
        """
        try:
            found = cls._parsed((folder / PROOF_FILE).read_text(encoding="utf-8"))
            lost = [each.entry.seq for each in found.entries if not leads_to(each, found.head)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PrivacyError("expected a readable proof, got no file or another one.") from None
        if lost:
            raise PrivacyError(
                f"entry {lost[0]} does not lead to the head: the entry, its path or the head was "
                "altered."
            )
        return found

    @classmethod
    def _parsed(cls, text: str) -> "LedgerProof":
        stored = json.loads(text)
        entries = tuple(ProvenEntry.from_json(each) for each in stored["entries"])
        charges = {e.entry.reservation: e.entry for e in entries if e.entry.kind == RESERVE}
        head = TreeHead(int(stored["head"]["entries"]), str(stored["head"]["root"]))
        found = cls(head=head, package=charges[stored["package"]], entries=entries)
        places = [each.entry.seq for each in entries]
        if found._text() != text or places != sorted(set(places)):
            raise ValueError("Expected each entry once, in order, and nothing beside a proof.")
        return found


def entries_behind(entries: Sequence[LedgerEntry], cohort: str, last: int) -> list[LedgerEntry]:
    """Entries from which a label of a cohort follows, up to entry `last`."""
    seen = (each for each in entries if each.seq <= last)
    return [each for each in seen if each.cohort == cohort or each.kind == RECOVERY]
