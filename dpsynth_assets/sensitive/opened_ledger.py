"""The ledger as this installation opens it: with witness, checkpoint and stored releases."""

from collections.abc import Iterable
from pathlib import Path

from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger, LedgerEntry, Witness, sqlite_path


def opened_ledger(url: str) -> Ledger:
    """Connects to a ledger with what this installation remembers of it.

    Raises:
        LedgerIntegrityError: The installation remembers nothing, and holds stored releases that
            were paid for by charges which this ledger does not have.
    """
    witness = Witness(home().witness)
    if witness.load() is None:
        _expect_known_releases(url)
    return Ledger(url, checkpoint=Checkpoint(home().root / "ledger", url), witness=witness)


def unknown_releases(entries: Iterable[LedgerEntry]) -> int:
    """How many stored releases name a charge that is not among these entries."""
    folder = home().releases
    if not folder.exists():
        return 0
    names = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    return len(names - {entry.reservation for entry in entries})


def _expect_known_releases(url: str) -> None:
    """Refuses a ledger that lost charges together with the witness; asked where there is none."""
    file, folder = sqlite_path(url), home().releases
    if not isinstance(folder, Path) or not folder.exists():
        return
    unknown = unknown_releases(Ledger(url).entries() if file is None or file.exists() else ())
    if unknown:
        raise LedgerIntegrityError(
            f"Expected a ledger that holds the charges of all stored releases, got one without "
            f"those of {unknown}: it was deleted, replaced or rolled back. Nothing was charged. "
            "Restore it with `dpsynth ledger restore FILE`, or accept the loss with "
            "`dpsynth ledger accept`."
        )
