"""`dpsynth run`: materialise a cohort's graph in this process and print the scores.

And `dpsynth demo`: the same for invented letters, in a clone or any other folder.
"""

import getpass
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpsynth_assets.advice.minutes import TRIAL, expected_minutes, whole_in_words
from dpsynth_assets.cli.cohorts import CohortName, find_cohort, find_file
from dpsynth_assets.cli.datasets import base_problems, print_problems
from dpsynth_assets.cli.report import print_summary, summarise
from dpsynth_assets.cli.terminal import AsJson, answer, progress_display, say, show_table
from dpsynth_assets.datasets import DatasetFileError, PrivateDatasetSpec, parse_dataset_file
from dpsynth_assets.datasets.prompting import prompt_problems
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.dataset_plan import DatasetPlan, stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import purge_finished, shown_partition
from dpsynth_assets.orchestration.assets.launch import refusal_of, run_tags
from dpsynth_assets.orchestration.instance import (
    dagster_instance,
    follow_run,
    in_timeline,
    name_in_ledger,
    selected_assets,
)
from dpsynth_assets.orchestration.resources.live_runs import (
    ended_by_signals,
    hold_until_exit,
    was_interrupted,
    watched,
)
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, LedgerEntry, PlannedRelease
from dpsynth_assets.privacy.ledger.charges import is_secret
from dpsynth_assets.privacy.ledger.schema import RESERVE
from dpsynth_assets.records.checking import check_records
from dpsynth_assets.releases.waiting import paying_only
from dpsynth_assets.run.runner import name_problem
from dpsynth_assets.sensitive.purging import purges_after_success
from dpsynth_assets.tags import DEFAULT_RELEASE, LAUNCHED_BY


def run(
    cohort: CohortName,
    select: str | None = None,
    release: str = "",
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> None:
    """Materialise a cohort: clusters, histograms, corpora, evaluation, statement.

    Shows which releases would spend budget and asks, unless all of them were paid for before.

    Args:
        cohort: Name of a declared private dataset.
        select: Dagster asset selection; default: the cohort and its public base.
        release: Name of a new release, which is drawn and charged. Default: stored releases.
        as_json: Print JSON.
        yes: Spend budget without asking; scripts need it.
    """
    if (problem := name_problem(release)) is not None:
        raise typer.BadParameter(problem)
    if select is not None and not select.strip():  # As of a script whose variable is not set.
        raise typer.BadParameter(
            "Expected an asset selection after --select, got an empty one. Leave --select out for "
            "the whole cohort."
        )
    spec = find_cohort(cohort, to_spend=True)
    console = Console(stderr=True)
    succeeded = _materialise(spec, select or "", release, console, yes=yes)
    summary = summarise(spec)
    told = summary if succeeded else {**summary, "rows": []}  # Those scores are of an earlier run.
    facts = {"succeeded": succeeded, **summary}
    answer(facts, as_json, lambda: print_summary(told), code=0 if succeeded else 1)


def demo(yes: bool = False) -> None:
    """Make two corpora from 4,000 invented letters to a bank, and score them.

    Outside a clone of the repository, it first writes the letters to `data/demo` of this folder.

    Args:
        yes: Spend budget without asking.
    """
    folder = project_root() / "data" / "demo"
    if not (folder / "private_enquiries.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        generator = Path(__file__).parents[1] / "demo" / "write.py"
        subprocess.run([sys.executable, str(generator), str(folder)], check=True)  # noqa: S603
    run("enquiries", yes=yes)


def _materialise(
    spec: PrivateDatasetSpec, select: str, release: str, console: Console, *, yes: bool
) -> bool:
    """Runs the selection in this process; models load once and stay."""
    _quieten()
    from dpsynth_assets.definitions import defs

    loaded = defs()
    keys = selected_assets(select, spec, loaded.resolve_asset_graph())
    selected = {"/".join(name_in_ledger(key, spec)) for key in keys}
    agreed, tags = _ask_before_paying(spec, selected, release, console, yes=yes)
    job = loaded.resolve_implicit_global_asset_job_def()
    run_id = str(uuid.uuid4())
    hold_until_exit(run_id)
    with (
        dagster_instance(console) as instance,
        paying_only(agreed),
        watched(instance, run_id, partial(say, to=console)),
        progress_display(console),
        ended_by_signals(),
    ):
        follow_run(instance, run_id, spec, console)
        partition = shown_partition(instance, spec)
        result = job.execute_in_process(
            instance=in_timeline(instance, job.name),
            asset_selection=keys,
            partition_key=partition,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            tags=tags,
            run_id=run_id,
            raise_on_error=False,
        )
        if result.success and purges_after_success():
            purge_finished(instance, result.run_id)
    if was_interrupted(result.all_events):
        raise KeyboardInterrupt
    for event in result.all_events:
        if event.is_step_failure:
            _print_failure(event, console)
    return bool(result.success)


def _ask_before_paying(
    spec: PrivateDatasetSpec, selected: set[str], release: str, console: Console, *, yes: bool
) -> tuple[set[str] | None, dict[str, str]]:
    """Shows what the run would pay for, and asks a person.

    Returns:
        The assets that may be charged, None for all that were selected, as `yes` says; and tags by
        which the run is found, with ε of what it is to pay for.

    Raises:
        PrivacyError: The budget does not hold what the run would pay for; nothing is started.
        typer.BadParameter: There is no terminal to ask on and `yes` was not given.
        typer.Abort: The person said no.
    """
    ledger = PrivacyLedger().open()
    pending = pending_releases(spec, selected, release, ledger)
    assets = {each.asset for each in pending}
    if pending:
        _expect_room(spec, assets, release, ledger)
        if f"{spec.name}/shared/private_records" in selected:
            _expect_fit(spec, console)
        show_pending(spec, pending, ledger, console)
    tags = {**run_tags(spec.name, release, plan_dataset(spec), assets), **_person()}
    if yes:
        return None, tags
    if pending and not sys.stdin.isatty():
        raise typer.BadParameter(
            f"Expected --yes where there is no terminal for a question, got none; {len(pending)} "
            f"release(s) of {spec.name!r} would be paid for. Add --yes to pay."
        )
    if pending:
        typer.confirm("Pay for these releases?", abort=True, err=True)
    return assets, tags


def _expect_room(spec: PrivateDatasetSpec, assets: set[str], release: str, ledger: Ledger) -> None:
    """Refuses a run that the ledger would refuse, before a step of it is started and fails."""
    plan, name = plan_dataset(spec), release or DEFAULT_RELEASE
    able = [part for part in plan.parts if part.plan.refusal is None]
    refused = refusal_of(spec, plan, able, ledger, name, assets)
    if refused is not None:
        raise PrivacyError(
            f"{refused} No run was started. To run only a part of the cohort, such as releases "
            "that were paid for before, use --select."
        )


def _expect_fit(spec: PrivateDatasetSpec, console: Console) -> None:
    """Checks the records as `dpsynth datasets check` does, before a person is asked to pay.

    Those in shards are not held whole here: the step that reads them refuses them, uncharged.

    Raises:
        DatasetFileError: They are not as the dataset file says; nothing is started.
    """
    if spec.parts > 1:
        return
    file = find_file(spec.name)
    declared = [each.spec for each in parse_dataset_file(file)[0]]
    whole = next((each for each in declared if each.name == spec.dataset), None)
    whole = whole if isinstance(whole, PrivateDatasetSpec) else None
    problems = check_records(spec, file, base_problems, whole).problems
    errors = [problem for problem in problems if problem.severity == "error"]
    print_problems([problem for problem in problems if problem not in errors], console)
    if errors:
        raise DatasetFileError(errors)


def _person() -> dict[str, str]:
    """Names who runs this command, if the operating system has a name for them."""
    try:
        return {LAUNCHED_BY: f"{getpass.getuser()}, dpsynth run"}
    except (KeyError, OSError):  # A container whose user has no name.
        return {}


def _quieten() -> None:
    """Leaves the terminal to the bars: failures are printed once, as one line, at the end."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("dagster.redacted_errors").setLevel(logging.CRITICAL)


def _print_failure(event: Any, console: Console) -> None:
    data = event.event_specific_data
    user = getattr(data, "user_failure_data", None)
    text = user.description if user is not None and user.description else data.error_display_string
    line = str(text).strip().splitlines()[-1] if user is None else str(text)
    say(f"{event.step_key}: {line}", style="red", to=console)


@dataclass(frozen=True)
class PendingRelease:
    """A release that a run would pay for.

    Attributes:
        asset: Key of the asset, as in the ledger.
        epsilon: ε of the release alone; None where it has none.
        rows: Rows the plan expects, at least; None where they follow from a released histogram.
        again: Whether the same name was paid for before, from another declaration or other inputs.
    """

    asset: str
    epsilon: float | None
    rows: int | None
    again: bool = False


def pending_releases(
    spec: PrivateDatasetSpec, selected: Collection[str], release: str, ledger: Ledger
) -> list[PendingRelease]:
    """Lists the selected releases that were not charged yet.

    Args:
        spec: The cohort.
        selected: Keys of the assets that would run.
        release: Name of the release; empty for the one that a run without a name asks for.
        ledger: What was charged so far.
    """
    plan, name = plan_dataset(spec), release or DEFAULT_RELEASE
    entries = [e for e in ledger.entries(plan.spec.account) if e.kind == RESERVE]
    named = [entry for entry in entries if entry.release == name]
    paid = {entry.asset for entry in named if _is_paid(entry, spec, plan, ledger)}
    nodes = {f"{spec.name}/{node}": node for node in plan.graph.nodes}
    chosen = [each for each in plan.releases if each.asset in selected]
    anew = {nodes[each.asset] for each in chosen if each.asset not in paid}
    return [
        PendingRelease(
            each.asset,
            _price(each, plan.budget),
            plan.graph.nodes[nodes[each.asset]].part.plan.rows_estimate,
            again=any(entry.asset == each.asset for entry in named),
        )
        for each in chosen
        if anew & {nodes[each.asset], *plan.graph.behind(nodes[each.asset])}
    ]


def show_pending(
    spec: PrivateDatasetSpec, pending: Sequence[PendingRelease], ledger: Ledger, console: Console
) -> None:
    """Prints the price list, the minutes of the whole run, and what remains."""
    spend = ledger.spend(spec.account)
    columns = {
        "release": lambda each: each.asset,
        "ε alone": lambda each: epsilon_up(each.epsilon),
        "rows": lambda each: "after the histogram" if each.rows is None else f"{each.rows} or more",
    }
    show_table(pending, columns, title=f"To be paid for by cohort {spec.name}", to=console)
    problems = prompt_problems(spec, declared_base(spec.public_data))
    say(*(str(replace(each, file=spec.name)) for each in problems), style="yellow", to=console)
    with console.status(TRIAL):
        expected = expected_minutes(spec, plan_dataset(spec))
    left = spec.budget.epsilon if spend.remaining_epsilon is None else spend.remaining_epsilon
    say(
        whole_in_words(expected.whole, expected.unknown),
        *(
            f"{each.asset}: a release of this name was charged for another declaration or other "
            "inputs; this run charges it again. To reuse it, restore the dataset file."
            for each in pending
            if each.again
        ),
        f"Budget: ε = {declared(spec.budget.epsilon)} at δ = {declared(spec.budget.delta)}; "
        f"{epsilon_down(left)} remains before this run. Spent budget is never refunded.",
        to=console,
    )


def _is_paid(
    entry: LedgerEntry, spec: PrivateDatasetSpec, plan: DatasetPlan, ledger: Ledger
) -> bool:
    """Asks the ledger whether a charge is that of the release as the file declares it now.

    The request is the run's own, on what the charge was made from: models and clusters that were
    made again are known only when the run comes to them.
    """
    node = plan.graph.nodes.get(entry.asset.removeprefix(f"{spec.name}/"))
    if node is None or node.stage is None or node.stage.mechanism is None:
        return False
    request = stage_request(spec, node.part, node.stage, release=entry.release)
    # Under the names that the entry has: a method may record inputs under its own.
    made_from = {"inputs", *node.stage.reads}
    recorded = {k: v for k, v in entry.parameters.items() if k in made_from}
    request = replace(request, parameters={**request.parameters, **recorded})
    released = ledger.preview(request, plan.budget, plan.releases).reused
    return released or bool(ledger.pending(request))


def _price(release: PlannedRelease, terms: BudgetTerms) -> float | None:
    if release.event is None or is_secret(release.event):
        return None
    return epsilon_of_fixed([release.event], terms.delta, terms.accountant)
