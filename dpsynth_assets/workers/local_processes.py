"""Workers of this machine: the calling process where one is enough, else processes of its own."""

import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from dpsynth_assets.paths import Folder
from dpsynth_assets.workers.keeping import forget
from dpsynth_assets.workers.protocol import Outcome, attempt, check_paths, failed, result_of

R = TypeVar("R")

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
_LARGE = ("torch", "polars", "transformers")
"""Modules that take seconds to import: the server of workers imports those that are loaded here."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class LocalWorkers:
    """Works on parts here.

    Attributes:
        count: With 1, parts are worked on one after the other in the calling process; with more,
            in as many processes, which share the processors.

    Raises:
        ValueError: The number is below 1.
    """

    count: int = 1

    def __post_init__(self) -> None:
        """Refuses a number below 1."""
        if self.count < 1:
            raise ValueError(f"Expected at least 1 worker, got {self.count}.")

    def map_parts(
        self,
        function: Callable[[Folder], R],
        parts: Sequence[Folder],
        *,
        gpus: float = 0,
        memory: int = 0,
    ) -> Generator[R]:
        """Calls `function` for every part; see `Workers.map_parts`."""
        with self.opened() as workers:
            yield from workers.map_parts(function, parts, gpus=gpus, memory=memory)

    @contextlib.contextmanager
    def opened(self) -> "Iterator[OpenedProcesses]":
        """Processes that stay until the block ends; see `Workers.opened`."""
        workers = OpenedProcesses(self.count)
        try:
            yield workers
        finally:
            workers.close()


class OpenedProcesses:
    """Local workers that are there already; `LocalWorkers.opened` makes and closes them."""

    def __init__(self, count: int) -> None:
        """Starts nothing: the first map that needs processes does."""
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def map_parts(
        self,
        function: Callable[[Folder], R],
        parts: Sequence[Folder],
        *,
        gpus: float = 0,
        memory: int = 0,
    ) -> Generator[R]:
        """Calls `function` for every part; see `Workers.map_parts`."""
        del gpus, memory  # One machine: nothing is placed.
        check_paths(parts)
        if self.count == 1 or len(parts) <= 1:
            for part in parts:
                yield result_of(attempt(function, part))
            return
        yield from self._in_processes(function, parts)

    @contextlib.contextmanager
    def opened(self) -> "Iterator[OpenedProcesses]":
        """These same workers, which whoever made them closes."""
        yield self

    def close(self) -> None:
        """Lets the processes end, and forgets what this one kept in their place."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        forget()

    def _in_processes(
        self, function: Callable[[Folder], R], parts: Sequence[Folder]
    ) -> Generator[R]:
        """Keeps each worker busy and one part waiting; results of more would pile up."""
        pool = self._pool or _started(self.count)
        self._pool = pool
        waiting: deque[tuple[Folder, Future[Outcome]]] = deque()
        try:
            for part in parts:
                waiting.append((part, pool.submit(attempt, function, part)))
                if len(waiting) > self.count:
                    yield _awaited(*waiting.popleft())
            while waiting:
                yield _awaited(*waiting.popleft())
        except BaseException:  # A failure, Ctrl-C, or a caller that wants no more.
            _end(pool)
            self._pool = None
            raise


def _started(count: int) -> ProcessPoolExecutor:
    """Processes that begin as tasks come, each with its share of the processors."""
    threads = max(1, (os.cpu_count() or 1) // count)
    # A child forked from this process would inherit the locks of the threads of polars and PyTorch.
    # Those of a server that has imported and computed nothing share its imports and no locks.
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in _LARGE if name in sys.modules])
    return ProcessPoolExecutor(count, context, _begin, (threads, dict(os.environ)))


def _awaited(part: Folder, future: "Future[Outcome]") -> Any:
    """Waits for a result.

    Raises:
        WorkerError: There is none.
    """
    try:
        outcome = future.result()
    except BrokenProcessPool:
        outcome = None
    if outcome is None:  # Raised outside the handler: nothing is chained to it.
        raise failed(part, "a process that ended, out of memory perhaps")
    return result_of(outcome)


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends workers in the midst of their parts, whose files are written whole or not at all."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(cancel_futures=True)


def _begin(threads: int, environment: dict[str, str]) -> None:
    """Prepares a worker: its share of the processors, and an end with the process that made it.

    Args:
        threads: Threads that its libraries may compute with.
        environment: The variables of whoever asked: the server's are those of its own beginning.
    """
    os.environ.clear()
    os.environ.update(environment | dict.fromkeys(_THREADS, str(threads)))
    if "torch" in sys.modules:  # Libraries that the server has loaded read the variables then.
        sys.modules["torch"].set_num_threads(threads)
    if "numpy" in sys.modules:
        threadpool_limits(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the driver, which ends the workers.
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
