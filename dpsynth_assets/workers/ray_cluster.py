"""Workers of a Ray cluster, by the extra `ray`: a pool of actors, each working on shards in turn.

Ray moves what a call is given and what it returns through the memory of its nodes, and large values
to their disks. So a call is given a path, and its function holds public values only; what it
returns is short, or nothing. Ray repeats nothing here (`max_restarts=0`, `max_task_retries=0`):
repeating what was begun is decided by the step, under its charge. That holds for what a call drew,
too: it is kept in the sensitive store or was not seen.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpsynth_assets.paths import Folder, absolute
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.workers.protocol import Outcome, Workers, attempt, awaited

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Address of the cluster, as Ray reads it; set by Ray itself in a job."""

_PASSED = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONPATH")
"""No secret among them: Ray shows the environment of a task. Secrets belong to the nodes."""


@dataclass
class RayWorkers(Workers):
    """Works on shards in a Ray cluster, in a pool of actors, each a process of the cluster.

    Actors ask for what a call needs; a map that needs something else gets other actors.

    Attributes:
        count: Workers at the same time, at most.
        address: Address of the cluster; None where this process is connected already.
    """

    count: int = 1
    address: str | None = None
    _ray: Any = field(default=None, init=False, compare=False, repr=False)
    _actors: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)
    _asked: tuple[float, int] = field(default=(0, 0), init=False, compare=False, repr=False)

    def _results(
        self, function: Callable[[Folder], Any], parts: Sequence[Folder], gpus: float, memory: int
    ) -> Iterator[Any]:
        if not parts:
            return
        self._ray = _connected(self.address)
        self._start(min(self.count, len(parts)), (gpus, memory))
        try:
            yield from self._given_out(self._ray.put(function), parts)
        except BaseException:  # A failure, Ctrl-C, or a caller that wants no more.
            self.close()
            raise

    def close(self) -> None:
        """Ends the actors, in the midst of a shard, too: its files are written whole or not."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor, no_restart=True)

    def _start(self, count: int, asked: tuple[float, int]) -> None:
        """Asks for as many actors as there are shards to work on at the same time."""
        if asked != self._asked:
            self.close()
            self._asked = asked
        gpus, memory = asked
        kind = self._ray.remote(_Worker).options(
            num_cpus=1, num_gpus=gpus, memory=memory or None, max_restarts=0, max_task_retries=0
        )
        new = [kind.remote() for _ in range(count - len(self._actors))]
        self._actors = [*self._actors, *new]

    def _given_out(self, given: Any, parts: Sequence[Folder]) -> Iterator[Any]:
        """Gives each shard to an actor that is free; yields in the order of the shards.

        An actor for which the cluster has no place yet gets none: others do its shards. Shards far
        ahead of the one that is due wait, since their results would pile up.
        """
        ray = self._ray
        coming: dict[Any, Any] = {actor.is_there.remote(): actor for actor in self._actors}
        begun: dict[int, Any] = {}
        free: list[Any] = []
        for due, part in enumerate(parts):
            while True:
                while free and len(begun) < min(len(parts), due + 2 * self.count):
                    actor, number = free.pop(), len(begun)
                    begun[number] = actor.attempt.remote(given, absolute(parts[number]))
                    coming[begun[number]] = actor
                if due in begun and begun[due] not in coming:
                    break
                (found,), _ = ray.wait(list(coming), num_returns=1)
                free.append(coming.pop(found))
                if found not in begun.values():  # An actor begins, or cannot.
                    self._awaited(part, found)
            yield self._awaited(part, begun[due])
            begun[due] = None

    def _awaited(self, part: Folder, reference: Any) -> Any:
        wait = partial(self._ray.get, reference)
        return awaited(part, wait, self._ray.exceptions.RayError)


class _Worker:
    """The process of one actor, which keeps what its functions keep."""

    def is_there(self) -> Outcome:
        """Says, by returning, that the cluster found a place for it."""
        return Outcome()

    def attempt(self, function: Callable[[Folder], Any], part: Folder) -> Outcome:
        """Calls a function; see `protocol.attempt`."""
        return attempt(function, part)


def _connected(address: str | None) -> Any:
    """Ray, connected; lines that workers print stay on their nodes.

    Raises:
        PrivacyError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise PrivacyError(
            "Expected the package of DPSYNTH_WORKERS=ray, got none. Install the extra `ray` of "
            "dpsynth_assets, on every node."
        ) from None
    try:
        if not ray.is_initialized():
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {n: os.environ[n] for n in _PASSED if n in os.environ}},
            )
    except (ConnectionError, RuntimeError, ValueError) as problem:
        raise PrivacyError(
            f"{ADDRESS_VARIABLE}: expected the address of a Ray cluster, got "
            f"{type(problem).__name__} at {address}. Start one (`ray start --head`), or set "
            "DPSYNTH_WORKERS=local."
        ) from None
    return ray
