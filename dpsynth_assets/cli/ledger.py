"""`dpsynth ledger`: show what was spent, verify that nobody edited it, hand it on, recover it."""

import re
from dataclasses import asdict
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.terminal import AsJson, complain, show_json, show_table
from dpsynth_assets.files.whole_files import owner_folder, replaced
from dpsynth_assets.paths import Home, home, home_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.format import FormatError
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
from dpsynth_assets.privacy.ledger.export import History, HistoryLine, history, to_csv, to_json
from dpsynth_assets.sensitive.opened_ledger import unknown_releases

app = typer.Typer(no_args_is_help=True, help="Show, verify, export and recover the privacy ledger.")

LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", help="SQLAlchemy URL; default: DPSYNTH_LEDGER_URL or DPSYNTH_HOME."),
]


class ExportFormat(StrEnum):
    """How entries are written."""

    CSV = "csv"
    JSON = "json"


def open_ledger(url: str | None) -> Ledger:
    """Opens an existing ledger; looking at one never creates it."""
    url = url or home().ledger_url
    path = sqlite_path(url)
    seen = Witness(home().witness).load() if path is not None and url == home().ledger_url else None
    if path is not None and not path.exists() and seen is not None:
        raise PrivacyError(
            f"Expected the ledger with entry {seen.seq}, which this installation has seen, got no "
            f"file at {path}: it was deleted or moved. Restore it: `dpsynth ledger restore FILE`."
        )
    if path is not None and not path.exists():
        raise PrivacyError(
            f"Expected a ledger, got no file at {path}: nothing was charged yet. Run a release "
            "first, or name the ledger with --ledger."
        )
    return Ledger(url)


def ledger_if_any() -> Ledger | None:
    """The installation's ledger; None where nothing was charged yet. A lost one is refused."""
    place = Home(home_root())  # Looking begins no home.
    path = sqlite_path(place.ledger_url)
    if path is not None and not path.exists() and Witness(place.witness).load() is None:
        return None
    return open_ledger(None)


@app.command()
def show(
    cohort: Annotated[str | None, typer.Option(help="Show this cohort only.")] = None,
    last: Annotated[int, typer.Option(min=1, help="How many charges to list.")] = 50,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the last charges and what every cohort has spent."""
    told = history(open_ledger(ledger), cohort, last)
    if cohort is not None and not told.cohorts:
        raise PrivacyError(f"Expected a cohort of the ledger, got {cohort!r}: it has no entries.")
    if as_json:
        _print_json(told)
    else:
        _print_tables(told)


@app.command()
def verify(
    head: Annotated[str | None, typer.Option(help="A hash printed by an earlier `verify`.")] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check the hash chain; exit code 1 if an entry was altered, removed or reordered.

    Also compares what this machine's steps took for verified, if it is not what the chain says.
    """
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise typer.BadParameter(
            "Expected --head as 64 hexadecimal digits, as `dpsynth ledger verify` prints them, got "
            f"{len(head)} characters. Copy it whole."
        )
    url = ledger or home().ledger_url
    open_ledger(url)
    checkpoint = Checkpoint(home().root / "ledger", url)
    seen = Witness(home().witness).load() if ledger is None else None
    report = Ledger(url, checkpoint=checkpoint).verify(
        head or (None if seen is None else seen.hash)
    )
    if as_json:
        show_json(asdict(report))
    elif report.ok:
        typer.echo(f"The ledger verifies: {report.entries} entries, head {report.head}")
    else:
        complain(*map(str, report.problems))
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def head(
    entries: Annotated[
        int | None, typer.Option(min=1, help="Over so many first entries; default: all.")
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the head that proofs of exported packages lead to: publish it where all can see it.

    It seals public columns alone, so it may be published whatever the ledger holds.
    """
    from dpsynth_assets.privacy.ledger.proof import tree_head

    book = open_ledger(ledger)
    _ = book.head  # Refuses a ledger whose chain is broken.
    found = book.entries()
    if entries is not None and entries > len(found):
        raise PrivacyError(f"--entries: expected at most {len(found)}, got {entries}.")
    seen = tree_head(found[:entries])
    if as_json:
        show_json(asdict(seen))
    else:
        typer.echo(f"{seen.root} over {seen.entries} entries")


@app.command()
def export(
    file_format: Annotated[ExportFormat, typer.Option("--format")] = ExportFormat.CSV,
    output: Annotated[Path | None, typer.Option(help="File to write; default: stdout.")] = None,
    ledger: LedgerUrl = None,
) -> None:
    """Write every column of every entry as CSV or JSON."""
    entries = open_ledger(ledger).entries()
    text = to_csv(entries) if file_format is ExportFormat.CSV else to_json(entries)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text, encoding="utf-8")


def _print_json(told: History) -> None:
    document = {
        "charges": [asdict(line) for line in told.lines],
        "earlier_charges": told.omitted,
        "cohorts": [spend.to_json() for spend in told.cohorts],
        "datasets": [_dataset_facts(spend) for spend in told.datasets],
    }
    show_json(document)


def _print_tables(told: History) -> None:
    of_charge = ("ε alone", "ε so far", "ε left", "ex-post ε (not summed)")
    show_table(
        ("when", "cohort", "asset", "mechanism", "guarantee", *of_charge, "run"),
        map(_charge_row, told.lines),
        title="Charges",
        caption=_caption(told),
        numeric=of_charge,
        width=160,
    )
    of_cohort = ("ε guaranteed", "ε spent (reading)", "of", "ε left", "δ")
    words = ("guaranteed by", "accountant", "released", "not summed")
    show_table(
        ("cohort", "total guarantee", *of_cohort, *words),
        map(_total_row, told.cohorts),
        title="Totals",
        numeric=of_cohort,
        width=160,
    )
    of_dataset = ("ε guaranteed", "ε spent (reading)", "δ", "cohorts")
    if told.datasets:
        show_table(
            ("dataset", "total guarantee", *of_dataset, "composed"),
            map(_dataset_row, told.datasets),
            title="Datasets",
            numeric=of_dataset,
            width=160,
        )


def _dataset_row(spend: DatasetSpend) -> tuple[str, ...]:
    parallel = spend.composition == "parallel"
    return (
        spend.dataset,
        spend.total_guarantee,
        epsilon_up(spend.guaranteed_epsilon),
        epsilon_up(spend.epsilon),
        rounded_up(spend.delta),
        str(len(spend.cohorts)),
        "in parallel: the largest cohort" if parallel else "one after the other: the sum",
    )


def _dataset_facts(spend: DatasetSpend) -> dict[str, object]:
    facts = {name: value for name, value in vars(spend).items() if name != "cohorts"}
    for name in ("epsilon", "guaranteed_epsilon"):
        facts[name] = "inf" if facts[name] == inf else facts[name]
    return {**facts, "cohorts": [cohort.cohort for cohort in spend.cohorts]}


def _caption(told: History) -> str | None:
    if not told.omitted:
        return None
    return f"{told.omitted} earlier charges are counted but not listed (--last lists more)"


def _charge_row(line: HistoryLine) -> list[str]:
    state = line.guarantee if line.committed else f"{line.guarantee} (not committed)"
    return [
        line.recorded_at[:19],
        line.cohort,
        line.asset,
        line.mechanism,
        state,
        epsilon_up(line.epsilon_alone),
        epsilon_up(line.epsilon_cumulative),
        epsilon_down(line.epsilon_remaining),
        epsilon_up(line.ex_post_epsilon),
        line.run_id[:8],
    ]


def _total_row(spend: CohortSpend) -> list[str]:
    released = f"{spend.releases}"
    if spend.reserved_uncommitted:
        released += f" (+ {spend.reserved_uncommitted} charged, not committed)"
    return [
        spend.cohort,
        spend.total_guarantee,
        epsilon_up(spend.guaranteed_epsilon),
        epsilon_up(spend.epsilon),
        declared(spend.budget_epsilon),
        epsilon_down(spend.remaining_epsilon),
        rounded_up(spend.delta),
        spend.basis,
        spend.accountant,
        released,
        _not_summed(spend),
    ]


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


Because = Annotated[str, typer.Option("--because", help="Why; kept in the ledger, so public.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
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


@app.command()
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
    entry = Ledger(url).record_recovery(action, because.strip(), seen)
    Checkpoint(home().root / "ledger", url).remove()
    witness.replace(Seen(entry.seq, entry.hash, entry.recorded_at))
    return entry
