"""`dpsynth run`: materialise a cohort's graph in this process, with bars, and print the scores."""

import json
import logging
import os
from typing import Annotated, Any

import typer
from rich.console import Console

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.progress_display import progress_display
from dpsynth_assets.cli.summary import print_summary, summarise


def run(
    cohort: Annotated[str, typer.Argument(help="Name of a declared private dataset.")],
    select: Annotated[
        str,
        typer.Option(help="Dagster asset selection; default: the cohort and what it is built on."),
    ] = "",
    release: Annotated[
        str,
        typer.Option(help="Name of a new release: draws afresh and pays. Default: reuse or first."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Materialise a cohort: clusters, histograms, corpora, evaluation, statement."""
    spec = find_cohort(cohort)
    console = Console(stderr=True)
    succeeded = _materialise(cohort, select, release, console)
    summary = summarise(spec)
    if as_json:
        typer.echo(json.dumps({"succeeded": succeeded, **summary}, indent=2))
    else:
        print_summary(summary, Console(width=max(100, Console().width)))
    if not succeeded:
        raise typer.Exit(1)


def _materialise(cohort: str, select: str, release: str, console: Console) -> bool:
    """Runs the selection in this process; models load once and stay."""
    from dpsynth_assets.cli.instance import dagster_instance
    from dpsynth_assets.cli.run_process import TAG, this_process
    from dpsynth_assets.tags import RELEASE

    _quieten()
    import dagster as dg

    from dpsynth_assets.assets.finished import purge_finished
    from dpsynth_assets.definitions import defs
    from dpsynth_assets.resources.purging import purges_after_success

    loaded = defs()
    chosen = select or f'+key:"{cohort}/*"'
    job = loaded.resolve_implicit_global_asset_job_def()
    graph = loaded.resolve_asset_graph()
    keys = list(dg.AssetSelection.from_string(chosen).resolve(graph))
    with dagster_instance() as instance, progress_display(console):
        result = job.execute_in_process(
            instance=instance,
            asset_selection=keys,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            tags={TAG: this_process()} | ({RELEASE: release} if release else {}),
            raise_on_error=False,
        )
        if result.success and purges_after_success():
            purge_finished(instance, result.run_id)
    for event in result.all_events:
        if event.is_step_failure:
            _print_failure(event, console)
    return bool(result.success)


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
    console.print(f"{event.step_key}: {line}", style="red", highlight=False, soft_wrap=True)
