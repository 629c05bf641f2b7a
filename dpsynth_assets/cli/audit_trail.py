"""`dpsynth audit COHORT`: every spend, every released file, and whether all records agree."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.ledger import LedgerUrl, open_ledger
from dpsynth_assets.cli.terminal import AsJson, complain, show_json, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.report.audit_page import audit_page
from dpsynth_assets.report.audit_trail import AuditTrail, to_csv, to_json


class TrailFormat(StrEnum):
    """How a trail is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


class CohortOrCommand(TyperGroup):
    """A group whose first word may be a cohort: `dpsynth audit tickets`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Takes a first word that names no command for a cohort."""
        if args and args[0] not in self.commands:
            args = ["cohort", *args]
        return super().resolve_command(ctx, args)


def cohort(
    name: Annotated[str, typer.Argument(metavar="COHORT", help="A dataset, or a cohort of it.")],
    file_format: Annotated[TrailFormat, typer.Option("--format")] = TrailFormat.TABLE,
    output: Annotated[Path | None, typer.Option(help="File to write; default: stdout.")] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Audit a cohort; exit code 1 if ledger, event log, stores and released files disagree."""
    from dpsynth_assets.orchestration.assets.audit_trail import audit_trail
    from dpsynth_assets.orchestration.instance import dagster_instance
    from dpsynth_assets.orchestration.resources.stores import ReleaseStore

    book = open_ledger(ledger)
    with dagster_instance() as instance:
        trail = audit_trail(name, book, ReleaseStore(), instance)
    if not trail.spends:
        raise PrivacyError(f"Expected a cohort of the ledger, got {name!r}: it has no entries.")
    chosen = TrailFormat.JSON if as_json else file_format
    if chosen is TrailFormat.TABLE and output is None:
        _print(trail)
    else:
        _write(_rendered(trail, chosen), output)
    if not trail.agrees:
        raise typer.Exit(1)


def used_by(
    name: Annotated[str, typer.Argument(metavar="COHORT", help="A declared private dataset.")],
    record: Annotated[
        str | None, typer.Option(help="Id of a record; `-` reads it from standard input.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Id of a unit, e.g. a user; `-` reads it from stdin.")
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the releases that read one record or one unit, and say nothing about any other."""
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore
    from dpsynth_assets.records import canonical_record_id
    from dpsynth_assets.records.record_filters import canonical_id_of

    spec = find_cohort(name)
    record, unit = _from_stdin(record), _from_stdin(unit)
    table = SensitiveStore().contributions(spec.name)
    try:
        if record is not None:
            reads = table.reads_of("record", canonical_record_id(spec, record, unit))
        elif unit is not None:
            reads = table.reads_of("unit", canonical_id_of(unit))
        else:
            raise typer.BadParameter("Expected --record or --unit, got neither.")
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    uses = _uses(spec, {read.reservation: read.read_at for read in reads}, ledger)
    if as_json:
        show_json({"in_source": bool(reads), "releases": uses})
    else:
        _print_uses(uses)


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
    if chosen is TrailFormat.CSV:
        return to_csv(trail)
    return audit_page(trail) if chosen is TrailFormat.HTML else to_json(trail)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text, encoding="utf-8")


def _print(trail: AuditTrail) -> None:
    columns = ("entry", "when", "run", "asset", "release", "mechanism", "guarantee", "state")
    numeric = ("ε alone", "ε so far", "ε left")
    rows = (
        (
            str(spend.seq),
            spend.recorded_at[:19],
            spend.run_id[:8],
            *(spend.asset, spend.release, spend.mechanism, spend.guarantee, spend.state),
            epsilon_up(spend.epsilon_alone),
            epsilon_up(spend.epsilon_cumulative),
            epsilon_down(spend.epsilon_remaining),
        )
        for spend in trail.spends
    )
    title = f"Spends of {trail.cohort}"
    show_table((*columns, *numeric), rows, title=title, numeric=numeric, width=160)
    typer.echo(f"{len(trail.files)} released files; ledger head {trail.ledger_head}")
    complain(*(f"{each.kind}: {each.subject}: {each.message}" for each in trail.findings))
    if trail.agrees:
        typer.echo("Ledger, event log, stored releases and released files agree.")


def _print_uses(uses: list[dict[str, str]]) -> None:
    if not uses:
        typer.echo("Not in the source of any release.")
        return
    names = ("asset", "release", "method", "data_version", "guarantee", "state", "read_at")
    show_table(names, ([use[name] for name in names] for use in uses), width=140)
