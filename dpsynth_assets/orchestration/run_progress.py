"""How far a whole run is, from Dagster's events: step k of n, and the minutes that are left."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console

from dpsynth_assets.datasets import PrivateDatasetSpec

if TYPE_CHECKING:
    import dagster as dg


OTHERS = ""
"""Stands for all steps that are no method's: audits, embeddings, references, scores."""

TOLD_FROM = 0.1
"""Share of a step from which on it says how long the rest takes."""


class RunProgress:
    """Counts the steps of one run and estimates what is left.

    **Privacy** Knows the names of steps, the clock and the shares that steps report, rounded down
    as in a log. Nothing that a step drew reaches it.
    """

    def __init__(
        self,
        expected: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins with no steps.

        Args:
            expected: Seconds that all steps of a method are expected to take, by its folder; those
                of all other steps by `OTHERS`. Any may be missing.
            clock: Says the seconds that have passed.
        """
        self._expected, self._clock = dict(expected or {}), clock
        self._steps: tuple[str, ...] = ()
        self._took: dict[str, float] = {}
        self._current: str | None = None
        self._since, self._share = clock(), 0.0
        self._started: Callable[[], None] = lambda: None

    def on_start(self, told: Callable[[], None]) -> None:
        """Has `told` called whenever a step starts."""
        self._started = told

    def plan(self, steps: Sequence[str]) -> None:
        """Takes the keys of all steps that the run is to execute."""
        self._steps = tuple(steps)

    def start(self, step: str) -> None:
        """A step starts; in one process they run one after another."""
        self._current, self._since, self._share = step, self._clock(), 0.0
        self._started()

    def report(self, share: float) -> None:
        """The step that runs has done this share of its work, in [0, 1]."""
        self._share = share

    def end(self, step: str) -> None:
        """A step succeeded, failed or was skipped."""
        self._took[step] = self._clock() - self._since if step == self._current else 0.0
        self._current = None if step == self._current else self._current

    def line(self) -> str:
        """How far the run is: `Step 8 of 31, about 4 min left: enquiries/aug_pe/population`."""
        from dpsynth_assets.orchestration.resources.progress import in_time

        number = min(len(self._took) + (self._current is not None), len(self._steps))
        left = self.seconds_left()
        told = "" if left is None else f", about {in_time(max(60.0, left))} left"
        name = "" if self._current is None else f": {self._current.replace('__', '/')}"
        return f"Step {number} of {len(self._steps)}{told}{name}"

    def seconds_left(self) -> float | None:
        """Seconds until the run ends; None where nothing is expected of any step that is left.

        What is expected of a method, less what its steps took, is left as long as one of them is;
        of the step that runs at least what its share says, once a tenth of it is done.
        """
        ahead = {self._group(step) for step in self._steps if step not in self._took}
        known = [group for group in ahead if group in self._expected]
        return sum(map(self._left_of, known)) if known else None

    def _group(self, step: str) -> str:
        return next((each for each in self._expected if each and f"__{each}__" in step), OTHERS)

    def _left_of(self, group: str) -> float:
        took = sum(seconds for step, seconds in self._took.items() if self._group(step) == group)
        if self._current is None or self._group(self._current) != group:
            return max(0.0, self._expected[group] - took)
        elapsed = self._clock() - self._since
        told = elapsed * (1 - self._share) / self._share if self._share >= TOLD_FROM else 0.0
        return max(told, self._expected[group] - took - elapsed)


# Follows a run of this process by Dagster's events: its steps, and its first corpus.


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
