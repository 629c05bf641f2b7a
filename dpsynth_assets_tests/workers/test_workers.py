"""What holds for workers of any kind; Ray's are tested in `ray/test_ray_workers.py`."""

import multiprocessing
import os
import sys
import time
import traceback
from functools import partial
from types import SimpleNamespace

import pytest

from dpsynth_assets.orchestration.resources.stores import PartWorkers
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.workers import (
    LocalWorkers,
    WorkerError,
    declared_workers,
    forget,
    kept,
    ray_cluster,
)
from dpsynth_assets.workers.ray_cluster import RayWorkers
from dpsynth_assets_tests.workers import tasks


@pytest.fixture
def parts(tmp_path):
    return tasks.written(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_results_come_in_the_order_of_parts(parts, count):
    made = list(LocalWorkers(count).map_parts(tasks.length, parts))
    assert made == [len(tasks.SECRET) + number for number in range(5)]


def test_one_worker_is_this_process_and_several_are_others(parts):
    assert set(LocalWorkers(1).map_parts(tasks.process, parts)) == {os.getpid()}
    assert os.getpid() not in set(LocalWorkers(2).map_parts(tasks.process, parts))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_memory_of_a_worker_is_in_no_core_dump(parts):
    assert set(LocalWorkers(2).map_parts(tasks.may_be_dumped, parts)) == {0}


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_a_worker_quotes_no_record(parts, count, capfd):
    with pytest.raises(WorkerError, match="00000-of-00005 in a worker failed with ValueError") as e:
        list(LocalWorkers(count).map_parts(tasks.quotes_a_record, parts))
    told = "".join(traceback.format_exception(e.value))
    assert tasks.SECRET not in told + "".join(capfd.readouterr())


@pytest.mark.parametrize("count", [1, 2])
def test_a_refusal_of_a_worker_keeps_its_message(parts, count):
    with pytest.raises(WorkerError, match="Export it"):
        list(LocalWorkers(count).map_parts(tasks.refuses, parts))


def test_whoever_wants_no_more_waits_for_no_part(parts, tmp_path):
    results = LocalWorkers(2).map_parts(tasks.LongAfterTheFirst(tmp_path), parts)
    assert next(results) == 0
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    results.close()
    assert not (tmp_path / "ended").exists()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("count", [1, 2])
def test_opened_workers_stay_with_what_they_keep_until_the_block_ends(parts, count):
    with LocalWorkers(count).opened() as workers:
        told = [each for _ in range(3) for each in workers.map_parts(tasks.kept_here, parts)]
        processes = {process for process, _ in told}
        assert len(processes) <= count
        assert (os.getpid() in processes) is (count == 1)
        # Fifteen calls, and every process made what it keeps once.
        calls = {process: [n for own, n in told if own == process] for process in processes}
        assert all(sorted(own) == list(range(1, len(own) + 1)) for own in calls.values())
        assert len(multiprocessing.active_children()) <= (0 if count == 1 else 2)
    assert not multiprocessing.active_children()
    (_, times), *_ = LocalWorkers(1).map_parts(tasks.kept_here, parts[:1])
    assert times == 1, "nothing is left of what was kept"


def test_a_worker_that_is_killed_is_not_called_again_and_the_next_map_begins_anew(parts, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    with LocalWorkers(2).opened() as workers:
        with pytest.raises(WorkerError, match="a process that ended"):
            list(workers.map_parts(tasks.DiesOnce(marks), parts))
        # The other worker, ended with this one, may have got no further than an empty mark.
        assert {mark.read_text() for mark in marks.iterdir()} - {""} == {"x"}
        assert not multiprocessing.active_children()
        assert next(iter(list(workers.map_parts(tasks.length, parts)))) == len(tasks.SECRET)
    assert not multiprocessing.active_children()


def test_a_thing_is_kept_until_another_version_of_it_is_asked_for():
    made = []
    for version in ("a", "a", "b", "a"):
        kept("thing", version, partial(made.append, version))
    assert made == ["a", "b", "a"]
    forget()


def test_records_in_the_place_of_paths_are_refused():
    for workers in (LocalWorkers(1), RayWorkers(1)):
        with pytest.raises(TypeError, match="Expected the path of a shard, got str") as refused:
            list(workers.map_parts(tasks.length, [tasks.SECRET]))
        assert tasks.SECRET not in str(refused.value)


def test_the_environment_declares_the_workers(monkeypatch):
    for name in ("DPSYNTH_WORKERS", "DPSYNTH_WORKER_COUNT", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert declared_workers() == LocalWorkers(1)
    monkeypatch.setenv("DPSYNTH_WORKER_COUNT", "3")
    assert PartWorkers().open() == LocalWorkers(3)
    monkeypatch.setenv("DPSYNTH_WORKERS", "ray")
    with pytest.raises(PrivacyError, match="RAY_ADDRESS: expected the address"):
        declared_workers()
    monkeypatch.setenv("RAY_ADDRESS", "ray-head:6379")
    assert declared_workers() == RayWorkers(3, "ray-head:6379")


@pytest.mark.parametrize(
    ("name", "value"),
    [("DPSYNTH_WORKER_COUNT", "0"), ("DPSYNTH_WORKER_COUNT", "two"), ("DPSYNTH_WORKERS", "spark")],
)
def test_what_is_no_worker_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(PrivacyError, match=f"{name}: expected .* got '{value}'"):
        declared_workers()


def test_no_run_config_chooses_the_workers():
    """A resource without fields takes none: `security/test_run_config.py`."""
    assert set(PartWorkers.model_fields) == set()


def called(method):
    """Stands for a method of an actor: a reference to its result is the call."""
    return SimpleNamespace(remote=lambda *given: partial(method, *given))


class Ray:
    """Stands for Ray: does what it is given, and notes what it was asked for."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self):
        self.asked, self.killed = [], []

    def remote(self, kind):
        self.kind = kind
        return self

    def options(self, **asked):
        self.asked.append(asked)
        return SimpleNamespace(remote=self.actor)

    def actor(self):
        made = self.kind()
        return SimpleNamespace(is_there=called(made.is_there), attempt=called(made.attempt))

    def wait(self, references, num_returns):
        return references[:num_returns], references[num_returns:]

    def kill(self, actor, no_restart):
        self.killed.append(no_restart)

    def put(self, value):
        return value

    def get(self, reference):
        return reference()


def test_ray_is_told_to_repeat_nothing_and_what_a_call_needs(parts, monkeypatch):
    ray = Ray()
    monkeypatch.setattr(ray_cluster, "_connected", lambda address: ray)
    made = list(RayWorkers(2).map_parts(tasks.length, parts, gpus=1, memory=1 << 20))
    assert made == [len(tasks.SECRET) + number for number in range(5)]
    nothing = {"max_restarts": 0, "max_task_retries": 0}
    assert ray.asked == [{"num_cpus": 1, "num_gpus": 1, "memory": 1 << 20, **nothing}]
    assert ray.killed == [True, True]
