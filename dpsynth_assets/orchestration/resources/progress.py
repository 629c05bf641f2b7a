"""Progress of long work: a bar with ETA in the terminal, a line with ETA in Dagster's log."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import dagster as dg

from dpsynth_assets.methods.inputs import ProgressCallback

TerminalBar = Callable[[str], ProgressCallback]
"""Given a title, opens a bar and returns its callback."""

LOGGED_STEPS = 20
"""Shares are logged in steps of 1/20: a fine share after a known number of records, 16 of N say,
would tell N, which may be private."""

_terminal_bar: list[TerminalBar] = []


def show_in_terminal(bar: TerminalBar) -> None:
    """Sends progress of this process to a terminal bar as well (the CLI calls this once)."""
    _terminal_bar[:] = [bar]


class Progress(dg.ConfigurableResource):
    """Reports progress; messages carry public facts only."""

    opens_private_data: ClassVar[bool] = False

    log_every_seconds: float = 10.0

    def start(self, context: dg.AssetExecutionContext, title: str) -> ProgressCallback:
        """Opens a bar named `title`; call the result with the share done and a short message."""
        bar = _terminal_bar[0](title) if _terminal_bar else None
        told, place = ProgressLine(time.monotonic()), _place(context)
        last = -math.inf  # The first message is always logged.

        def report(share: float, message: str) -> None:
            nonlocal last
            if bar is not None:
                bar(share, message)
            now = time.monotonic()
            line = told.line(share, message, now)
            if now - last < self.log_every_seconds and share < 1:
                return
            last = now
            with suppress(Exception):  # A log without room must not end what is paid for.
                context.log.info("%s%s: %s", place, title, line)

        return report


def coarse(share: float) -> float:
    """Rounds a share down to what may be logged; see `LOGGED_STEPS`."""
    return math.floor(share * LOGGED_STEPS + 1e-9) / LOGGED_STEPS


class ProgressLine:
    """Says how far something is: share, message, and the time that it took or may still take.

    The estimate is made when the share has come to another step of 1/20, and counts down from
    there: between two steps nothing is known that would lengthen it.
    """

    def __init__(self, started: float) -> None:
        """Begins at a time, in seconds."""
        self._started, self._share, self._ends = started, 0.0, started

    def line(self, share: float, message: str, now: float) -> str:
        """The line at a time, in seconds, for a share done in [0, 1]."""
        share = coarse(share)
        if share <= 0:
            return message
        if share != self._share:
            self._share, self._ends = share, self._started + (now - self._started) / share
        done = f"{share:.0%} {message}".rstrip()
        if share < 1:
            return f"{done}, about {in_time(max(0.0, self._ends - now))} left"
        return f"{done}, took {in_time(now - self._started)}"


def in_time(seconds: float) -> str:
    """A duration in words: `40 s`, `40 min`, `7 h 40 min`, rounded up."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds <= 5400:
        return f"{math.ceil(seconds / 60)} min"
    hours, minutes = divmod(10 * math.ceil(seconds / 600), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def planned_steps(instance: dg.DagsterInstance, run_id: str) -> int:
    """How many steps a run has."""
    run = instance.get_run_by_id(run_id)
    plan = instance.get_execution_plan_snapshot(str(run and run.execution_plan_snapshot_id))
    return len(plan.step_keys_to_execute)


def _place(context: dg.AssetExecutionContext) -> str:
    """Which step of how many its run is at, as `Step 5 of 21: `; empty where that is not known."""
    with suppress(Exception):  # A step that is run by itself, in a test, has no run.
        stats: Any = context.instance.get_run_stats(context.run_id)
        done = stats.steps_succeeded + stats.steps_failed
        return f"Step {done + 1} of {planned_steps(context.instance, context.run_id)}: "
    return ""
