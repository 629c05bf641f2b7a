"""Ends a run in this process soon after Ctrl-C or SIGTERM, also while it waits for a pool.

Dagster notes a signal and looks at the note between steps. Where all steps of a run wait for a
place in a pool there is no next step, so it would never look. Within a step it raises at once;
where that happens while Python frees an object, the exception is printed and dropped, and the run
would go on to its end. Both are noticed here, and the exception is raised again.
"""

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

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
    over, dropped, main = threading.Event(), threading.Event(), threading.get_ident()
    before, shown = signal.signal(signal.SIGUSR1, _raise), sys.unraisablehook

    def notice(problem: Any) -> None:
        if problem.exc_type is not None and problem.exc_type.__name__ in _INTERRUPTED:
            dropped.set()
        else:
            shown(problem)

    sys.unraisablehook = notice
    watching = threading.Thread(
        target=_watch, args=(over, dropped, main), name="watch-signals", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = shown
        signal.signal(signal.SIGUSR1, before)


def never_dropped() -> None:
    """Repeats a Ctrl-C that came while Python freed an object, where it is printed and dropped.

    For the whole process; within `ended_by_signals` that block does so itself.
    """
    shown = sys.unraisablehook

    def repeat(problem: Any) -> None:
        if problem.exc_type is not KeyboardInterrupt:
            shown(problem)
            return
        main = threading.main_thread().ident or 0
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()

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


def _raise(*_: object) -> None:
    from dpsynth_assets.orchestration.dagster_internals import DagsterExecutionInterruptedError

    raise DagsterExecutionInterruptedError


def _watch(over: threading.Event, dropped: threading.Event, main: int) -> None:
    from dpsynth_assets.orchestration.dagster_internals import check_captured_interrupt

    noted = 0.0
    while not over.wait(_POLL_SECONDS):
        noted = noted + _POLL_SECONDS if check_captured_interrupt() else 0.0
        if (dropped.is_set() or noted >= GRACE_SECONDS) and not over.is_set():
            noted = 0.0
            dropped.clear()
            signal.pthread_kill(main, signal.SIGUSR1)
