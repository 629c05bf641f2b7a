"""Follows a run of this process by Dagster's events: its steps, and its first corpus."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.orchestration.run_progress import RunProgress

if TYPE_CHECKING:
    import dagster as dg

ROWS = 3
CHARACTERS = 400
"""Rows that are shown of the first corpus, and characters of each at most."""


def follow_run(
    instance: "dg.DagsterInstance",
    run_id: str,
    spec: PrivateDatasetSpec,
    run: RunProgress,
    console: Console,
) -> None:
    """Counts the steps of a run as they start and end, and shows rows of its first corpus.

    Args:
        instance: Records the run's events.
        run_id: The run, which this process executes.
        spec: The cohort.
        run: Learns of steps.
        console: Takes the rows.
    """
    shown: list[str] = []

    def take(entry: Any) -> None:
        event = entry.dagster_event
        if event is None:
            return
        with suppress(Exception):  # What is shown must not end what is paid for.
            _count(event, instance, run_id, run)
            if not shown and (folder := _published(event)) is not None:
                shown.append(folder)
                show_rows(spec, folder, console)

    instance.add_event_listener(run_id, take)


def _count(event: Any, instance: "dg.DagsterInstance", run_id: str, run: RunProgress) -> None:
    import dagster as dg

    kind = event.event_type
    if kind is dg.DagsterEventType.RUN_START:
        record = instance.get_run_by_id(run_id)
        if record is not None and record.execution_plan_snapshot_id is not None:
            plan = instance.get_execution_plan_snapshot(record.execution_plan_snapshot_id)
            run.plan(plan.step_keys_to_execute)
    elif kind is dg.DagsterEventType.STEP_START:
        run.start(event.step_key)
    elif kind in (
        dg.DagsterEventType.STEP_SUCCESS,
        dg.DagsterEventType.STEP_FAILURE,
        dg.DagsterEventType.STEP_SKIPPED,
    ):
        run.end(event.step_key)


def _published(event: Any) -> str | None:
    """Folder of the corpus that an event says was published; None for every other event."""
    import dagster as dg

    if event.event_type is not dg.DagsterEventType.ASSET_MATERIALIZATION:
        return None
    path = event.asset_key.path
    return path[1] if len(path) == 3 and path[-1] == "corpus" else None


def show_rows(spec: PrivateDatasetSpec, folder: str, console: Console) -> None:
    """Prints the first rows of a published corpus.

    **Privacy** Reads the published file alone, which the corpus's guarantee covers.
    """
    from dpsynth_assets.orchestration.assets.published import read_released, released_folder

    rows = read_released(spec.name, folder).head(ROWS)
    console.print(
        f"First rows of {spec.name}/{folder}, published in {released_folder(spec.name, folder)}:",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    for line in _lines(rows, spec.columns.labels):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(rows: pl.DataFrame, labels: list[str]) -> list[str]:
    """One line a row, its labels first; without characters that would steer a terminal."""
    lines = []
    for row in rows.iter_rows(named=True):
        text = "".join(each if each.isprintable() else " " for each in row["text"])
        text = text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]} ..."
        named = ", ".join(str(row[label]) for label in labels if label in row)
        lines.append(f"  {named}: {text}" if named else f"  {text}")
    return lines
