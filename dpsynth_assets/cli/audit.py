"""`dpsynth audit`: audit a cohort's spends, and test the mechanisms against their own claims.

`audit run COHORT` measures how far rounding moves logits of the cohort's own model, here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dpsynth_assets.attacks.audits import (
    AUDITS,
    Audit,
    AuditResult,
    Bug,
    find_audit,
    latest_results,
    run_audits,
    save_results,
)
from dpsynth_assets.attacks.logit_moves import NAME, PassShape
from dpsynth_assets.cli import audit_trail
from dpsynth_assets.cli.cohorts import cohort_names, find_cohort, public_base
from dpsynth_assets.cli.terminal import (
    AsJson,
    answer,
    progress_bar,
    refusals,
    refuse,
    say,
    show_table,
)
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up

if TYPE_CHECKING:
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
        str | None, typer.Argument(metavar="[COHORT]", autocompletion=cohort_names)
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only")] = None,
    with_planted_bugs: bool = False,
    as_json: AsJson = False,
) -> None:
    """Run the audits and keep their results; exit code 1 if one fails or misses a bug.

    Args:
        cohort: Measure the cohort's own model instead: how far rounding moves its logits
            (logit-slack). Public contexts alone are read.
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
            own = _of_cohort(cohort, only, report)
            results = run_audits([own.audit], report, with_planted_bugs=with_planted_bugs)
            own.save(results)
    _show(results, as_json)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the last result of every audit; exit code 1 if one failed or none was run."""
    from dpsynth_assets.methods.private_prediction.measured_slack import slack_file

    with refusals(ValueError):
        results = latest_results(home().audits, with_planted_bugs=True)
        results += latest_results(slack_file())
    if not results:
        refuse(f"Expected audit results, got no file at {home().audits}. Run `dpsynth audit run`.")
    _show(results, as_json)


@app.command("list")
def list_audits(
    markdown: bool = False,
    as_json: AsJson = False,
) -> None:
    """List what is audited, and which bugs each audit notices.

    Args:
        markdown: Print the table of docs/audits.md.
        as_json: Print JSON.
    """
    audits = _chosen(None)
    if markdown:
        typer.echo(markdown_tables(audits))
        return
    columns = {
        "audit": lambda each: each.name,
        "claim": lambda each: each.claim,
        "kind": lambda each: str(each.kind),
        "bugs it notices": lambda each: ", ".join(each.planted),
    }
    facts = [_facts(audit) for audit in audits]
    answer(facts, as_json, lambda: show_table(audits, columns, width=120))


def markdown_tables(audits: Sequence[Audit]) -> str:
    """Writes two tables: what each audit tests, and which audits notice a bug."""
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


def _chosen(names: Sequence[str] | None) -> tuple[Audit, ...]:
    with refusals(ValueError):
        return tuple(find_audit(name) for name in names) if names else AUDITS


def _of_cohort(
    cohort: str, names: Sequence[str] | None, report: Callable[[float, str], None]
) -> "CohortAudit":
    if names and set(names) != {NAME}:
        refuse(f"Expected --only {NAME} for a cohort, got {', '.join(names)}.")
    with refusals(ValueError, FileNotFoundError):
        return cohort_audit(cohort, lambda message: report(0.0, message))


def _facts(audit: Audit) -> dict[str, object]:
    names = ("name", "mechanism", "events", "claim", "measure", "kind", "false_alarm")
    return {name: getattr(audit, name) for name in names} | {"planted": list(audit.planted)}


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


@dataclass(frozen=True, kw_only=True)
class CohortAudit:
    """The audit of what decodes for a cohort.

    Attributes:
        audit: It.
        terms: Of the cohort.
    """

    audit: Audit
    terms: "CohortTerms"

    def save(self, results: list[AuditResult]) -> None:
        """Keeps results where plans look for them; those of planted bugs are not kept."""
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
    name = "public_language_model"
    public = public_base(spec.public_data)
    opened = public.models.language_model(public.values([name])[name])
    model = prompted(opened, plan.terms.prompts)
    slack = min(method.config.logit_slack for method, _ in draws)
    decoder = decoder_of(plan.terms, model)
    passes = _largest([own.pass_shape(method, model) for method, own in draws])
    return CohortAudit(audit=audit_of(plan.terms, slack, decoder, model, passes), terms=plan.terms)


def _largest(shapes: list[PassShape]) -> PassShape:
    return replace(
        shapes[0],
        rows=max(shape.rows for shape in shapes),
        columns=max(shape.columns for shape in shapes),
        new_tokens=max(shape.new_tokens for shape in shapes),
    )
