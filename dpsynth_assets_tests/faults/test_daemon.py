"""kill -9 of the daemon: its run goes on, its queue is worked off by the next, and one pays."""

import contextlib
import os
import signal
import subprocess
import sys

import dagster as dg
import pytest

from dpsynth_assets_tests.children import until
from dpsynth_assets_tests.faults.cohort import RESERVED
from dpsynth_assets_tests.faults.conftest import CLOSING_SECONDS, PATIENCE_SECONDS, ROOT

pytestmark = pytest.mark.slow

SETTINGS = """
telemetry: {enabled: false}
concurrency: {runs: {max_concurrent_runs: 1}}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
WORKSPACE = "load_from: [{python_file: {relative_path: location.py, location_name: faults}}]"
LOCATION = """
from dpsynth_assets_tests.faults.cohort import counts_job

counts = counts_job()
"""


@pytest.fixture
def queue(house, monkeypatch):
    """A house whose runs are queued for a daemon."""
    (house.home / "dagster" / "dagster.yaml").write_text(SETTINGS)
    (house.folder / "workspace.yaml").write_text(WORKSPACE)
    (house.folder / "location.py").write_text(LOCATION)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return house


def dagster(house, module, *command):
    """Starts one of Dagster's commands, as the leader of a group of processes."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *command, "-w", "workspace.yaml"],
        cwd=house.folder,
        env={**os.environ, "POLARS_MAX_THREADS": "1", **house.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(daemon):
    """Ends whatever a daemon has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait(CLOSING_SECONDS)


def statuses(house):
    with dg.DagsterInstance.from_config(str(house.home / "dagster")) as instance:
        return [run.status for run in instance.get_runs()]


def queue_again(house):
    """Puts a second run like the first into the queue, as another person's click would."""
    with dg.DagsterInstance.from_config(str(house.home / "dagster")) as instance:
        (run,) = instance.get_runs()
        instance.add_run(run._replace(run_id=dg.DagsterRun(job_name="counts").run_id))


def test_a_killed_daemon_loses_no_run_and_the_next_one_pays_nothing_twice(queue):
    launch = dagster(queue, "dagster", "job", "launch", "-j", "counts")
    assert launch.wait(PATIENCE_SECONDS) == 0
    queue_again(queue)
    assert statuses(queue) == [dg.DagsterRunStatus.QUEUED] * 2
    queue.hold(RESERVED)
    first = dagster(queue, "dagster._daemon", "run")
    second = None
    try:
        queue.wait_for(RESERVED)
        os.kill(first.pid, signal.SIGKILL)
        queue.free(RESERVED)
        second = dagster(queue, "dagster._daemon", "run")
        done = [dg.DagsterRunStatus.SUCCESS] * 2
        until(lambda: statuses(queue) == done, f"the queue was not worked off: {statuses(queue)}")
    finally:
        end(first)
        if second is not None:
            end(second)
    queue.assert_whole(charges=1, released=1)
    assert len(queue.passed(RESERVED)) == 1
