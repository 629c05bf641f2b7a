"""A queue of runs and daemons that are killed, in the installation of the chaos rounds."""

import os
import signal
from contextlib import suppress
from typing import Any

import dagster as dg

from dpsynth_assets.tags import RELEASE
from dpsynth_assets_tests.faults.conftest import CLOSING_SECONDS, PATIENCE_SECONDS, ROOT
from dpsynth_assets_tests.faults.test_daemon import WORKSPACE, dagster

SETTINGS = """
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
LOCATION = """
import dagster as dg

from dpsynth_assets.defs.sensors import killed_runs_sensor
from dpsynth_assets_tests.faults.cohort import counts_job

defs = dg.Definitions(jobs=[counts_job()], sensors=[killed_runs_sensor()])
"""
VARIABLES = {"FAULTS_EXECUTOR": "declared", "FAULTS_PUBLISH": "1", "PYTHONPATH": str(ROOT)}


class Queue:
    """Runs of one job that wait for a daemon.

    Args:
        house: The installation's home.
        instance: Its opened Dagster instance, whose settings have a queue.
    """

    def __init__(self, house: Any, instance: dg.DagsterInstance) -> None:
        self._house, self._instance = house, instance
        self._first: dg.DagsterRun | None = None
        (house.folder / "workspace.yaml").write_text(WORKSPACE)
        (house.folder / "location.py").write_text(LOCATION)
        house.variables |= VARIABLES

    def put(self, release: str) -> str:
        """Queues a run as a person's launch does; returns its id."""
        if self._first is None:
            self._first = self._launched()
        run_id = dg.DagsterRun(job_name="counts").run_id
        tags = {**self._first.tags, RELEASE: release}
        self._instance.add_run(self._first._replace(run_id=run_id, tags=tags))
        return run_id

    def finished(self, run_id: str) -> bool:
        """Whether a run is over, whatever its end."""
        run = self._instance.get_run_by_id(run_id)
        return run is not None and run.is_finished

    def daemon(self) -> Any:
        """Starts a daemon, the leader of a group that its code server and its runs are in."""
        return dagster(self._house, "dagster._daemon", "run")

    def _launched(self) -> dg.DagsterRun:
        """A run that Dagster's own command queued; taken out again, it is what others are like."""
        launch = dagster(self._house, "dagster", "job", "launch", "-j", "counts")
        assert launch.wait(PATIENCE_SECONDS) == 0, "the launch was refused"
        (run,) = self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
        self._instance.delete_run(run.run_id)
        return run


def kill(daemon: Any, *, group: bool) -> None:
    """Kills a daemon alone, or with everything that it started, as a power cut does."""
    with suppress(ProcessLookupError):
        if group:
            os.killpg(daemon.pid, signal.SIGKILL)
        else:
            os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait(CLOSING_SECONDS)


def end(daemon: Any) -> None:
    """Ends a daemon and whatever it has left running."""
    kill(daemon, group=True)
