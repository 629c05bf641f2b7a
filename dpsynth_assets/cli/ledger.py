"""`dpsynth ledger`: show what was spent, verify that it was not edited, recover it."""

import re
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.cohorts import CohortIfAny
from dpsynth_assets.cli.terminal import AsJson, answer, complain, say, show_table
from dpsynth_assets.paths import Home, actor, home, home_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.privacy.errors import FormatError, PrivacyError
from dpsynth_assets.privacy.ledger import (
    Checkpoint,
    CohortSpend,
    DatasetSpend,
    Ledger,
    LedgerEntry,
    Seen,
    Witness,
    sqlite_path,
)
from dpsynth_assets.privacy.ledger.chain import is_linked
from dpsynth_assets.privacy.ledger.export import History, history
from dpsynth_assets.privacy.ledger.replacing import owner_folder, replaced
from dpsynth_assets.privacy.ledger.schema import RECOVERY, short_actor
from dpsynth_assets.releases.store import unknown_releases

app = typer.Typer(no_args_is_help=True, help="Show, verify and recover the privacy ledger.")


def open_ledger() -> Ledger:
    """Opens an existing ledger; looking at one never creates it."""
    path = sqlite_path(home().ledger_url)
    if path is None or path.exists():
        return Ledger(home().ledger_url)
    seen = Witness(home().witness).load()
    if seen is None:
        raise PrivacyError(
            f"Expected a ledger, got no file at {path}: nothing was charged yet. Run a release "
            "first, or name the ledger in DPSYNTH_LEDGER_URL."
        )
    raise PrivacyError(
        f"Expected the ledger with entry {seen.seq}, which this installation has seen, got no "
        f"file at {path}: it was deleted or moved. Restore it: `dpsynth ledger restore FILE`."
    )


def ledger_if_any() -> Ledger | None:
    """The installation's ledger; None where nothing was charged yet. A lost one is refused."""
    place = Home(home_root())  # Looking begins no home.
    path = sqlite_path(place.ledger_url)
    if path is not None and not path.exists() and Witness(place.witness).load() is None:
        return None
    return open_ledger()


@app.command()
def show(
    cohort: CohortIfAny = None,
    last: Annotated[int, typer.Option(min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the last charges and what every cohort has spent.

    Args:
        cohort: Show this cohort only; default: all.
        last: How many charges to list.
        as_json: Print JSON.
    """
    told = history(open_ledger(), cohort, last)
    if cohort is not None and not told.cohorts:
        raise PrivacyError(f"Expected a cohort of the ledger, got {cohort!r}: it has no entries.")
    answer(_facts(told), as_json, lambda: _print(told))


@app.command()
def verify(head: str | None = None, as_json: AsJson = False) -> None:
    """Check the hash chain; exit code 1 if an entry was altered, removed or reordered.

    Also fails if this machine's checkpoint of verified entries differs from the chain.

    Args:
        head: A hash printed by an earlier `verify`.
        as_json: Print JSON.
    """
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise typer.BadParameter(
            "Expected --head as 64 hexadecimal digits, as `dpsynth ledger verify` prints them, got "
            f"{len(head)} characters. Copy it whole."
        )
    open_ledger()
    url, seen = home().ledger_url, Witness(home().witness).load()
    checkpoint = Checkpoint(home().root / "ledger", url)
    known = head or (None if seen is None else seen.hash)
    report = Ledger(url, checkpoint=checkpoint).verify(known)
    if report.ok:
        told = partial(say, f"The ledger verifies: {report.entries} entries, head {report.head}")
    else:
        told = partial(complain, *map(str, report.problems))
    answer(asdict(report), as_json, told, code=0 if report.ok else 1)


@app.command()
def head(
    entries: Annotated[int | None, typer.Option(min=1)] = None, as_json: AsJson = False
) -> None:
    """Print the ledger head that proofs of exported packages refer to.

    Publish it where every reader can see it. It is computed from public columns only, so it may
    always be published.

    Args:
        entries: Use only the first ENTRIES entries; default: all.
        as_json: Print JSON.
    """
    from dpsynth_assets.privacy.ledger.proof import tree_head

    book = open_ledger()
    book.head()  # Refuses a ledger whose chain is broken.
    found = book.entries()
    if entries is not None and entries > len(found):
        raise PrivacyError(f"--entries: expected at most {len(found)}, got {entries}.")
    seen = tree_head(found[:entries])
    answer(asdict(seen), as_json, lambda: say(f"{seen.root} over {seen.entries} entries"))


def _facts(told: History) -> dict[str, object]:
    return {
        "charges": [asdict(line) for line in told.lines],
        "earlier_charges": told.omitted,
        "cohorts": [spend.to_json() for spend in told.cohorts],
        "datasets": [_dataset_facts(spend) for spend in told.datasets],
    }


def _dataset_facts(spend: DatasetSpend) -> dict[str, object]:
    facts = {name: "inf" if value == inf else value for name, value in vars(spend).items()}
    return {**facts, "cohorts": [cohort.cohort for cohort in spend.cohorts]}


_SPENT = {
    "total guarantee": lambda spend: spend.total_guarantee,
    "ε guaranteed": lambda spend: epsilon_up(spend.guaranteed_epsilon),
    "ε spent (odometer)": lambda spend: epsilon_up(spend.epsilon),
}


def _print(told: History) -> None:
    columns = {
        "when": lambda line: line.recorded_at[:16].replace("T", " "),
        "cohort": lambda line: line.cohort,
        "asset": lambda line: line.asset,
        "mechanism": lambda line: line.mechanism,
        "guarantee": lambda line: f"{line.guarantee}{'' if line.committed else _NOT_COMMITTED}",
        "ε alone": lambda line: epsilon_up(line.epsilon_alone),
        "ε so far": lambda line: epsilon_up(line.epsilon_cumulative),
        "ε left": lambda line: epsilon_down(line.epsilon_remaining),
        "ex-post ε (not summed)": lambda line: epsilon_up(line.ex_post_epsilon),
        "run": lambda line: line.run_id[:8],
        "by": lambda line: short_actor(line.acted_by),
    }
    more = f"{told.omitted} earlier charges are counted but not listed (--last lists more)"
    caption = more if told.omitted else None
    wraps = ("cohort", "asset", "guarantee", "by")
    show_table(told.lines, columns, title="Charges", caption=caption, wraps=wraps, width=160)
    columns = {
        "cohort": lambda spend: spend.cohort,
        **_SPENT,
        "of": lambda spend: declared(spend.budget_epsilon),
        "ε left": lambda spend: epsilon_down(spend.remaining_epsilon),
        "δ": lambda spend: rounded_up(spend.delta),
        "guaranteed by": lambda spend: spend.basis,
        "accountant": lambda spend: spend.accountant,
        "released": _released,
        "not summed": _not_summed,
    }
    show_table(told.cohorts, columns, title="Totals", width=160)
    columns = {
        "dataset": lambda spend: spend.dataset,
        **_SPENT,
        "δ": lambda spend: rounded_up(spend.delta),
        "cohorts": lambda spend: str(len(spend.cohorts)),
        "composed": lambda spend: _COMPOSED[spend.composition == "parallel"],
    }
    if told.datasets:
        show_table(told.datasets, columns, title="Datasets", width=160)


_NOT_COMMITTED = " (not committed)"
_COMPOSED = "one after the other: the sum", "in parallel: the largest cohort"


def _released(spend: CohortSpend) -> str:
    charged = f" (+ {spend.reserved_uncommitted} charged, not committed)"
    return f"{spend.releases}{charged if spend.reserved_uncommitted else ''}"


def _not_summed(spend: CohortSpend) -> str:
    apart = []
    if spend.has_ex_post:
        apart.append(f"ex-post releases (largest bound {epsilon_up(spend.ex_post_epsilon_max)})")
    if spend.secret_posterior is not None:
        apart.append(
            f"secrets (posterior {rounded_up(spend.secret_posterior, '.4g')} of prior "
            f"{declared(spend.secret_prior)})"
        )
    return ", ".join(apart) or "nothing"


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("Expected a reason, got blank text. Write a sentence.")
    return text.strip()


Because = Annotated[str, typer.Option(callback=_reason, help="Reason; public in the ledger.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
def restore(backup: Path, because: Because, yes: Yes = False) -> None:
    """Replace a lost ledger by a complete copy.

    The copy must verify and hold the last entry that this installation saw. The restoration is an
    entry of the ledger. A PostgreSQL ledger is restored with the tools of its server.

    Args:
        backup: A copy of the SQLite ledger.
        because: The reason; the ledger keeps it, and it is public.
        yes: Do not ask for confirmation.
    """
    url, witness = home().ledger_url, Witness(home().witness)
    place, seen = sqlite_path(url), witness.load()
    if place is None:
        raise PrivacyError(
            "Expected a SQLite ledger, got a database server. Restore it with pg_restore; the "
            "next charge or audit compares it with what this installation has seen."
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


@app.command()
def accept(because: Because, yes: Yes = False) -> None:
    """Continue with a ledger in which entries are missing, and record the loss.

    The charges of the lost entries are then counted nowhere. Every label and statement of this
    installation says so from now on.
    """
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
        typer.confirm("Continue without them? Their charges are then counted nowhere.", abort=True)
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


def _refuse_newer(place: Path, url: str, held: dict[int, str]) -> None:
    """Refuses to put a copy in the place of one that is whole and holds more, or of another format.

    What is not even a charge is an entry, too.
    """
    if not place.exists() or place.stat().st_size == 0:
        return
    try:
        entries = Ledger(url).entries()
    except FormatError:
        raise
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
    told = {"action": action, "because": because, "seen": None if seen is None else vars(seen)}
    entry = Ledger(url, actor=actor).record(RECOVERY, told)
    Checkpoint(home().root / "ledger", url).remove()
    witness.replace(Seen(entry.seq, entry.hash, entry.recorded_at))
    return entry
