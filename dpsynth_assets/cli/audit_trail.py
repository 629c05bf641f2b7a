"""`dpsynth audit COHORT`: every spend, every released file, and whether all records agree."""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.ledger import LedgerUrl, open_ledger
from dpsynth_assets.cli.terminal import AsJson, answer, complain, refusals, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.report.audit_page import audit_page
from dpsynth_assets.report.audit_trail import AuditTrail, to_csv, to_json

TrailFormat = Literal["table", "csv", "json", "html"]


class CohortOrCommand(TyperGroup):
    """A group whose first word may be a cohort: `dpsynth audit tickets`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Takes a first word that names no command for a cohort."""
        if args and args[0] not in self.commands:
            args = ["cohort", *args]
        return super().resolve_command(ctx, args)


def cohort(
    name: Annotated[str, typer.Argument(metavar="COHORT")],
    file_format: Annotated[TrailFormat, typer.Option("--format")] = "table",
    output: Path | None = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Audit a cohort; exit code 1 if ledger, event log, stores and released files disagree.

    Args:
        name: A dataset, or a cohort of it.
        file_format: How the trail is written.
        output: File to write; default: stdout.
        ledger: SQLAlchemy URL; default: DPSYNTH_LEDGER_URL or DPSYNTH_HOME.
        as_json: Print JSON.
    """
    from dpsynth_assets.orchestration.assets.audit_trail import audit_trail
    from dpsynth_assets.orchestration.instance import dagster_instance
    from dpsynth_assets.orchestration.resources.stores import ReleaseStore

    book = open_ledger(ledger)
    with dagster_instance() as instance:
        trail = audit_trail(name, book, ReleaseStore(), instance)
    if not trail.spends:
        raise PrivacyError(f"Expected a cohort of the ledger, got {name!r}: it has no entries.")
    chosen = "json" if as_json else file_format
    if chosen == "table" and output is None:
        _print(trail)
    elif output is None:
        typer.echo(_rendered(trail, chosen))
    else:
        output.write_text(_rendered(trail, chosen), encoding="utf-8")
    if not trail.agrees:
        raise typer.Exit(1)


def used_by(
    name: Annotated[str, typer.Argument(metavar="COHORT")],
    record: str | None = None,
    unit: str | None = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the releases that read one record or one unit, and say nothing about any other.

    Args:
        name: A declared private dataset.
        record: Id of a record; `-` reads it from standard input.
        unit: Id of a unit, e.g. a user; `-` reads it from stdin.
        ledger: SQLAlchemy URL; default: DPSYNTH_LEDGER_URL or DPSYNTH_HOME.
        as_json: Print JSON.
    """
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore
    from dpsynth_assets.records import canonical_record_id
    from dpsynth_assets.records.record_filters import canonical_id_of

    spec = find_cohort(name)
    record, unit = _from_stdin(record), _from_stdin(unit)
    table = SensitiveStore().contributions(spec.name)
    if record is None and unit is None:
        raise typer.BadParameter("Expected --record or --unit, got neither.")
    with refusals(ValueError):
        if record is not None:
            reads = table.reads_of("record", canonical_record_id(spec, record, unit))
        else:
            reads = table.reads_of("unit", canonical_id_of(str(unit)))
    uses = _uses(spec, {read.reservation: read.read_at for read in reads}, ledger)
    facts = {"in_source": bool(reads), "releases": uses}
    answer(facts, as_json, lambda: _print_uses(uses))


def _from_stdin(value: str | None) -> str | None:
    """Reads an id from standard input, which no process list and no shell history shows."""
    return typer.get_text_stream("stdin").readline().strip() if value == "-" else value


def _uses(
    spec: PrivateDatasetSpec, reads: dict[str, str], ledger: str | None
) -> list[dict[str, str]]:
    """What the ledger says of the charges that read something; batches are nowhere recorded."""
    if not reads:
        return []
    from dpsynth_assets.report.audit_trail import entries_of, spends_of

    book = open_ledger(ledger)
    return [
        {
            "cohort": spend.cohort,
            "asset": spend.asset,
            "release": spend.release,
            "method": spend.mechanism,
            "data_version": spend.data_version,
            "guarantee": spend.guarantee,
            "state": spend.state,
            "read_at": reads[spend.reservation],
            "ledger_entry": str(spend.seq),
            "batches": "not recorded",
        }
        for spend in spends_of(book, entries_of(book.entries(), spec.name))
        if spend.reservation in reads
    ]


def _rendered(trail: AuditTrail, chosen: TrailFormat) -> str:
    if chosen == "csv":
        return to_csv(trail)
    return audit_page(trail) if chosen == "html" else to_json(trail)


def _print(trail: AuditTrail) -> None:
    columns: dict[str, Callable[[Any], str]] = {
        "entry": lambda spend: str(spend.seq),
        "when": lambda spend: spend.recorded_at[:19],
        "run": lambda spend: spend.run_id[:8],
        **{name: attrgetter(name) for name in ("asset", "release", "mechanism", "guarantee")},
        "state": lambda spend: spend.state,
        "ε alone": lambda spend: epsilon_up(spend.epsilon_alone),
        "ε so far": lambda spend: epsilon_up(spend.epsilon_cumulative),
        "ε left": lambda spend: epsilon_down(spend.epsilon_remaining),
    }
    show_table(trail.spends, columns, title=f"Spends of {trail.cohort}", width=160)
    typer.echo(f"{len(trail.files)} released files; ledger head {trail.ledger_head}")
    complain(*(f"{each.kind}: {each.subject}: {each.message}" for each in trail.findings))
    if trail.agrees:
        typer.echo("Ledger, event log, stored releases and released files agree.")


def _print_uses(uses: list[dict[str, str]]) -> None:
    if not uses:
        typer.echo("Not in the source of any release.")
        return
    names = ("asset", "release", "method", "data_version", "guarantee", "state", "read_at")
    show_table(uses, {name: itemgetter(name) for name in names}, width=140)
