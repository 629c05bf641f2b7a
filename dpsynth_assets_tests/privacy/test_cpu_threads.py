"""Threads of a pool compute with one thread each, whatever is set elsewhere and whenever."""

import ast
import os
import threading
import time
from pathlib import Path

import pytest
import torch

import dpsynth_assets
from dpsynth_assets.privacy.cpu import (
    check_declared_threads,
    map_on_cpu_threads,
    one_thread_each,
    run_alone,
)
from dpsynth_assets_tests.children import dpsynth, python

POOLS_OF_WAITING_THREADS = {"models/engines/openai_endpoint.py"}
"""Threads that wait for a server and compute nothing."""

PARALLEL = {
    "softmax": lambda: torch.softmax(torch.randn(64, 49_152), -1),
    "product": lambda: torch.randn(300, 576) @ torch.randn(576, 1536),
    "sum": lambda: torch.randn(1 << 22).sum(),
    "the number itself": torch.get_num_threads,
}
KINDS = ("kept", "of a block")


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_pool(kind, workers, task):
    """What each of some threads returns, all at work at the same time."""
    together = threading.Barrier(workers)

    def work():
        together.wait()
        return task()

    if kind == "kept":
        return run_alone([work] * workers, workers)
    with one_thread_each(workers) as pool:
        return [each.result() for each in [pool.submit(work) for _ in range(workers)]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_main_thread_sets_later_changes_nothing(kind):
    changed = threading.Event()

    def number():
        changed.wait(30)
        PARALLEL["softmax"]()
        return torch.get_num_threads()

    setter = threading.Timer(0.05, lambda: (torch.set_num_threads(2), changed.set()))
    setter.start()
    torch.set_num_threads(2)
    assert in_pool(kind, 2, number) == [1, 1]
    setter.join()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_no_operation_opens_a_team(kind):
    """Counted by the operating system, since a wrong number may also be told wrong."""

    def opened():
        before = set(os.listdir("/proc/self/task"))  # noqa: PTH208 - names alone are wanted
        for operation in PARALLEL.values():
            operation()
        return set(os.listdir("/proc/self/task")) - before  # noqa: PTH208 - earlier ones may end

    assert in_pool(kind, 1, opened) == [set()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_callers_number_and_that_of_new_threads_stay(kind):
    in_pool(kind, 3, torch.get_num_threads)
    assert (torch.get_num_threads(), number_of_a_new_thread()) == (2, 2)


def number_of_a_new_thread():
    seen = []
    fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    return seen[0]


def test_a_pool_opened_in_a_pool_leaves_both_numbers_alone():
    def nested():
        inner = in_pool("of a block", 2, torch.get_num_threads)
        return [*inner, torch.get_num_threads()]

    assert in_pool("of a block", 1, nested) == [[1, 1, 1]]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_within_a_thread_run_there(kind):
    """Whatever number of threads the inner call asks for: its pool may be the one that waits."""

    def nested():
        return [threading.get_ident(), *run_alone([threading.get_ident] * 3, 2)]

    for seen in in_pool(kind, 2, nested):
        assert len(set(seen)) == 1


def test_pools_that_are_opened_at_once_leave_the_number_as_it_was():
    def open_some():
        for _ in range(20):
            with one_thread_each(2):
                pass

    openers = [threading.Thread(target=open_some) for _ in range(3)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert number_of_a_new_thread() == 2


def test_batches_are_mapped_in_order_on_as_many_threads_as_pytorch_has():
    meeting = threading.Barrier(2, timeout=20)

    def met(item):
        meeting.wait()  # passes only if two batches are worked on at the same moment
        return item * 10

    assert map_on_cpu_threads(met, [1, 2, 3, 4], entries=1 << 20) == [10, 20, 30, 40]


def test_a_single_batch_is_done_where_no_operation_is_shared():
    (found,) = map_on_cpu_threads(lambda _: threading.get_ident(), [1], entries=1 << 20)
    assert found != threading.get_ident()


def test_no_task_goes_on_after_one_failed():
    begun, ended = [], []

    def fail():
        raise KeyError

    def work():
        begun.append(None)
        time.sleep(0.05)
        ended.append(None)

    with pytest.raises(KeyError):
        run_alone([fail, *[work] * 20], 2)
    assert len(ended) == len(begun) < 20
    before = len(begun)
    time.sleep(0.2)
    assert len(begun) == before


def test_a_forked_child_starts_threads_of_its_own():
    code = (
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from dpsynth_assets.privacy.cpu import run_alone\n"
        "run_alone([int], 1)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(run_alone([lambda: 7], 1)[0])\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert python("-c", code).split() == ["7"]


def test_work_that_has_not_begun_is_dropped_when_the_block_fails():
    blocked = []

    def fail():
        with one_thread_each(1) as workers:
            blocked.extend(workers.submit(time.sleep, 0.05) for _ in range(50))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert sum(each.cancelled() for each in blocked) >= 40


def test_every_pool_of_computing_threads_is_made_in_one_place():
    root = Path(dpsynth_assets.__file__).parent
    makers = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and "ThreadPoolExecutor" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }
    assert makers == {"privacy/cpu.py"} | POOLS_OF_WAITING_THREADS


@pytest.mark.parametrize("declared", ["0", "1.5"])
def test_an_unusable_number_of_threads_is_refused_in_one_line(monkeypatch, declared):
    monkeypatch.setenv("OMP_NUM_THREADS", declared)
    with pytest.raises(ValueError, match="Expected OMP_NUM_THREADS to be a whole number of at lea"):
        check_declared_threads()
    told = dpsynth("datasets", "cohorts", code=2)
    assert declared in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("declared", ["", "1", " 2 "])
def test_a_usable_number_of_threads_is_taken(monkeypatch, declared):
    monkeypatch.setenv("OMP_NUM_THREADS", declared)
    check_declared_threads()
