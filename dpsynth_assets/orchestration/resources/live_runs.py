"""Finds runs that are alive, by a file lock that the operating system frees with the process.

A killed run reports nothing, so Dagster shows it as started and keeps its place in a pool. Its lock
tells: a process that can take it knows that the owner has ended, for any reason, after a restart of
the machine, and from a container with another hostname. Locks are in DPSYNTH_HOME, which every
worker of an installation has in common and which outlives a container. A run that left no lock
file there may belong to another installation, and is left alone unless Dagster's own log shows that
it never began.

Some shared file systems keep a lock from the other machines. So where DPSYNTH_HOME may be shared
and the lock was taken on another machine, its holder is gone only once its signs of life stop, too.
"""

import fcntl
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger.replacing import owner_folder, replaced
from dpsynth_assets.tags import RELEASE

if TYPE_CHECKING:
    import dagster as dg


SECONDS_BETWEEN_SIGNS, SECONDS_OF_SILENCE = 10.0, 180.0
"""How often a live run renews its lock file; how long one of another machine may miss to."""

_SUFFIX = ".lock"
_held: dict[str, IO[str]] = {}
"""The lock of the run that this process executes; it ends with the process."""


def hold_until_exit(run_id: str) -> None:
    """Holds the lock of a run until this process ends or executes another.

    A run worker is not done when its executor is: it still reports the end of the run, and is as
    dead as any other if it is killed before.
    """
    while _held:
        earlier, file = _held.popitem()
        _path(earlier).unlink(missing_ok=True)
        file.close()
    _held[run_id] = _locked(run_id)


def is_gone(run_id: str) -> bool:
    """Says whether a run began in this installation and its process ended without saying so."""
    try:
        file = _path(run_id).open("r")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        _, _, machine = file.read().partition("\n")
        return machine.strip() in ("", _machine()) or _is_silent(file)


def free_dead_runs(instance: "dg.DagsterInstance") -> list[str]:
    """Reports runs that are gone as failed and frees what they and finished runs hold of pools.

    Returns:
        A line for each run that was freed, saying whose it was, for the log of the process that
        came next.
    """
    import dagster as dg

    status = dg.DagsterRunStatus
    under_way = [status.STARTING, status.STARTED, status.CANCELING]
    lines = []
    for run in instance.get_runs(dg.RunsFilter(statuses=under_way)):
        reason = _end_of(instance, run)
        if reason is None:
            continue
        if run.status is status.CANCELING:
            instance.report_run_canceled(run, reason)
        else:
            instance.report_run_failed(run, reason)
        lines.append(f"{describe(run)}: {reason[0].lower()}{reason[1:]}")
    lines += _free_slots(instance)
    _remove_locks_of_finished_runs(instance)
    return lines


def describe(run: "dg.DagsterRun") -> str:
    """A run in words: its id, what it makes, under which release name."""
    keys = sorted(key.path[0] for key in run.asset_selection or ())
    made = ", ".join(dict.fromkeys(keys)) or run.job_name
    release = run.tags.get(RELEASE, "")
    return f"Run {run.run_id[:8]} of {made}" + (f", release {release!r}" if release else "")


def _end_of(instance: "dg.DagsterInstance", run: "dg.DagsterRun") -> str | None:
    """Why a run that Dagster shows as under way is over; None where it may be alive."""
    import dagster as dg

    if is_gone(run.run_id):
        return f"Its process{_whereabouts(run.run_id)} was killed."
    if _path(run.run_id).exists():
        return None
    status = dg.DagsterRunStatus
    canceling = run.status is status.CANCELING
    limit = (
        instance.run_monitoring_cancel_timeout_seconds
        if canceling
        else instance.run_monitoring_start_timeout_seconds
    )
    last = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    silent = bool(last) and time.time() - last[0].timestamp >= limit
    if silent and canceling:
        return f"Its process did not end within {limit} seconds, or was killed before."
    # A run says what executes it as soon as it has begun; one whose last word is its beginning
    # was killed before it held its lock.
    said = last[0].event_log_entry.dagster_event if last else None
    begins = said is not None and said.event_type is dg.DagsterEventType.RUN_START
    if silent and (begins or run.status is status.STARTING):
        return f"Its launching process was killed: the run did not begin within {limit} seconds."
    return None


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
                whose = f"Run {run_id[:8]}" if run is None else describe(run)
                lines.append(f"{whose} has ended; its place in pool {pool} is free.")
    return lines


def _remove_locks_of_finished_runs(instance: "dg.DagsterInstance") -> None:
    for path in _folder().glob(f"*{_SUFFIX}"):
        run_id = path.name.removesuffix(_SUFFIX)
        if is_gone(run_id):
            run = instance.get_run_by_id(run_id)
            if run is not None and run.is_finished:
                path.unlink(missing_ok=True)


def _locked(run_id: str) -> IO[str]:
    """The open file of a run's lock, which is held until it is closed."""
    owner_folder(_folder())
    with replaced(_path(run_id)) as new:  # No process sees the file of a live run without its lock.
        file = new.open("w")
        file.write(f"{socket.gethostname()}\n{_machine()}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
    threading.Thread(target=_sign, args=[file], name="sign-of-life", daemon=True).start()
    return file


def _sign(file: IO[str]) -> None:
    """Renews the time of a lock file until it is closed."""
    with suppress(OSError, ValueError):  # Closed: the run is over.
        while True:
            time.sleep(SECONDS_BETWEEN_SIGNS)
            os.utime(file.fileno())


def _is_silent(file: IO[str]) -> bool:
    """Whether a lock file was not renewed for long, by the clock of its own file system."""
    with tempfile.TemporaryFile(dir=_folder()) as now:
        age = os.fstat(now.fileno()).st_mtime - os.fstat(file.fileno()).st_mtime
    return age > SECONDS_OF_SILENCE


def _machine() -> str:
    """A name of the running kernel: containers share it, a restart or another host changes it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else ""


def _whereabouts(run_id: str) -> str:
    """The host that a run's lock was taken on, where it is not this one."""
    try:
        host = _path(run_id).read_text(errors="replace").partition("\n")[0]
    except OSError:  # Somebody else has just freed the run.
        return ""
    return f" on host {host}" if host not in ("", socket.gethostname()) else ""


def _folder() -> Path:
    return home().root / "live_runs"


def _path(run_id: str) -> Path:
    return _folder() / f"{run_id}{_SUFFIX}"


# Watches what a run waits for: frees dead runs meanwhile, and says whom a long wait is for.


POLL_SECONDS = 5.0
LONG_WAIT_SECONDS = 10.0


@contextmanager
def watched(
    instance: "dg.DagsterInstance", run_id: str, say: Callable[[str], object]
) -> Iterator[None]:
    """Keeps a run from waiting for the dead, and says what it waits for, while it executes.

    A run that waits for a place in a pool asks for it again and again, but nothing frees the places
    of runs that are killed in the meantime where no daemon runs. So each run looks for them itself.

    Args:
        instance: Where runs and pools are recorded.
        run_id: The run that executes in this process.
        say: Takes a line for the log of the run or for the terminal; called from another thread.
    """
    from dpsynth_assets.orchestration.dagster_internals import rest_between_claims

    rest_between_claims()
    over, since = threading.Event(), dict[str, float]()

    def tell() -> None:
        with suppress(Exception):  # A database that is away is the run's own to report.
            for line in [*free_dead_runs(instance), *_waits(instance, run_id, since)]:
                say(line)

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            tell()

    tell()  # What runs that were killed before hold is free before the run asks.
    watcher = threading.Thread(target=watch, name="watch-runs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(POLL_SECONDS)


def _waits(instance: "dg.DagsterInstance", run_id: str, since: dict[str, float]) -> Iterator[str]:
    """A line for each pool that a run has waited for longer than `LONG_WAIT_SECONDS`, once.

    Args:
        instance: Where runs and pools are recorded.
        run_id: The run.
        since: Pool -> when the wait for it began; infinity where it was said.
    """
    now, storage = time.monotonic(), instance.event_log_storage
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        # Steps of one run that wait for each other are not waiting for another run.
        holders = info.active_run_ids | info.assigned_run_ids
        if run_id not in info.pending_run_ids or holders == {run_id}:
            since.pop(pool, None)
        elif now - since.setdefault(pool, now) + POLL_SECONDS > LONG_WAIT_SECONDS:
            since[pool] = math.inf
            runs = map(instance.get_run_by_id, sorted(holders - {run_id}))
            whose = "; ".join(describe(run) for run in runs if run is not None)
            yield (
                f"Waits for a place in pool {pool}, which is held by {whose or 'no run'}. A step "
                "that waits charges nothing. More places: "
                f"DAGSTER_HOME={instance.root_directory} "
                f"dagster instance concurrency set {pool} {info.slot_count + 1}"
            )


# Ends a run in this process soon after Ctrl-C or SIGTERM, also while it waits for a pool.
#
# Dagster notes a signal and looks at the note between steps. Where all steps of a run wait for a
# place in a pool there is no next step, so it would never look. Within a step it raises at once;
# where that happens while Python frees an object, the exception is printed and dropped, and the run
# would go on to its end: then the signal is sent again.

GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.5
_INTERRUPTED = {"DagsterExecutionInterruptedError", "StepInterruptedError", "KeyboardInterrupt"}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises what Dagster raises for an interrupt, once a noted one was not looked at for a while.

    Does nothing outside the main thread, where no signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over, before = threading.Event(), signal.signal(signal.SIGUSR1, _raise)
    threading.Thread(target=_watch, args=(over,), name="watch-signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, before)


def never_dropped() -> None:
    """Repeats a signal that came while Python freed an object, where it is printed and dropped."""
    shown = sys.unraisablehook

    def repeat(problem: Any) -> None:
        if getattr(problem.exc_type, "__name__", "") not in _INTERRUPTED:
            shown(problem)
            return
        threading.Timer(0.05, _to_main, (signal.SIGINT,)).start()

    sys.unraisablehook = repeat


def was_interrupted(events: Iterable[Any]) -> bool:
    """Whether the events of a run say that a signal ended it, in a step or between two."""
    errors = [getattr(event.event_specific_data, "error", None) for event in events]
    while errors:
        error = errors.pop()
        if error is None:
            continue
        if getattr(error, "cls_name", None) in _INTERRUPTED:
            return True
        errors.append(getattr(error, "cause", None))
    return False


def _to_main(number: signal.Signals) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _raise(*_: object) -> None:
    from dpsynth_assets.orchestration.dagster_internals import DagsterExecutionInterruptedError

    raise DagsterExecutionInterruptedError


def _watch(over: threading.Event) -> None:
    from dpsynth_assets.orchestration.dagster_internals import check_captured_interrupt

    noted = 0.0
    while not over.wait(_POLL_SECONDS):
        noted = noted + _POLL_SECONDS if check_captured_interrupt() else 0.0
        if noted >= GRACE_SECONDS and not over.is_set():
            noted = 0.0
            _to_main(signal.SIGUSR1)
