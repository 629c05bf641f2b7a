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


class Step:
    """A step that a group is to take together.

    Attributes:
        logits: (R, V) float32 of the members, in the order expected; None until they were seen.
    """

    def __init__(
        self,
        group: str,
        written: Mapping[int, int],
        partial_rows: "Callable[[int], np.ndarray]",
    ) -> None:
        """Names who must be there.

        Args:
            group: Name of the pass.
            written: {member: tokens its document has}, in the order of the logits.
            partial_rows: Says of vLLM's first n rows which read a part of their tokens only.
        """
        self._group, self._written, self._partial_rows = group, dict(written), partial_rows
        self.logits: torch.Tensor | None = None

    def see(self, rows: Mapping[int, Row], logits: "torch.Tensor") -> None:
        """Takes the group's logits off a step of vLLM, or nothing while prompts are being read.

        Args:
            rows: Rows of the batch, by place.
            logits: (n, V) float32, n >= len(rows); those of partial rows mean nothing.

        Raises:
            LockstepError: The step holds another group's row, or some members only, or one whose
                document is not as long as was said, or the group a second time.
        """
        if len(rows) != len(logits):
            raise LockstepError(_broken("a row that belongs to no group"))
        if any(row.group != self._group for row in rows.values()):
            raise LockstepError(_broken("a context of another pass"))
        partial = self._partial_rows(len(logits))
        place_of = {row.member: place for place, row in rows.items() if not partial[place]}
        if not place_of:
            return
        if self.logits is not None:
            raise LockstepError(_broken("the same contexts twice"))
        if len(place_of) != len(rows) or place_of.keys() != self._written.keys():
            raise LockstepError(_broken("some of them"))
        for member, length in self._written.items():
            if len(rows[place_of[member]].written) != length:
                raise LockstepError(_broken("one that is ahead or behind"))
        self.logits = _in_order(logits, [place_of[member] for member in self._written])


def _broken(got: str) -> str:
    return (
        f"Expected all contexts of one pass in one step of vLLM, got {got}; nothing was sampled. "
        "This is a fault of the lock step: report it, and use decoder: transformers."
    )


def _in_order(logits: "torch.Tensor", places: list[int]) -> "torch.Tensor":
    """The rows at these places; the tensor itself where they stand as they should."""
    if places == list(range(len(logits))):
        return logits.contiguous()
    return logits[places]
