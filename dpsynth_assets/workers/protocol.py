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
- An error of a worker arrives as its type alone. Its message may quote a record, so the message is
  neither sent nor logged.

**Privacy** What a task returns is private unless it says otherwise: counts without noise, most
often. `docs/privacy.md` says who may see it on a cluster.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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
    """What a worker sends back: a result, or the name of an error.

    Attributes:
        result: What the function returned.
        error: Type of the error; empty where there was none.
        refusal: Message of a `PrivacyError`, which holds no private data; else empty.
    """

    result: Any = None
    error: str = ""
    refusal: str = ""


def attempt(function: Callable[[Folder], Any], part: Folder) -> Outcome:
    """Calls a function in a worker; an error leaves its message behind."""
    try:
        return Outcome(result=function(part))
    except PrivacyError as refusal:
        return Outcome(error=type(refusal).__name__, refusal=str(refusal))
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        return Outcome(error=type(error).__name__)


def result_of(outcome: Outcome, part: Folder) -> Any:
    """Takes a result out.

    Raises:
        WorkerError: There is none.
    """
    if not outcome.error:
        return outcome.result
    if outcome.refusal:
        raise WorkerError(outcome.refusal)
    raise failed(part, outcome.error)


def failed(part: Folder, error: str) -> WorkerError:
    """The error of a part that a worker did not finish."""
    return WorkerError(
        f"Part {part.name} failed in a worker with {error}. Its message is withheld because it may "
        "quote private data. Finished parts are kept: mend the cause and run the step again."
    )


def check_paths(parts: Sequence[Folder]) -> None:
    """Refuses records in the place of paths.

    Raises:
        TypeError: A part is no path; it is not shown.
    """
    for part in parts:
        if not isinstance(part, Folder):
            raise TypeError(
                f"Expected the path of a part, got {type(part).__name__}. Store it first."
            )
