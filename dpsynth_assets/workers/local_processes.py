"""Workers of this machine: the calling process where one is enough, else processes of its own."""

import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from threadpoolctl import threadpool_limits

from dpsynth_assets.paths import Folder
from dpsynth_assets.workers.protocol import Outcome, Workers, attempt, awaited, forget, result_of

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
_LARGE = (
    *("torch", "polars", "transformers"),
    *("dpsynth_assets.sensitive.part_tasks", "dpsynth_assets.methods.registry"),
)
"""Modules that take a second or more to import, of shards' tasks the last two: the server of
workers imports those that are loaded here, so that no worker does."""
_PR_SET_PDEATHSIG = 1


@dataclass
class LocalWorkers(Workers):
    """Works on shards here.

    Attributes:
        count: With 1, shards are worked on one after the other in the calling process; with more,
            in as many processes, which share the processors.
    """

    count: int = 1
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, compare=False, repr=False)

    def _results(
        self, function: Callable[[Folder], Any], parts: Sequence[Folder], gpus: float, memory: int
    ) -> Iterator[Any]:
        """Keeps each worker busy and one shard waiting; results of more would pile up."""
        del gpus, memory  # One machine: nothing is placed.
        if self.count == 1 or len(parts) <= 1:
            yield from (result_of(attempt(function, part)) for part in parts)
            return
        self._pool = self._pool or _started(self.count)
        waiting: deque[tuple[Folder, Future[Outcome]]] = deque()
        try:
            for part in parts:
                waiting.append((part, self._pool.submit(attempt, function, part)))
                if len(waiting) > self.count:
                    yield _awaited(*waiting.popleft())
            while waiting:
                yield _awaited(*waiting.popleft())
        except BaseException:  # A failure, Ctrl-C, or a caller that wants no more.
            # Shards are left in the midst: their files are written whole or not at all.
            for process in list((self._pool._processes or {}).values()):
                process.kill()
            self._end()
            raise

    def close(self) -> None:
        """Lets the processes end, and forgets what this one kept in their place."""
        self._end()
        forget()

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _awaited(part: Folder, future: "Future[Outcome]") -> Any:
    what = "a process that ended, perhaps out of memory"
    return awaited(part, future.result, BrokenProcessPool, what)


def _started(count: int) -> ProcessPoolExecutor:
    """Processes that begin as tasks come, each with its share of the processors."""
    threads = max(1, (os.cpu_count() or 1) // count)
    # A child forked from this process would inherit the locks of the threads of polars and PyTorch.
    # Those of a server that has imported and computed nothing share its imports and no locks.
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in _LARGE if name in sys.modules])
    return ProcessPoolExecutor(count, context, _begin, (threads, dict(os.environ)))


def _begin(threads: int, environment: dict[str, str]) -> None:
    """Prepares a worker: its share of the processors, and an end with the process that made it.

    Args:
        threads: Threads that its libraries may compute with.
        environment: The caller's variables: the server's are those of its own beginning.
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
