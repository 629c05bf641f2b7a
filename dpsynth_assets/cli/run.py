"""`dpsynth run`: materialise a cohort's graph in this process and print the scores."""

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.confirmation import PendingRelease, pending_releases, show_pending
from dpsynth_assets.cli.progress_display import progress_display
from dpsynth_assets.cli.report import print_summary, summarise
from dpsynth_assets.cli.terminal import AsJson, say, show_json
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.orchestration.asset_selection import name_in_ledger, selected_assets
from dpsynth_assets.orchestration.run_progress import OTHERS, RunProgress, follow_run
from dpsynth_assets.privacy.ledger import Ledger

if TYPE_CHECKING:
    from dpsynth_assets.advice.minutes import ExpectedMinutes


def run(
    cohort: CohortName,
    select: Annotated[
        str | None,
        typer.Option(help="Dagster asset selection; default: the cohort and what it is built on."),
    ] = None,
    release: Annotated[
        str,
        typer.Option(help="Name of a new release: draws afresh and pays. Default: reuse or first."),
    ] = "",
    as_json: AsJson = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Pay without asking, as scripts must.")
    ] = False,
) -> None:
    """Materialise a cohort: clusters, histograms, corpora, evaluation, statement.

    Shows what would be paid for and asks, unless everything selected was paid for before.
    """
    _expect_name(release)
    if select is not None and not select.strip():  # As of a script whose variable is not set.
        raise typer.BadParameter(
            "Expected an asset selection after --select, got an empty one. Leave --select out for "
            "the whole cohort."
        )
    spec = find_cohort(cohort, to_spend=True)
    console = Console(stderr=True)
    succeeded = _materialise(spec, select or "", release, console, yes=yes)
    summary = summarise(spec)
    if as_json:
        show_json({"succeeded": succeeded, **summary})
    else:
        print_summary(summary)
    if not succeeded:
        raise typer.Exit(1)


def _expect_name(release: str) -> None:
    from dpsynth_assets.run.runner import name_problem

    if (problem := name_problem(release)) is not None:
        raise typer.BadParameter(problem)


def _materialise(
    spec: PrivateDatasetSpec, select: str, release: str, console: Console, *, yes: bool
) -> bool:
    """Runs the selection in this process; models load once and stay."""
    from dpsynth_assets.orchestration.instance import dagster_instance, in_timeline

    _quieten()
    from dpsynth_assets.definitions import defs
    from dpsynth_assets.orchestration.assets.partitions import purge_finished, shown_partition
    from dpsynth_assets.orchestration.resources.interrupting import (
        ended_by_signals,
        was_interrupted,
    )
    from dpsynth_assets.orchestration.resources.live_runs import alive, watched
    from dpsynth_assets.releases.consent import paying_only
    from dpsynth_assets.sensitive.purging import purges_after_success

    loaded = defs()
    keys = selected_assets(select, spec, loaded.resolve_asset_graph())
    selected = {"/".join(name_in_ledger(key, spec)) for key in keys}
    agreed, tags, expected = _ask_before_paying(spec, selected, release, console, yes=yes)
    if select:  # What is expected of all other steps is that of the whole run.
        expected.pop(OTHERS, None)
    job = loaded.resolve_implicit_global_asset_job_def()
    run_id, progress = str(uuid.uuid4()), RunProgress(expected)
    with (
        dagster_instance(console) as instance,
        alive(run_id),
        paying_only(agreed),
        watched(instance, run_id, partial(say, to=console)),
        progress_display(console, progress),
        ended_by_signals(),
    ):
        follow_run(instance, run_id, spec, progress, console)
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
) -> tuple[set[str] | None, dict[str, str], dict[str, float]]:
    """Shows what the run would pay for, and asks a person.

    Returns:
        The assets that may be charged, None for all that were selected, as `yes` says; tags by
        which the run is found, with ε of what it is to pay for; and the seconds that are expected
        of methods and of all other steps, as `RunProgress` takes them, none where nothing is paid.

    Raises:
        PrivacyError: The budget does not hold what the run would pay for; nothing is started.
        typer.BadParameter: Nobody can be asked and `yes` was not given.
        typer.Abort: The person said no.
    """
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger

    ledger = PrivacyLedger().open()
    pending, expected = pending_releases(spec, selected, release, ledger), {}
    if pending:
        _expect_room(spec, pending, release, ledger)
        if f"{spec.name}/shared/private_records" in selected:
            _expect_fit(spec, console)
        expected = _seconds(show_pending(spec, pending, ledger, console))
    tags = {**_tags(spec, release, pending), **_person()}
    if yes:
        return None, tags, expected
    if pending and not sys.stdin.isatty():
        raise typer.BadParameter(
            f"Expected --yes where nobody can be asked, got none; {len(pending)} release(s) of "
            f"{spec.name!r} would be paid for. Add --yes to pay."
        )
    if pending:
        typer.confirm("Pay for these releases?", abort=True, err=True)
    return {each.asset for each in pending}, tags, expected


def _seconds(minutes: "ExpectedMinutes") -> dict[str, float]:
    """Seconds of each method and of all other steps, as far as they are known."""
    seconds = {folder: 60 * each for folder, each in minutes.releases.items() if each is not None}
    if minutes.whole is not None:
        seconds[OTHERS] = max(0.0, 60 * minutes.whole - sum(seconds.values()))
    return seconds


def _expect_room(
    spec: PrivateDatasetSpec, pending: Sequence[PendingRelease], release: str, ledger: Ledger
) -> None:
    """Refuses a run that the ledger would refuse, before a step of it is started and fails."""
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.launch import DEFAULT_RELEASE
    from dpsynth_assets.orchestration.schedules.refusals import pending_refusal
    from dpsynth_assets.privacy.errors import PrivacyError

    assets, name = {each.asset for each in pending}, release or DEFAULT_RELEASE
    refused = pending_refusal(spec, plan_dataset(spec), assets, name, ledger)
    if refused is not None:
        raise PrivacyError(
            f"{refused} No run was started; --select names a part of the cohort, such as what was "
            "paid for before."
        )


def _expect_fit(spec: PrivateDatasetSpec, console: Console) -> None:
    """Checks the records as `dpsynth datasets check` does, before anybody is asked to pay for them.

    Those in parts are not held whole here: the step that reads them refuses them, uncharged.

    Raises:
        DatasetFileError: They are not as the dataset file says; nothing is started.
    """
    from dpsynth_assets.cli.cohorts import find_file
    from dpsynth_assets.cli.datasets import print_problems
    from dpsynth_assets.cli.declaration_problems import base_problems
    from dpsynth_assets.datasets import DatasetFileError, parse_dataset_file
    from dpsynth_assets.records.checking import check_records

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


def _tags(
    spec: PrivateDatasetSpec, release: str, pending: Sequence[PendingRelease]
) -> dict[str, str]:
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.launch import run_tags

    return run_tags(spec.name, release, plan_dataset(spec), {each.asset for each in pending})


def _person() -> dict[str, str]:
    """Names who runs this command, if the operating system has a name for them."""
    import getpass

    from dpsynth_assets.tags import LAUNCHED_BY

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
