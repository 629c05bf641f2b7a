"""SIGTERM ends a run that waits for a pool, and the run says that it was interrupted."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from dagster._core.errors import (
    DagsterExecutionInterruptedError,
    raise_execution_interrupts,
)
from dagster._utils.interrupts import capture_interrupts

from dpsynth_assets.orchestration.resources.live_runs import never_dropped

WAITING = textwrap.dedent(
    """
    import sys
    import dagster as dg
    from dpsynth_assets.cli.terminal import described
    from dpsynth_assets.orchestration.resources import live_runs

    ended_by_signals, was_interrupted = live_runs.ended_by_signals, live_runs.was_interrupted

    @dg.asset(pool="narrow")
    def waits():
        raise AssertionError("ran without a place")

    with dg.DagsterInstance.get() as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots("narrow", 1)
        assert storage.claim_concurrency_slot("narrow", "another-run", "step").is_claimed
        print("waiting", flush=True)
        try:
            with ended_by_signals():
                result = dg.materialize([waits], instance=instance, raise_on_error=False)
            if was_interrupted(result.all_events):
                raise KeyboardInterrupt
        except BaseException as error:
            line, code = described(error)
            print(line, flush=True)
            sys.exit(code)
    """
)


def test_sigterm_ends_a_run_that_waits_for_a_pool(tmp_path):
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"}
    run = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WAITING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert run.stdout.readline() == "waiting\n"
        while run.poll() is None and "Step blocked" not in run.stderr.readline():
            pass
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=60)  # Seconds when idle; a hang never ends.
    finally:
        run.kill()
    assert said.startswith("Interrupted."), said
    assert run.returncode == 130


class Freed:
    """An object during whose end a signal arrives, so that what its handler raises is dropped."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_arrives_while_an_object_is_freed_ends_the_run(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    never_dropped()
    with (
        pytest.raises(DagsterExecutionInterruptedError),
        capture_interrupts(),
        raise_execution_interrupts(),
    ):
        _draw_that_drops_the_first_signal()


def test_ctrl_c_while_an_object_is_freed_ends_a_command_outside_a_run(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(Freed, "__del__", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        never_dropped()
        with pytest.raises(KeyboardInterrupt):
            _draw_that_drops_the_first_signal(seconds=10)
    finally:
        signal.signal(signal.SIGINT, before)


def _draw_that_drops_the_first_signal(seconds=60):
    Freed()
    until = time.monotonic() + seconds  # Seconds when idle; without the cure it lasts to the end.
    while time.monotonic() < until:
        time.sleep(0.05)
