"""Watches what a run waits for: frees dead runs meanwhile, and says whom a long wait is for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dpsynth_assets.orchestration.resources.live_runs import describe, free_dead_runs

if TYPE_CHECKING:
    import dagster as dg

POLL_SECONDS = 5.0
LONG_WAIT_SECONDS = 10.0
_SAID_AGAIN_SECONDS = 300.0


@contextmanager
def watched(
    instance: "dg.DagsterInstance", run_id: str, say: Callable[[str], object]
) -> Iterator[None]:
    """Keeps a run from waiting for the dead, and says what it waits for, while it executes.

    A run that waits for a place in a pool asks for it again and again, but nobody frees the places
    of runs that are killed in the meantime where no daemon runs. So each run looks for them itself.

    Args:
        instance: Where runs and pools are recorded.
        run_id: The run that executes in this process.
        say: Takes a line for the log of the run or for the terminal; called from another thread.
    """
    from dpsynth_assets.orchestration.dagster_internals import rest_between_claims

    rest_between_claims()
    over = threading.Event()
    _tell(instance, _Waits(instance, run_id), say)  # The dead of earlier are gone before it asks.
    watcher = threading.Thread(
        target=_watch, args=(instance, run_id, say, over), name="watch-runs", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(POLL_SECONDS)


def _watch(
    instance: "dg.DagsterInstance",
    run_id: str,
    say: Callable[[str], object],
    over: threading.Event,
) -> None:
    waits = _Waits(instance, run_id)
    while not over.wait(POLL_SECONDS):
        _tell(instance, waits, say)


def _tell(instance: "dg.DagsterInstance", waits: "_Waits", say: Callable[[str], object]) -> None:
    # A database that is away is the run's own to report.
    with suppress(Exception):
        for line in [*free_dead_runs(instance), *waits.lines()]:
            say(line)


class _Waits:
    """What one run has waited for, since when, and when that was said."""

    def __init__(self, instance: "dg.DagsterInstance", run_id: str) -> None:
        self._instance, self._run_id = instance, run_id
        self._since: dict[str, float] = {}
        self._said: dict[str, float] = {}

    def lines(self) -> list[str]:
        """A line for each pool that the run has waited for longer than `LONG_WAIT_SECONDS`."""
        now, storage, lines = time.monotonic(), self._instance.event_log_storage, []
        for pool in sorted(storage.get_concurrency_keys()):
            info = storage.get_concurrency_info(pool)
            # Steps of one run that wait for each other wait for nobody.
            holders = info.active_run_ids | info.assigned_run_ids
            if self._run_id not in info.pending_run_ids or holders == {self._run_id}:
                self._since.pop(pool, None)
                self._said.pop(pool, None)
                continue
            waited = now - self._since.setdefault(pool, now)
            again = now - self._said.get(pool, -_SAID_AGAIN_SECONDS) >= _SAID_AGAIN_SECONDS
            if waited + POLL_SECONDS > LONG_WAIT_SECONDS and again:
                self._said[pool] = now
                lines.append(self._line(pool, holders - {self._run_id}, info.slot_count + 1))
        return lines

    def _line(self, pool: str, holders: set[str], more: int) -> str:
        runs = [self._instance.get_run_by_id(holder) for holder in sorted(holders)]
        whose = "; ".join(describe(run) for run in runs if run is not None)
        return (
            f"Waits for a place in pool {pool}, which is held by {whose or 'nobody'}. A step that "
            f"waits charges nothing. More places: DAGSTER_HOME={self._instance.root_directory} "
            f"dagster instance concurrency set {pool} {more}"
        )
