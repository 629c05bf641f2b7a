"""`dpsynth ledger restore` and `accept`: what a person does once the ledger was lost."""

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.files.whole_files import owner_folder, replaced
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import (
    Checkpoint,
    Ledger,
    LedgerEntry,
    Seen,
    Witness,
    sqlite_path,
)
from dpsynth_assets.privacy.ledger.chain import is_linked
from dpsynth_assets.sensitive.opened_ledger import unknown_releases

Because = Annotated[str, typer.Option("--because", help="Why; kept in the ledger, so public.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def restore(
    backup: Annotated[Path, typer.Argument(help="A copy of the SQLite ledger.")],
    because: Because,
    yes: Yes = False,
) -> None:
    """Put a copy in the place of a lost ledger, if nothing is missing in it.

    The copy must verify and hold the last entry that this installation saw. The restoration is an
    entry of the ledger. A PostgreSQL ledger is restored with the tools of its server.
    """
    _require_reason(because)
    url, witness = home().ledger_url, Witness(home().witness)
    place, seen = sqlite_path(url), witness.load()
    if place is None:
        raise PrivacyError(
            "Expected a SQLite ledger, got a database server. Restore it with pg_restore; the next "
            "step compares it with what this installation has seen."
        )
    entries = _verified(backup)
    held = {entry.seq: entry.hash for entry in entries}
    if seen is not None and held.get(seen.seq) != seen.hash:
        raise PrivacyError(
            f"Expected a copy with entry {seen.seq}, which this installation has seen, got one of "
            f"{len(entries)} entries without it. Find a newer copy, or put this one in place by "
            "hand and record the loss with `dpsynth ledger accept`."
        )
    if seen is None and (unknown := unknown_releases(entries)):
        raise PrivacyError(
            f"Expected a copy with the charges of all stored releases, got one without those of "
            f"{unknown}. Find a newer copy, or put this one in place by hand and record the loss "
            "with `dpsynth ledger accept`."
        )
    _refuse_newer(place, url, held)
    if not yes:
        typer.confirm(f"Replace {place} by {backup}, {len(entries)} entries?", abort=True)
    _replace(place, backup.read_bytes())
    entry = _recorded(url, witness, seen, "restore", because)
    typer.echo(f"Restored {entry.seq - 1} entries; entry {entry.seq} records it.")


def accept(because: Because, yes: Yes = False) -> None:
    """Go on with a ledger in which entries are missing; the loss is recorded for good.

    What the lost entries charged is then counted nowhere. Every label and statement of this
    installation says so from now on.
    """
    _require_reason(because)
    url, witness = home().ledger_url, Witness(home().witness)
    seen = witness.load()
    ledger = Ledger(url)
    entries = ledger.entries()
    unknown = unknown_releases(entries)
    held = {entry.seq: entry.hash for entry in entries}
    if seen is None and not unknown:
        raise PrivacyError(
            "Expected a ledger that this installation has seen before, got none: nothing is "
            "missing, and nothing needs to be accepted."
        )
    if seen is not None and held.get(seen.seq) == seen.hash:
        raise PrivacyError(
            f"Expected a ledger without entry {seen.seq}, got one that holds it: nothing is "
            "missing, and nothing needs to be accepted."
        )
    if seen is not None:
        typer.echo(
            f"This installation has seen entry {seen.seq}; the ledger holds {len(entries)} entries "
            "without it."
        )
    typer.echo(f"{unknown} stored release(s) were paid for by charges that it does not hold.")
    if not yes:
        typer.confirm("Go on without them? What they charged is then counted nowhere.", abort=True)
    entry = _recorded(url, witness, seen, "accept", because)
    typer.echo(f"Accepted; entry {entry.seq} records it, and every label says so.")


def _verified(backup: Path) -> list[LedgerEntry]:
    if not backup.is_file():
        raise PrivacyError(f"Expected a copy of the ledger, got no file at {backup}.")
    copy = Ledger(f"sqlite:///{backup.resolve()}")
    report = copy.verify()
    if not report.ok:
        raise PrivacyError(
            f"Expected a copy that verifies, got {report.problems[0]}. Find another copy."
        )
    return copy.entries()


def _require_reason(because: str) -> None:
    if not because.strip():
        raise PrivacyError("Expected a reason in --because, got a blank. Say why, in a sentence.")


def _refuse_newer(place: Path, url: str, held: dict[int, str]) -> None:
    """Refuses to put a copy in the place of a ledger that is whole and holds more.

    Entries of another version are entries, too: those that this one cannot read are kept.
    """
    if not place.exists() or place.stat().st_size == 0:
        return
    try:
        entries = Ledger(url).entries()
    except PrivacyError:
        return  # It cannot be read: that is why it is restored.
    more = [entry.seq for entry in entries if held.get(entry.seq) != entry.hash]
    if more and is_linked(entries):
        raise PrivacyError(
            f"Expected a copy with every entry of the present ledger, got one without "
            f"{len(more)} of them, entry {more[0]} the first. The present ledger is whole: keep it."
        )


def _replace(place: Path, content: bytes) -> None:
    """Puts the copy in place in one step, for the owner alone."""
    with replaced(owner_folder(place.parent) / place.name) as new:
        new.write_bytes(content)
        place.with_name(f"{place.name}-journal").unlink(missing_ok=True)


def _recorded(
    url: str, witness: Witness, seen: Seen | None, action: str, because: str
) -> LedgerEntry:
    """Writes the entry and remembers the ledger from here on."""
    entry = Ledger(url).record_recovery(action, because.strip(), seen)
    Checkpoint(home().root / "ledger", url).remove()
    witness.replace(Seen(entry.seq, entry.hash, entry.recorded_at))
    return entry
