"""Threads that each compute some rows whole, with one thread for every operation.

Operations of one token a row are too short to share, and threads that meet after each of them wait
for one another, tenfold on a busy machine. One thread for every operation also leaves no operation
cut in two at a place that depends on the number of rows.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Lock
from typing import TypeVar

_Result = TypeVar("_Result")
_opening = Lock()


def run_alone(tasks: Sequence[Callable[[], _Result]], workers: int) -> list[_Result]:
    """Runs each task in a thread in which PyTorch uses one thread; results in order.

    Args:
        tasks: What to run; shares nothing that another task writes.
        workers: How many threads, at least 1.
    """
    pool = _pool(workers)
    futures = [pool.submit(_without_gradients, task) for task in tasks]
    return [future.result() for future in futures]


def _without_gradients(task: Callable[[], _Result]) -> _Result:
    import torch

    with torch.inference_mode():
        return task()


def _pool(workers: int) -> ThreadPoolExecutor:
    with _opening:
        return _opened(workers)


@cache
def _opened(workers: int) -> ThreadPoolExecutor:
    """Starts all threads at once, since a thread's first look at the setting fixes it for good."""
    import torch

    threads = torch.get_num_threads()
    started = Barrier(workers)

    def start() -> None:
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(workers, "exact-decoder")
    for future in [pool.submit(start) for _ in range(workers)]:
        future.result()
    torch.set_num_threads(threads)
    return pool
