"""The interface of all kinds of workers, which run the shards of a stage.

- A shard travels as a path. The worker reads the records from the sensitive store itself.
- What comes back is in the order of the shards, whichever was finished first. So a sum over shards
  is one sum, and a stage has one result for any number of workers.
- A worker opens no ledger, and adds no noise to what it counts: the process that runs the step does
  both, once. What a worker draws whole, a pass, it draws with noise of its own and keeps itself, in
  the sensitive store; what is kept is never drawn again. Where a mechanism samples
  records, the coin of each is tossed where the record is read, from the randomness of the operating
  system; it is sent nowhere.
- Workers that were opened (`Workers.opened`) stay over several maps, with what their functions keep
  (`kept`): a model is opened once a process. They are gone at the end of the block.
- No engine repeats a task. A failed shard fails the step, and running it again continues from the
  files of the finished shards, under the same charge.
- An error of a worker arrives as one line. Its own message may quote a record, so it is neither
  sent nor logged (`files.redaction`).

**Privacy** What a task returns is private unless it says otherwise: counts without noise, most
often. `docs/privacy.md` says who may see it on a cluster.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from dpsynth_assets.files.redaction import keep_out_of_core_dumps, redacted
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError

R = TypeVar("R")


_kept: dict[str, tuple[str, Any]] = {}


def kept(name: str, version: str, make: Callable[[], R]) -> R:
    """What a function of a worker made before in this process, or makes now.

    It lasts as long as the workers (`Workers.opened`). A process of its own takes what it kept with
    it; where the calling process works on the shards itself, `forget` gives the memory back.

    Args:
        name: Place in which one thing at a time is kept.
        version: Which one: another goes before this one is made.
        make: Makes it.
    """
    if _kept.get(name, ("",))[0] != version:
        _kept.pop(name, None)
        _kept[name] = (version, make())
    made: R = _kept[name][1]
    return made


def forget() -> None:
    """Drops everything that was kept in this process."""
    _kept.clear()


@dataclass(frozen=True)
class Here(Generic[R]):
    """What a task uses where the process that made it does it; where it is sent, there is none."""

    value: R | None = None

    def __reduce__(self) -> tuple[type["Here[R]"], tuple[()]]:
        """Is sent without its value."""
        return type(self), ()


class WorkerError(PrivacyError):
    """A shard that failed in a worker. The message names the shard and a type, no content."""


class Workers(ABC):
    """Processes that call a function for every shard.

    Attributes:
        count: Shards that are worked on at the same time, at least 1.
    """

    count: int
    _stay = False

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Workers that stay until the block ends, regardless of what is mapped in it.

        They begin with the first map that needs them, and again after a map that failed or was left
        early. At the end of the block they are gone, and what they kept with them. Those that stay
        already are closed by the block that opened them.
        """
        if self._stay:
            yield self
            return
        workers = copy.copy(self)
        workers._stay = True
        try:
            yield workers
        finally:
            workers.close()

    def map_parts(
        self,
        function: Callable[[Folder], R],
        parts: Sequence[Folder],
        *,
        gpus: float = 0,
        memory: int = 0,
    ) -> Generator[R]:
        """Calls `function` once for every shard.

        Args:
            function: What is done with a shard; it is copied to the workers, so it holds public
                values only, and is defined at the top of a module.
            parts: Where the shards lie.
            gpus: GPUs that one call needs; workers of this machine take no notice.
            memory: Bytes that one call needs, for a scheduler that places it; 0: not stated.

        Yields:
            The results, in the order of the shards.

        Raises:
            WorkerError: A call failed, or a worker ended; those not begun are dropped.
            TypeError: A shard is no path; it is not shown.
        """
        for part in parts:
            if not isinstance(part, Folder):
                raise TypeError(
                    f"Expected the path of a shard, got {type(part).__name__}. Store it first."
                )
        with self.opened() as workers:
            yield from workers._results(function, parts, gpus, memory)

    @abstractmethod
    def _results(
        self, function: Callable[[Folder], Any], parts: Sequence[Folder], gpus: float, memory: int
    ) -> Iterator[Any]:
        """Yields the results in the order of the shards; after a failure nothing works on."""

    @abstractmethod
    def close(self) -> None:
        """Ends the processes and what they kept."""


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a result, or one line on an error.

    Attributes:
        result: What the function returned.
        problem: What may be said of its error; None where there was none.
    """

    result: Any = None
    problem: str | None = None


def attempt(function: Callable[[Folder], Any], part: Folder) -> Outcome:
    """Calls a function in a worker; an error leaves its message behind."""
    keep_out_of_core_dumps()
    try:
        return Outcome(result=function(part))
    except PrivacyError as refusal:
        return Outcome(problem=str(refusal))
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        return Outcome(problem=redacted(f"Shard {part.name} in a worker", error))


def result_of(outcome: Outcome) -> Any:
    """Takes a result out.

    Raises:
        WorkerError: There is none.
    """
    if outcome.problem is not None:
        raise WorkerError(outcome.problem)
    return outcome.result


def awaited(
    part: Folder, wait: Callable[[], Outcome], ends: type[Exception], what: str = ""
) -> Any:
    """Waits for a result.

    Args:
        part: What is worked on.
        wait: Returns what the worker sent.
        ends: What `wait` raises where a worker ended; its message may hold lines of the worker.
        what: What that means; empty: the name of the error.

    Raises:
        WorkerError: There is no result.
    """
    try:
        return result_of(wait())
    except ends as problem:
        reason = what or type(problem).__name__
    raise WorkerError(  # Outside the handler: nothing is chained to it.
        f"Shard {part.name} in a worker failed with {reason}. Finished parts are kept: fix the "
        "cause and run the step again."
    )
