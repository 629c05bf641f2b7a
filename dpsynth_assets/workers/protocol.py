"""One seam between a stage and whoever does its parts, and what every kind of workers keeps to.

- A part travels as a path. Whoever works on it reads the records from the sensitive store itself.
- What comes back is in the order of the parts, whichever was finished first. So a sum over parts is
  one sum, and a stage has one result for any number of workers.
- A worker opens no ledger, and adds no noise to what it counts: the process that runs the step does
  both, once. What a worker draws whole, a pass, it draws with noise of its own and keeps itself, in
  the sensitive store; what is kept is never drawn again. Where a mechanism samples
  records, the coin of each is tossed where the record is read, from the randomness of the operating
  system; it is sent nowhere.
- Workers that were opened (`Workers.opened`) stay over several maps, with what their functions keep
  (`keeping.kept`): a model is opened once a process. They are gone at the end of the block.
- No engine repeats a task. A failed part fails the step, and running it again goes on from the
  files of the finished parts, under the same charge.
- An error of a worker arrives as one line. Its own message may quote a record, so it is neither
  sent nor logged (`files.redaction`).

**Privacy** What a task returns is private unless it says otherwise: counts without noise, most
often. `docs/privacy.md` says who may see it on a cluster.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dpsynth_assets.files.redaction import redacted
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError

R = TypeVar("R")


class WorkerError(PrivacyError):
    """A part that failed in a worker. The message names the part and a type, no content."""


class Workers(Protocol):
    """Somebody who calls a function for every part."""

    @property
    def count(self) -> int:
        """Parts that are worked on at the same time, at least 1."""

    def map_parts(
        self,
        function: Callable[[Folder], R],
        parts: Sequence[Folder],
        *,
        gpus: float = 0,
        memory: int = 0,
    ) -> Generator[R]:
        """Calls `function` once for every part.

        Args:
            function: What is done with a part; it is copied to the workers, so it holds public
                values only, and is defined at the top of a module.
            parts: Where the parts lie.
            gpus: GPUs that one call needs; workers of this machine take no notice.
            memory: Bytes that one call needs, for a scheduler that places it; 0: not stated.

        Yields:
            The results, in the order of the parts.

        Raises:
            WorkerError: A call failed, or a worker ended; those not begun are dropped.
            TypeError: A part is no path.
        """

    def opened(self) -> "AbstractContextManager[Workers]":
        """Workers that stay until the block ends, whatever is mapped in it.

        They begin with the first map that needs them, and anew after a map that failed or was left
        early. At the end of the block they are gone, and what they kept with them.
        """


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
    try:
        return Outcome(result=function(part))
    except PrivacyError as refusal:
        return Outcome(problem=str(refusal))
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        return Outcome(problem=redacted(f"Part {part.name} in a worker", error))


def result_of(outcome: Outcome) -> Any:
    """Takes a result out.

    Raises:
        WorkerError: There is none.
    """
    if outcome.problem is not None:
        raise WorkerError(outcome.problem)
    return outcome.result


def failed(part: Folder, reason: str) -> WorkerError:
    """The error of a part whose worker said nothing."""
    return WorkerError(
        f"Part {part.name} in a worker failed with {reason}. Finished parts are kept: fix the "
        "cause and run the step again."
    )


def check_paths(parts: Sequence[Folder]) -> None:
    """Refuses records in the place of paths.

    Raises:
        TypeError: A part is no path; it is not shown.
    """
    for part in parts:
        if not isinstance(part, Folder):
            raise TypeError(
                f"Expected the path of a shard, got {type(part).__name__}. Store it first."
            )
