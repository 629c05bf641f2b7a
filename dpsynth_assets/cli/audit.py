"""`dpsynth audit`: audits a cohort's charges, and tests the mechanisms against their claims.

`audit COHORT` shows every spend and every released file, and whether all records agree; `audit run`
tests mechanisms, and `audit run COHORT` measures how far rounding moves logits of the cohort's own
model, here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer.core import TyperGroup

from dpsynth_assets.attacks.audits import latest_results, run_audits, save_results
from dpsynth_assets.attacks.audits.audit import Audit, AuditResult
from dpsynth_assets.attacks.logit_moves import NAME, PassShape
from dpsynth_assets.cli.cohorts import CohortIfAny, find_cohort, public_base
from dpsynth_assets.cli.ledger import open_ledger
from dpsynth_assets.cli.terminal import (
    AsJson,
    answer,
    complain,
    progress_bar,
    refusals,
    refuse,
    say,
    show_table,
)
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.audits import AUDITS, find_audit
from dpsynth_assets.methods.private_prediction.decoding import cohort_audit, settings_of, slack_file
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.report.audit_page import SPENDS, audit_page
from dpsynth_assets.report.audit_trail import AuditTrail, to_csv, to_json

TrailFormat = Literal["table", "csv", "json", "html"]


class CohortOrCommand(TyperGroup):
    """A group whose first word may be a cohort: `dpsynth audit tickets`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Takes a first word that names no command for a cohort."""
        if args and args[0] not in self.commands:
            args = ["cohort", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=CohortOrCommand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="`dpsynth audit COHORT` checks the records of what a cohort spent and released. `run`, "
    "`show` and `list` concern audits, which test privacy mechanisms against their claims.",
)


@app.command()
def cohort(
    name: Annotated[str, typer.Argument(metavar="COHORT")],
    file_format: Annotated[TrailFormat, typer.Option("--format")] = "table",
    output: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Audit a cohort; exit code 1 if ledger, event log, stores and released files disagree.

    Args:
        name: A dataset, or a cohort of it.
        file_format: How the trail is written.
        output: File to write; default: stdout.
        as_json: Print JSON.
    """
    from dpsynth_assets.orchestration.assets.audit_trail import audit_trail
    from dpsynth_assets.orchestration.instance import dagster_instance
    from dpsynth_assets.orchestration.resources.stores import ReleaseStore

    book = open_ledger()
    with dagster_instance() as instance:
        trail = audit_trail(name, book, ReleaseStore(), instance)
    if not trail.spends:
        raise PrivacyError(f"Expected a cohort of the ledger, got {name!r}: it has no entries.")
    chosen = "json" if as_json else file_format
    if chosen == "table" and output is None:
        _print_trail(trail)
    elif output is None:
        typer.echo(_rendered(trail, chosen))
    else:
        output.write_text(_rendered(trail, chosen), encoding="utf-8")
    if not trail.agrees:
        raise typer.Exit(1)


@app.command("used-by")
def used_by(
    name: Annotated[str, typer.Argument(metavar="COHORT")],
    record: str | None = None,
    unit: str | None = None,
    as_json: AsJson = False,
) -> None:
    """List the releases that read one record or one privacy unit, and no other record.

    Args:
        name: A declared private dataset.
        record: Id of a record; `-` reads it from standard input.
        unit: Id of a privacy unit, e.g. a user; `-` reads it from standard input.
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
    uses = _uses(spec, {read.reservation: read.read_at for read in reads})
    facts = {"in_source": bool(reads), "releases": uses}
    answer(facts, as_json, lambda: _print_uses(uses))


def _from_stdin(value: str | None) -> str | None:
    """Reads an id from standard input, which no process list and no shell history shows."""
    return typer.get_text_stream("stdin").readline().strip() if value == "-" else value


def _uses(spec: PrivateDatasetSpec, reads: dict[str, str]) -> list[dict[str, str]]:
    """What the ledger says of the charges that read something; batches are nowhere recorded."""
    if not reads:
        return []
    from dpsynth_assets.report.audit_trail import entries_of, spends_of

    book = open_ledger()
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


def _print_trail(trail: AuditTrail) -> None:
    left_out = {"ε added to the total", "ε guaranteed", "charged by", "launched by", "builds on"}
    columns = {name: cell for name, cell in SPENDS.items() if name not in left_out}
    show_table(trail.spends, columns, title=f"Spends of {trail.cohort}", width=160)
    typer.echo(f"{len(trail.files)} released files; ledger head {trail.ledger_head}")
    complain(*(f"{each.kind}: {each.subject}: {each.message}" for each in trail.findings))
    if trail.agrees:
        typer.echo("Ledger, event log, stored releases and released files agree.")


def _print_uses(uses: list[dict[str, str]]) -> None:
    if not uses:
        typer.echo("No release read a source with this record or unit.")
        return
    names = ("asset", "release", "method", "data_version", "guarantee", "state", "read_at")
    show_table(uses, {name: itemgetter(name) for name in names}, width=140)


@app.command()
def run(
    cohort: CohortIfAny = None,
    only: Annotated[list[str] | None, typer.Option("--only")] = None,
    with_planted_bugs: bool = False,
    as_json: AsJson = False,
) -> None:
    """Run the audits and store the results; exit code 1 if an audit fails or misses a bug.

    Args:
        cohort: Instead measure how far rounding changes the logits of this cohort's model
            (logit-slack). Reads public contexts only.
        only: Name of an audit; may be repeated.
        with_planted_bugs: Also check that each audit notices the bugs planted for it.
        as_json: Print JSON.
    """
    chosen = _chosen(only)
    with progress_bar(quiet=as_json) as report:
        if cohort is None:
            results = run_audits(chosen, report, with_planted_bugs=with_planted_bugs)
            save_results(home().audits, results)
        else:
            with refusals(ValueError, FileNotFoundError):
                audit, settings = _of_cohort(cohort, only, report)
                results = run_audits([audit], report, with_planted_bugs=with_planted_bugs)
            kept = [replace(each, settings=settings) for each in results if each.bug is None]
            save_results(slack_file(), kept)  # Where plans look for them.
    if cohort is not None and not as_json:
        least = rounded_up(results[0].observed, ".3g")
        say(
            f"Largest change of a logit ({results[0].note}): {least}. Declare a logit_slack above "
            "0 and at least this large; plans charge for it. Larger changes remain possible."
        )
    _show(results, as_json)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the last result of every audit; exit code 1 if one failed or none was run."""
    with refusals(ValueError):
        results = latest_results(home().audits, with_planted_bugs=True)
        results += latest_results(slack_file())
    if not results:
        refuse(f"Expected audit results, got no file at {home().audits}. Run `dpsynth audit run`.")
    _show(results, as_json)


@app.command("list")
def list_audits() -> None:
    """List the audits, and the bugs that each audit notices."""
    columns = {
        "audit": lambda each: each.name,
        "claim": lambda each: each.claim,
        "kind": lambda each: str(each.kind),
        "bugs that it notices": lambda each: ", ".join(each.planted),
    }
    show_table(AUDITS, columns, width=120)


def _chosen(names: Sequence[str] | None) -> tuple[Audit, ...]:
    with refusals(ValueError):
        return tuple(find_audit(name) for name in names) if names else AUDITS


def _show(results: Sequence[AuditResult], as_json: bool) -> None:
    """Prints results; exit code 1 if an audit failed or missed a bug."""
    good = all(result.good for result in results)
    found = {"ok": good, "results": [asdict(result) for result in results]}
    answer(found, as_json, lambda: _print(results), code=0 if good else 1)


def _print(results: Sequence[AuditResult]) -> None:
    columns = {
        "audit": lambda each: each.name if each.bug is None else f"  planted: {each.bug}",
        "measure": _measure,
        "claimed": lambda each: rounded_up(each.claimed, ".4g"),
        "observed": lambda each: rounded_down(each.observed, ".4g"),
        "result": _outcome,
        "s": lambda each: f"{each.seconds:.1f}",
    }
    show_table(results, columns, title="Audits", width=120)
    say(_verdict(results))


def _measure(result: AuditResult) -> str:
    return find_audit(result.name.rpartition("/")[2]).measure if result.bug is None else ""


def _outcome(result: AuditResult) -> Text:
    if result.bug is None:
        return Text("passed", "green") if result.passed else Text("FAILED", "bold red")
    return Text("MISSED", "red") if result.passed else Text("noticed", "green")


def _verdict(results: Sequence[AuditResult]) -> str:
    audits = [result for result in results if result.bug is None]
    bugs = [result for result in results if result.bug is not None]
    sentence = f"{sum(result.passed for result in audits)} of {len(audits)} audits passed"
    if bugs:
        noticed = sum(result.good for result in bugs)
        sentence += f", {noticed} of {len(bugs)} planted bugs noticed"
    times = sorted(result.finished_at for result in results)
    return f"{sentence}; {times[0]} to {times[-1]}, version {results[-1].version}."


def _of_cohort(
    name: str, only: Sequence[str] | None, report: Callable[[float, str], None]
) -> tuple[Audit, str]:
    """Opens the public model of a cohort, in what decodes for it; no private record is read.

    Args:
        name: The cohort.
        only: Names of audits that were asked for.
        report: Told what is being made or opened.

    Returns:
        The audit, and the digest of what it measures.

    Raises:
        ValueError: Another audit was asked for, no method of the cohort predicts privately, or its
            model cannot be opened.
    """
    if only and set(only) != {NAME}:
        raise ValueError(f"Expected --only {NAME} for a cohort, got {', '.join(only)}.")
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.private_prediction.decoding import decoder_of
    from dpsynth_assets.models.prompt_templates import prompted

    spec = find_cohort(name, to_spend=True)
    plan = plan_dataset(spec)
    draws = [each.method for each in plan.methods if each.method.pass_shape is not None]
    if not draws:
        raise ValueError(
            f"{name}: expected a method of private prediction, got none. There is nothing "
            "to measure."
        )
    report(0.0, "opening the public model")
    public, named = public_base(spec.public_data), "public_language_model"
    opened = public.models.language_model(public.values([named])[named])
    model = prompted(opened, plan.terms.prompts)
    slack = min(method.config.logit_slack for method in draws)
    decoder = decoder_of(plan.terms, model)
    shapes = [asdict(method.pass_shape(model)) for method in draws]
    passes = PassShape(**{field: max(shape[field] for shape in shapes) for field in shapes[0]})
    return cohort_audit(plan.terms, slack, decoder, model, passes), settings_of(plan.terms)
