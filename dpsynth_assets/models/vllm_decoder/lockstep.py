"""One step of a group in lock step: who must be there, and the check before anything is sampled."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import torch

GROUP = "dpsynth_group"
"""Key of a request's `extra_args`: name of the pass it belongs to."""
MEMBER = "dpsynth_member"
"""Key of a request's `extra_args`: its number in the pass."""
BALLAST = -1
"""Number of the request that is read with every part of prompts, and in no step of the group."""


class VllmDecoderError(ValueError):
    """vLLM cannot decode this: one line, expected, got, remedy."""


class LockstepError(RuntimeError):
    """Contexts of a pass did not step together; nothing was sampled. Says nothing of them."""


class Row(NamedTuple):
    """One row of vLLM's batch.

    Attributes:
        group: Name of its pass.
        member: Its number there.
        written: Tokens of its document, as vLLM's runner has them; grows in place.
    """

    group: str
    member: int
    written: Sequence[int]


class Document(NamedTuple):
    """What is known of a member's document.

    Attributes:
        length: Tokens it has.
        last: The last of them; anything where it has none.
    """

    length: int
    last: int

    def is_in(self, written: Sequence[int]) -> bool:
        """Says whether the runner has a document of this length with this end."""
        return len(written) == self.length and (not written or written[-1] == self.last)


class Step:
    """A step that a group is to take together."""

    def __init__(
        self,
        group: str,
        documents: Mapping[int, Document],
        partial_rows: "Callable[[int], np.ndarray]",
    ) -> None:
        """Names who must be there.

        Args:
            group: Name of the pass.
            documents: {member: its document}, in the order of the logits.
            partial_rows: Says of vLLM's first n rows which read a part of their tokens only.
        """
        self._group, self._documents, self._partial_rows = group, dict(documents), partial_rows
        self._seen: torch.Tensor | None = None
        self._places: list[int] = []

    @property
    def done(self) -> bool:
        """Whether the group's logits were seen."""
        return self._seen is not None

    def logits(self, count: int) -> "torch.Tensor":
        """Logits (count, V) float32 of the first members expected; a copy that may be changed.

        Called outside vLLM's inference mode, whose own tensors nobody else may write to.
        """
        if self._seen is None:
            raise LockstepError(_broken("none of them"))
        places = self._places[:count]
        if places == list(range(count)):
            return self._seen[:count].clone()
        return self._seen[places]

    def see(self, rows: Mapping[int, Row], logits: "torch.Tensor") -> None:
        """Takes the group's logits off a step of vLLM, or nothing while prompts are being read.

        Args:
            rows: Rows of the batch, by place.
            logits: (n, V) float32, n >= len(rows); those of partial rows mean nothing.

        Raises:
            LockstepError: The step holds another group's row, or some members only, or one whose
                document is another than was said, or the group a second time.
        """
        if len(rows) != len(logits):
            raise LockstepError(_broken("a row that belongs to no group"))
        if any(row.group != self._group for row in rows.values()):
            raise LockstepError(_broken("a context of another pass"))
        partial = self._partial_rows(len(logits))
        place_of = {row.member: place for place, row in rows.items() if not partial[place]}
        if not place_of:
            return
        if self.done:
            raise LockstepError(_broken("the same contexts twice"))
        if len(place_of) != len(rows) or place_of.keys() != self._documents.keys():
            raise LockstepError(_broken("some of them"))
        for member, document in self._documents.items():
            if not document.is_in(rows[place_of[member]].written):
                raise LockstepError(_broken("one with another document"))
        self._seen, self._places = logits, [place_of[member] for member in self._documents]


def _broken(got: str) -> str:
    return (
        f"Expected all contexts of one pass in one step of vLLM, got {got}; nothing was sampled. "
        "This is a fault of the lock step: report it, and use decoder: transformers."
    )
