"""What a killed run holds is freed by whoever comes next, and what lives is left alone."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise

import dagster as dg
import pytest
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

from dpsynth_assets.defs.sensors import killed_runs_sensor
from dpsynth_assets.orchestration import dagster_internals
from dpsynth_assets.orchestration.instance import dagster_instance
from dpsynth_assets.orchestration.resources import live_runs
from dpsynth_assets.orchestration.resources.executors import declared_executor
from dpsynth_assets.orchestration.resources.live_runs import (
    free_dead_runs,
    hold_until_exit,
    is_gone,
)

HOLD = textwrap.dedent("""
    import sys, time
    from dpsynth_assets.orchestration.resources.live_runs import hold_until_exit
    hold_until_exit(sys.argv[1])
    print("held", flush=True)
    time.sleep(600)
""")

FREE = textwrap.dedent("""
    import dagster as dg
    from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs
    with dg.DagsterInstance.get() as instance:
        print(free_dead_runs(instance))
""")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.delenv("DPSYNTH_EXECUTOR", raising=False)


@pytest.fixture
def process():
    """Starts processes that hold the lock of a run; kills them at the end."""
    children = []

    def start(run_id):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, run_id], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout.readline().strip() == "held"
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(60)


def kill(child):
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)


def in_container(host, code, *arguments):
    """Starts Python as a container would: under another hostname, and as process 1."""
    own = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("this machine allows no namespaces")
    command = f'hostname {host} && exec {shlex.quote(sys.executable)} -c "$0" "$@"'
    started = [*own, "sh", "-c", command, code, *arguments]
    return subprocess.Popen(started, stdout=subprocess.PIPE, text=True)


def test_a_restarted_container_frees_what_it_was_killed_with():
    """Killed under one hostname; whoever comes next has another, and is process 1 as well."""
    with dagster_instance() as instance:
        run_id = started(instance)
        child = in_container("box-a", HOLD, run_id)
        assert child.stdout.readline().strip() == "held"
        look = in_container("box-b", FREE)
        assert look.communicate(timeout=120)[0].strip() == "[]"
        assert not instance.get_run_by_id(run_id).is_finished, "a live run was taken for dead"
        kill(child)
        look = in_container("box-b", FREE)
        said = look.communicate(timeout=120)[0]
        assert f"Run {run_id[:8]} of" in said
        assert "its process on host box-a was killed" in said
        assert "place in pool gpu is free" in said
        assert instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.FAILURE
        assert held_by(instance) == set()


@pytest.mark.parametrize(
    ("machine", "silent", "gone"),
    [("other", False, False), ("other", True, True), ("own", False, True), ("", False, True)],
)
def test_a_lock_that_another_machine_may_hold_unseen(machine, silent, gone, tmp_path):
    """A free lock of another machine proves nothing while it is renewed."""
    folder = tmp_path / "live_runs"
    folder.mkdir()
    lock = folder / "far.lock"
    lock.write_text(f"far\n{live_runs._machine() if machine == 'own' else machine}\n")
    if silent:
        old = lock.stat().st_mtime - live_runs.SECONDS_OF_SILENCE - 60
        os.utime(lock, (old, old))
    assert is_gone("far") == gone


def test_a_live_run_renews_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs, "SECONDS_BETWEEN_SIGNS", 0.01)
    hold_until_exit("lives")
    lock = tmp_path / "live_runs" / "lives.lock"
    os.utime(lock, (1, 1))
    while lock.stat().st_mtime == 1:
        time.sleep(0.01)


@dg.asset(pool="gpu")
def held():
    return 1


def started(instance, *, holds="claimed"):
    """A started run that holds a slot of the pool, is assigned one, or waits for one."""
    job = dg.Definitions([held]).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job)
    event = dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=run.job_name)
    instance.report_dagster_event(event, run_id=run.run_id)
    storage = instance.event_log_storage
    storage.set_concurrency_slots("gpu", 1)
    if holds == "waits":
        other = instance.create_run_for_job(job)
        storage.claim_concurrency_slot("gpu", other.run_id, "held")
    status = storage.claim_concurrency_slot("gpu", run.run_id, "held")
    assert status.is_claimed == (holds == "claimed")
    return run.run_id


def held_by(instance):
    info = instance.event_log_storage.get_concurrency_info("gpu")
    return info.active_run_ids | info.assigned_run_ids | info.pending_run_ids


@pytest.mark.parametrize("holds", ["claimed", "waits"])
@pytest.mark.parametrize("lives", [True, False])
def test_a_killed_run_is_reported_and_its_place_freed(process, holds, lives):
    with dagster_instance() as instance:
        run_id = started(instance, holds=holds)
        child = process(run_id)
        if not lives:
            kill(child)
        assert is_gone(run_id) != lives
        lines = free_dead_runs(instance)
        failed = instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.FAILURE
        assert failed != lives
        assert (run_id in held_by(instance)) == lives
        assert any(run_id[:8] in line for line in lines) != lives


def held_job():
    job = dg.define_asset_job("holding", selection="*")
    definitions = dg.Definitions([held], jobs=[job], executor=declared_executor())
    return definitions.resolve_job_def("holding")


@pytest.mark.parametrize("waiting", [False, True])
def test_a_run_frees_what_it_would_wait_for(process, waiting, monkeypatch):
    """Its holder was killed before the run asks, or is killed while it waits; no daemon runs.

    A run that waits asks a few times a second; as Dagster has it, it would keep a core busy.
    """
    monkeypatch.setattr(live_runs, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("DPSYNTH_EXECUTOR", "in_process")
    with dagster_instance() as instance:
        child = process(started(instance))
        frees, times = threading.Thread(target=kill, args=[child]), []
        if not waiting:
            kill(child)
        dagster_internals.rest_between_claims()
        ask = InstanceConcurrencyContext.claim

        def asked(*arguments, **named):
            times.append(time.monotonic())
            if waiting and frees.ident is None:
                frees.start()
            return ask(*arguments, **named)

        asked.rests = True
        monkeypatch.setattr(InstanceConcurrencyContext, "claim", asked)
        assert dg.execute_job(dg.reconstructable(held_job), instance=instance).success
        gaps = [after - before for before, after in pairwise(times)]
        assert bool(gaps) >= waiting
        assert all(gap >= dagster_internals.REST_SECONDS for gap in gaps)


def test_a_slot_assigned_to_a_killed_waiter_is_freed(process):
    """The holder ends, its slot is assigned to a waiter that was killed: the next run gets it."""
    with dagster_instance() as instance:
        storage = instance.event_log_storage
        waiter = started(instance, holds="waits")
        kill(process(waiter))
        (first,) = storage.get_concurrency_info("gpu").active_run_ids
        storage.free_concurrency_slots_for_run(first)
        assert storage.get_concurrency_info("gpu").assigned_run_ids == {waiter}
        free_dead_runs(instance)
        started(instance)


@pytest.mark.parametrize(
    ("said", "gone", "limit"),
    [
        ([], False, 0),
        (["PIPELINE_STARTING"], True, 0),
        (["PIPELINE_STARTING"], False, 600),
        (["PIPELINE_STARTING", "ENGINE_EVENT"], True, 0),
        (["PIPELINE_STARTING", "PIPELINE_START"], True, 0),
        (["PIPELINE_STARTING", "PIPELINE_START", "ENGINE_EVENT"], False, 0),
        (["PIPELINE_STARTING", "PIPELINE_START", "PIPELINE_CANCELING"], True, 0),
        (["PIPELINE_STARTING", "PIPELINE_START", "PIPELINE_CANCELING"], False, 600),
    ],
)
def test_a_run_whose_launch_was_killed_is_reported_once_its_time_is_over(
    said, gone, limit, tmp_path
):
    """The daemon or the worker dies before the worker holds its lock; the log tells."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text(
        f"run_monitoring: {{start_timeout_seconds: {limit}, cancel_timeout_seconds: {limit}}}\n"
    )
    with dagster_instance() as instance:
        job = dg.Definitions([held]).resolve_implicit_global_asset_job_def()
        run = instance.create_run_for_job(job, tags={"dpsynth/release": "june"})
        for event in said:
            if event == "ENGINE_EVENT":
                instance.report_engine_event("Executing steps", run)
                continue
            told = dg.DagsterEvent(event_type_value=event, job_name=run.job_name)
            instance.report_dagster_event(told, run_id=run.run_id)
        told = any(run.run_id[:8] in x and "'june'" in x for x in free_dead_runs(instance))
        assert instance.get_run_by_id(run.run_id).is_finished == told == gone


def test_locks_of_finished_runs_are_removed(process, tmp_path):
    with dagster_instance() as instance:
        run_id = started(instance)
        kill(process(run_id))
        assert (tmp_path / "live_runs" / f"{run_id}.lock").exists()
        told = killed_runs_sensor()(dg.build_sensor_context(instance=instance))
        assert run_id[:8] in told.skip_message
        assert list((tmp_path / "live_runs").iterdir()) == []


def test_a_launched_run_holds_its_lock_while_it_executes(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSYNTH_EXECUTOR", "local")
    with dagster_instance() as instance:
        result = dg.execute_job(dg.reconstructable(seen_job), instance=instance)
        assert result.success
        assert (tmp_path / "seen").read_text() == f"{result.run_id}.lock"
        # Its worker still reports the end of the run: the lock ends with the process.
        hold_until_exit("another")
        assert [path.name for path in (tmp_path / "live_runs").iterdir()] == ["another.lock"]


@dg.op
def look():
    from pathlib import Path

    folder = Path(os.environ["DPSYNTH_HOME"])
    (folder / "seen").write_text(" ".join(p.name for p in (folder / "live_runs").iterdir()))


def seen_job():
    @dg.job(executor_def=declared_executor())
    def seen():
        look()

    return seen
