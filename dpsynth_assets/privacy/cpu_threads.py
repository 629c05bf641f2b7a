"""CPU threads that each do a whole piece of work alone, instead of sharing every operation of it.

The operations of a small model are too short to share: threads that meet after each of them spend
their time waking one another, tenfold on a busy machine. One thread for every operation also leaves
no operation cut in two at a place that depends on the number of rows. All pools of threads that
compute are made here.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from threading import Barrier, RLock, local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

LARGE = 1 << 24
"""Numbers from which a model's operations are long enough to share; so many float64 take 128 MiB,
which every thread would need for its own sums."""

_VARIABLE = "OMP_NUM_THREADS"
_Result = TypeVar("_Result")
_opening = RLock()
_own = local()
"""`_own.alone`: this thread was made here."""


def run_alone(tasks: Sequence[Callable[[], _Result]], workers: int) -> list[_Result]:
    """Runs each task in a thread in which PyTorch uses one thread, without gradients.

    The threads stay for later calls. Within such a thread, or one of `one_thread_each`, the tasks
    run there, one after another: a thread that waited for others might wait for itself. If a task
    fails, those that have not begun are dropped, and those that have are waited for: none goes on
    after the call.

    Args:
        tasks: What to run; shares nothing that another task writes.
        workers: How many threads, at least 1.

    Returns:
        Results in the order of the tasks.
    """
    if getattr(_own, "alone", False):
        return [_without_gradients(task) for task in tasks]
    with _opening:
        pool = _kept_pool(workers)
    futures = [pool.submit(_without_gradients, task) for task in tasks]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@contextmanager
def one_thread_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Opens workers in which PyTorch uses one thread, for the time of a block.

    Work that has not begun is dropped if the block fails.

    Args:
        workers: Number of threads, at least 1.
    """
    pool = _pool(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def check_declared_threads() -> None:
    """Refuses a number of threads that the environment declares and no library can use.

    Raises:
        ValueError: OMP_NUM_THREADS is set and is no whole number of at least 1.
    """
    declared = os.environ.get(_VARIABLE, "").strip()
    if declared and not (declared.isdecimal() and int(declared) >= 1):
        raise ValueError(
            f"Expected {_VARIABLE} to be a whole number of at least 1, got {declared!r}. "
            "Unset it to use all cores."
        )


def _without_gradients(task: Callable[[], _Result]) -> _Result:
    import torch

    with torch.inference_mode():
        return task()


@cache
def _kept_pool(workers: int) -> ThreadPoolExecutor:
    return _pool(workers)


def _forget_pools() -> None:
    """A forked child has the pools and none of their threads: it makes its own."""
    _kept_pool.cache_clear()
    _opening.release()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forget_pools
)


def _pool(workers: int) -> ThreadPoolExecutor:
    """Starts all threads of a pool; one thread for every operation, whatever is set elsewhere.

    PyTorch's number of threads is one variable of the process and a copy in each thread, taken at
    the thread's first look (its first parallel operation, or `get_num_threads`). So a thread looks
    before it sets its own number: nothing replaces that number later. The variable gets its former
    value back from a thread of its own, so that the caller's number stays as it is; one pool is
    opened at a time, so that none takes another's 1 for that value.
    """
    pool = ThreadPoolExecutor(workers, "one-thread")
    with _opening, ThreadPoolExecutor(1) as starter:
        starter.submit(_start, pool, workers).result()
    return pool


def _start(pool: ThreadPoolExecutor, workers: int) -> None:
    import torch

    before = torch.get_num_threads()
    started = Barrier(workers)

    def settle() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        _own.alone = True
        started.wait()

    for future in [pool.submit(settle) for _ in range(workers)]:
        future.result()
    torch.set_num_threads(before)


def useful_threads(
    parameters: "Sequence[torch.Tensor]", threads: int, *, one_sum: bool = False
) -> int:
    """Threads that are worth opening for a model: one where it is on a device, or large.

    Args:
        parameters: What is trained.
        threads: Threads there are.
        one_sum: Whether threads add to one sum, so that large models need no more memory.
    """
    on_device = any(each.device.type != "cpu" for each in parameters)
    large = not one_sum and sum(each.numel() for each in parameters) >= LARGE
    return 1 if on_device or large else max(1, threads)


def shares_weights(model: "torch.nn.Module") -> "torch.nn.Module":
    """Copies a model's modules over the same weights: what one thread sets on its own copy.

    Parameters and buffers of the copy are other objects in the same memory; gradients, flags and
    hooks are the copy's own, and so is whether dropout is active.
    """
    import copy

    import torch

    memo: dict[int, object] = {
        id(each): torch.nn.Parameter(each.detach(), requires_grad=each.requires_grad)
        for each in model.parameters()
    }
    memo |= {id(each): each.detach() for each in model.buffers()}
    return copy.deepcopy(model, memo)
