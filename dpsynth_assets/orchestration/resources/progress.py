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
        place = _place(context)

        def log(line: str) -> None:
            with suppress(Exception):  # A log without room must not end what is paid for.
                context.log.info("%s%s: %s", place, title, line)

        logged = in_lines(log, self.log_every_seconds)

        def report(share: float, message: str) -> None:
            if bar is not None:
                bar(share, message)
            logged(share, message)

        return report


def coarse(share: float) -> float:
    """Rounds a share down to what may be logged; see `LOGGED_STEPS`."""
    return math.floor(share * LOGGED_STEPS + 1e-9) / LOGGED_STEPS


def in_lines(tell: Callable[[str], object], seconds: float) -> ProgressCallback:
    """Tells how far something is: share, message, and the time that it took or may still take.

    The estimate is made when the share has come to another step of 1/20, and counts down from
    there: between two steps nothing is known that would lengthen it.

    Args:
        tell: Takes a line: the first one, the last one, and some between.
        seconds: Least time between lines.
    """
    started = time.monotonic()
    last, known, ends = -math.inf, 0.0, started  # The first message is always told.

    def report(share: float, message: str) -> None:
        nonlocal last, known, ends
        now, share = time.monotonic(), coarse(share)
        if share not in (0, known):
            known, ends = share, started + (now - started) / share
        if now - last < seconds and share < 1:
            return
        last, line = now, message
        if share > 0:
            left = f"about {in_time(max(0.0, ends - now))} left"
            rest = left if share < 1 else f"took {in_time(now - started)}"
            line = f"{f'{share:.0%} {message}'.rstrip()}, {rest}"
        tell(line)

    return report


def in_time(seconds: float) -> str:
    """A duration in words: `40 s`, `40 min`, `7 h 40 min`, rounded up."""
    if seconds < 120:
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
