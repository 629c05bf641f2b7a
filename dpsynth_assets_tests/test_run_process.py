"""A terminal run that was killed holds nothing once its process is known to be gone."""

import subprocess
import sys

import dagster as dg
import pytest

from dpsynth_assets.cli.instance import dagster_instance
from dpsynth_assets.cli.run_process import TAG, is_gone, this_process

NAME = "import time; from dpsynth_assets.cli.run_process import this_process; "


@pytest.fixture(scope="module")
def killed():
    """The name of a process that was killed, taken while it lived."""
    script = NAME + "print(this_process(), flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    name = child.stdout.readline().strip()
    alive = is_gone(name)
    child.kill()
    child.wait()
    assert not alive
    return name


def test_a_process_is_gone_once_it_was_killed(killed):
    assert is_gone(killed)
    assert not is_gone(this_process())


def test_an_id_that_was_given_anew_is_another_process():
    host, pid, started = this_process().rsplit(":", 2)
    assert is_gone(f"{host}:{pid}:{started}1")


def test_what_runs_elsewhere_is_not_taken_for_dead(killed):
    assert not is_gone("another-host:" + killed.split(":", 1)[1])


@dg.asset(pool="gpu")
def held():
    return 1


def claimed(instance, tags):
    """A started run that holds a slot of the pool."""
    job = dg.Definitions([held]).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job, tags=tags)
    started = dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=run.job_name)
    instance.report_dagster_event(started, run_id=run.run_id)
    instance.event_log_storage.set_concurrency_slots("gpu", 1)
    instance.event_log_storage.claim_concurrency_slot("gpu", run.run_id, "held")
    return run.run_id


@pytest.mark.parametrize("lives", [True, False])
def test_the_pool_is_freed_of_a_killed_terminal_run_alone(tmp_path, monkeypatch, killed, lives):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dagster_instance() as instance:
        run = claimed(instance, {TAG: this_process() if lives else killed})
    with dagster_instance() as instance:
        holders = instance.event_log_storage.get_concurrency_info("gpu").active_run_ids
        assert holders == ({run} if lives else set())
        status = instance.get_run_by_id(run).status
        assert (status is dg.DagsterRunStatus.FAILURE) != lives
