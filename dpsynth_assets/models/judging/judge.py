"""The protocol of judges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

ShareCallback = Callable[[float], None]


class JudgeError(ValueError):
    """A judge cannot judge: one line, expected, got, remedy."""


@dataclass(frozen=True)
class Verdict:
    """Judgement of one text.

    Attributes:
        accepted: Whether the text is kept.
        score: The judge's measure of it; None where it gave none.
    """

    accepted: bool
    score: float | None


class Judge(Protocol):
    """Accepts or rejects texts, each by itself: a verdict depends on no other text.

    **Privacy** Judges see public text and rows sampled from what was released. Choosing among such
    rows is post-processing, whatever the judge does. No judge may be given a private record.
    """

    @property
    def facts(self) -> Mapping[str, Any]:
        """Public settings and thresholds (JSON values), for metadata and card."""

    def judge(self, texts: Sequence[str], progress: ShareCallback | None = None) -> list[Verdict]:
        """Judges N texts, in order.

        Args:
            texts: N public or released texts.
            progress: Called with the share of texts done, in [0, 1].

        Raises:
            JudgeError: The judge gives no usable answer at all.
        """
