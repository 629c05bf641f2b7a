"""`dpsynth audit`: audit a cohort's spends, and test the mechanisms against their own claims.

`audit run COHORT` measures how far rounding moves logits of the cohort's own model, here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpsynth_assets.cli import audit_trail
from dpsynth_assets.cli.cohorts import cohort_names, find_cohort
from dpsynth_assets.cli.terminal import AsJson, progress_bar, refuse, say, show_json, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import Audit, AuditResult
    from dpsynth_assets.attacks.logit_moves import PassShape
    from dpsynth_assets.methods.base import CohortTerms

app = typer.Typer(
    cls=audit_trail.CohortOrCommand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="`dpsynth audit COHORT` audits what a cohort spent and released; the commands test the "
    "privacy mechanisms of this installation against their own claims.",
)
app.command("cohort")(audit_trail.cohort)
app.command("used-by")(audit_trail.used_by)


@app.command()
def run(
    cohort: Annotated[
        str | None,
        typer.Argument(
            metavar="[COHORT]",
            help="Measure the cohort's own model instead: how far rounding moves its logits "
            "(logit-slack). Public contexts alone are read.",
            autocompletion=cohort_names,
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Name of an audit; may be repeated.")
    ] = None,
    with_planted_bugs: Annotated[
        bool, typer.Option(help="Also check that each audit notices the bugs planted for it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the audits and keep their results; exit code 1 if one fails or misses a bug."""
    from dpsynth_assets.attacks.audits import run_audits, save_results

    chosen = _chosen(only)
    with progress_bar(quiet=as_json) as report:
        if cohort is None:
            results = run_audits(chosen, report, with_planted_bugs=with_planted_bugs)
            save_results(home().audits, results)
        else:
            own = _of_cohort(cohort, only, report)
            results = run_audits([own.audit], report, with_planted_bugs=with_planted_bugs)
            own.save(results)
    _show(results, as_json=as_json)
    if not all(result.good for result in results):
        raise typer.Exit(1)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the last result of every audit; exit code 1 if one failed or none was run."""
    from dpsynth_assets.attacks.audits import latest_results
    from dpsynth_assets.methods.private_prediction.measured_slack import slack_file

    try:
        results = latest_results(home().audits, with_planted_bugs=True)
        results += latest_results(slack_file())
    except ValueError as problem:
        refuse(str(problem))
    if not results:
        refuse(f"Expected audit results, got no file at {home().audits}. Run `dpsynth audit run`.")
    _show(results, as_json=as_json)
    if not all(result.good for result in results):
        raise typer.Exit(1)


@app.command("list")
def list_audits(
    markdown: Annotated[bool, typer.Option(help="Print the table of docs/audits.md.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what is audited, and which bugs each audit notices."""
    audits = _chosen(None)
    if as_json:
        show_json([_facts(audit) for audit in audits])
        return
    if markdown:
        typer.echo(markdown_tables(audits))
        return
    rows = ((each.name, each.claim, str(each.kind), ", ".join(each.planted)) for each in audits)
    show_table(("audit", "claim", "kind", "bugs it notices"), rows, width=120)


def markdown_tables(audits: Sequence["Audit"]) -> str:
    """Writes two tables: what each audit tests, and which audits notice a bug."""
    from dpsynth_assets.attacks.audits import Bug

    tested = markdown_table(
        ("audit", "mechanism", "claim", "kind", "false alarm"),
        (
            (f"`{each.name}`", each.mechanism, each.claim, each.kind, rounded_up(each.false_alarm))
            for each in audits
        ),
    )
    noticed = {
        bug: ", ".join(f"`{each.name}`" for each in audits if bug in each.planted) for bug in Bug
    }
    return f"{tested}\n\n{markdown_table(('planted bug', 'noticed by'), noticed.items())}"


def _chosen(names: Sequence[str] | None) -> "tuple[Audit, ...]":
    from dpsynth_assets.attacks.audits import AUDITS, find_audit

    try:
        return tuple(find_audit(name) for name in names) if names else AUDITS
    except ValueError as problem:
        refuse(str(problem))


def _of_cohort(
    cohort: str, names: Sequence[str] | None, report: Callable[[float, str], None]
) -> "CohortAudit":
    from dpsynth_assets.attacks.logit_moves import NAME

    if names and set(names) != {NAME}:
        refuse(f"Expected --only {NAME} for a cohort, got {', '.join(names)}.")
    try:
        return cohort_audit(cohort, lambda message: report(0.0, message))
    except (ValueError, FileNotFoundError) as problem:
        refuse(str(problem))


def _facts(audit: "Audit") -> dict[str, object]:
    names = ("name", "mechanism", "events", "claim", "measure", "kind", "false_alarm")
    return {name: getattr(audit, name) for name in names} | {"planted": list(audit.planted)}


def _show(results: Sequence["AuditResult"], *, as_json: bool) -> None:
    if as_json:
        found = [asdict(result) for result in results]
        show_json({"ok": all(result.good for result in results), "results": found})
        return
    columns = ("audit", "measure", "claimed", "observed", "result", "s")
    numeric = ("claimed", "observed", "s")
    show_table(columns, map(_row, results), title="Audits", numeric=numeric, width=120)
    say(_verdict(results))


def _row(result: "AuditResult") -> tuple[str | Text, ...]:
    from dpsynth_assets.attacks.audits import find_audit

    name = result.name if result.bug is None else f"  planted: {result.bug}"
    audit = find_audit(result.name.rpartition("/")[2])
    measure = audit.measure if result.bug is None else ""
    numbers = rounded_up(result.claimed, ".4g"), rounded_down(result.observed, ".4g")
    return name, measure, *numbers, _outcome(result), f"{result.seconds:.1f}"


def _outcome(result: "AuditResult") -> Text:
    if result.bug is None:
        return Text("passed", "green") if result.passed else Text("FAILED", "bold red")
    return Text("MISSED", "red") if result.passed else Text("noticed", "green")


def _verdict(results: Sequence["AuditResult"]) -> str:
    audits = [result for result in results if result.bug is None]
    bugs = [result for result in results if result.bug is not None]
    sentence = f"{sum(result.passed for result in audits)} of {len(audits)} audits passed"
    if bugs:
        noticed = sum(result.good for result in bugs)
        sentence += f", {noticed} of {len(bugs)} planted bugs noticed"
    times = sorted(result.finished_at for result in results)
    return f"{sentence}; {times[0]} to {times[-1]}, version {results[-1].version}."


@dataclass(frozen=True, kw_only=True)
class CohortAudit:
    """The audit of what decodes for a cohort.

    Attributes:
        audit: It.
        terms: Of the cohort.
    """

    audit: "Audit"
    terms: "CohortTerms"

    def save(self, results: "list[AuditResult]") -> None:
        """Keeps results where plans look for them; those of planted bugs are not kept."""
        from dpsynth_assets.attacks.audits import save_results
        from dpsynth_assets.methods.private_prediction.measured_slack import settings_of, slack_file

        own = settings_of(self.terms)
        save_results(
            slack_file(), [replace(each, settings=own) for each in results if each.bug is None]
        )


def cohort_audit(name: str, report: Callable[[str], None]) -> CohortAudit:
    """Opens the public model of a cohort, in what decodes for it; no private record is read.

    Args:
        name: The cohort.
        report: Told what is being made or opened.

    Raises:
        ValueError: It is not declared, no method of it predicts privately, or its model cannot be
            opened.
    """
    from dpsynth_assets.methods.capabilities import DrawsTokens, capability
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.private_prediction.decoding import decoder_of
    from dpsynth_assets.methods.private_prediction.measured_slack import cohort_audit as audit_of
    from dpsynth_assets.models.prompt_templates import prompted

    spec = find_cohort(name, to_spend=True)
    plan = plan_dataset(spec)
    declared = ((each.method, capability(each.method, DrawsTokens)) for each in plan.methods)
    draws = [(method, own) for method, own in declared if own is not None]
    if not draws:
        raise ValueError(
            f"{name}: expected a method of private prediction, whose logits rows of a pass may "
            "move, got none. There is nothing to measure."
        )
    report("opening the public model")
    model = prompted(_language_model(spec), plan.terms.prompts)
    slack = min(method.config.logit_slack for method, _ in draws)
    decoder = decoder_of(plan.terms, model)
    passes = _largest([own.pass_shape(method, model) for method, own in draws])
    return CohortAudit(audit=audit_of(plan.terms, slack, decoder, model, passes), terms=plan.terms)


def _largest(shapes: "list[PassShape]") -> "PassShape":
    return replace(
        shapes[0],
        rows=max(shape.rows for shape in shapes),
        columns=max(shape.columns for shape in shapes),
        new_tokens=max(shape.new_tokens for shape in shapes),
    )


def _language_model(spec: PrivateDatasetSpec) -> Any:
    """The language model of a cohort's base, which is made here if it has not been."""
    from dpsynth_assets.datasets.standing import declared_base
    from dpsynth_assets.public_base import PublicBase
    from dpsynth_assets.public_base.documents import read_documents

    base = declared_base(spec.public_data)
    if base is None:
        raise ValueError(f"Expected a declared public base, got {spec.public_data!r}. Declare it.")
    fields = base.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    documents = None if base.invents_documents else read_documents(base)
    public = PublicBase(documents, name=base.name, **fields)
    return public.models.language_model(
        public.values(["public_language_model"])["public_language_model"]
    )
