"""Finds runs that are alive: each holds a lock of the operating system that ends with its process.

A killed run reports nothing, so Dagster shows it as started and keeps its place in a pool. Its lock
tells: whoever can take it knows that the process is gone, whatever killed it, after a restart of
the machine, and from a container with another hostname. A run that left no lock file here may live
on another machine, and is left alone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_assets.paths import home

if TYPE_CHECKING:
    import dagster as dg


@contextmanager
def alive(run_id: str) -> Iterator[None]:
    """Holds the lock of a run as long as it executes in this process."""
    path = _path(run_id)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(f".{os.getpid()}")
    with new.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.replace(path)  # Nobody sees the file of a live run without its lock.
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_gone(run_id: str) -> bool:
    """Says whether a run began on this machine and its process has ended without saying so."""
    try:
        file = _path(run_id).open("r")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def free_dead_runs(instance: "dg.DagsterInstance") -> list[str]:
    """Reports runs that are gone as failed and frees what they and finished runs hold of pools.

    Returns:
        A line for each run that was freed, for the log of whoever came next.
    """
    import dagster as dg

    status = dg.DagsterRunStatus
    under_way = [status.STARTING, status.STARTED, status.CANCELING]
    lines = []
    for run in instance.get_runs(dg.RunsFilter(statuses=under_way)):
        if is_gone(run.run_id):
            instance.report_run_failed(run, "The process of this run was killed.")
            with suppress(OSError):
                _path(run.run_id).unlink()
            lines.append(f"Run {run.run_id[:8]} ({run.job_name}) was killed: reported as failed.")
    return lines + _free_slots(instance)


def _free_slots(instance: "dg.DagsterInstance") -> list[str]:
    """Frees slots that were claimed by, assigned to or awaited by runs that are over."""
    storage = instance.event_log_storage
    lines = []
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        for run_id in sorted(info.active_run_ids | info.assigned_run_ids | info.pending_run_ids):
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
                lines.append(f"Pool {pool}: freed the place of run {run_id[:8]}, which is over.")
    return lines


def _path(run_id: str) -> Path:
    base = Path(os.environ.get("DAGSTER_HOME", "") or home().dagster)
    return base / "live_runs" / f"{run_id}.lock"
