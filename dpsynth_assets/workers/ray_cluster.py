"""Workers of a Ray cluster, by the extra `ray`: each part is a task of its own.

Ray moves what a task is given and what it returns through the memory of its nodes, and large values
to their disks. So a task is given a path, and its function holds public values only; what it
returns is counts, or nothing. Ray never repeats a task here (`max_retries=0`): repeating what was
begun is decided by the step, under its charge. That holds for what a task drew, too: it is kept in
the sensitive store or was seen by nobody.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.workers.protocol import Outcome, attempt, check_paths, failed, result_of

R = TypeVar("R")

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Address of the cluster, as Ray reads it; set by Ray itself in a job."""

_PASSED = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONPATH")
"""No secret among them: Ray shows the environment of a task. Secrets belong to the nodes."""


@dataclass(frozen=True)
class RayWorkers:
    """Works on parts in a Ray cluster.

    Attributes:
        count: Tasks at the same time, at most.
        address: Address of the cluster; None where this process is connected already.
    """

    count: int = 1
    address: str | None = None

    def map_parts(
        self,
        function: Callable[[Path], R],
        parts: Sequence[Path],
        *,
        gpus: float = 0,
        memory: int = 0,
    ) -> Iterator[R]:
        """Calls `function` for every part; see `Workers.map_parts`."""
        check_paths(parts)
        ray = _connected(self.address)
        task = ray.remote(attempt).options(
            num_cpus=1, num_gpus=gpus, memory=memory or None, max_retries=0, retry_exceptions=False
        )
        given = ray.put(function)
        waiting: deque[tuple[Path, Any]] = deque()
        try:
            for part in parts:
                waiting.append((part, task.remote(given, part.resolve())))
                if len(waiting) >= self.count:
                    yield _awaited(ray, *waiting.popleft())
            while waiting:
                yield _awaited(ray, *waiting.popleft())
        finally:
            for _, reference in waiting:
                ray.cancel(reference, force=True)


def _awaited(ray: Any, part: Path, reference: Any) -> Any:
    """Waits for a result.

    Raises:
        WorkerError: There is none.
    """
    outcome: Outcome | None = None
    error = ""
    try:
        outcome = ray.get(reference)
    except ray.exceptions.RayError as problem:  # Its message holds lines of the worker.
        error = type(problem).__name__
    if outcome is None:  # Raised outside the handler: nothing is chained to it.
        raise failed(part, error)
    return result_of(outcome, part)


def _connected(address: str | None) -> Any:
    """Ray, connected; lines that workers print stay on their nodes.

    Raises:
        PrivacyError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        ray = None
    if ray is None:
        raise PrivacyError(
            "Expected the package of DPSYNTH_WORKERS=ray, got none. Install the extra `ray` of "
            "dpsynth_assets, on every node."
        )
    if ray.is_initialized():
        return ray
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {n: os.environ[n] for n in _PASSED if n in os.environ}},
        )
    except (ConnectionError, RuntimeError, ValueError) as problem:
        error = type(problem).__name__
    else:
        return ray
    raise PrivacyError(
        f"{ADDRESS_VARIABLE}: expected the address of a Ray cluster, got {error} at {address}. "
        "Start one (`ray start --head`), or set DPSYNTH_WORKERS=local."
    )
