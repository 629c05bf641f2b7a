"""Rows of a chosen label, written on demand from what a method has released."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class RowSampling:
    """How tokens of a row are drawn; None: as the method's settings say.

    Attributes:
        temperature: Divides the logits, >= 0.
        top_p: Draws from the smallest set of tokens with at least this mass; in (0, 1].
        max_new_tokens: Longest row, at most what the settings say.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None


class RowSource(Protocol):
    """An open artifact that rows are written from. Everything it reads is public or released.

    Attributes:
        labels: Declared labels, in order; ("",) where there are none.
        engine: What runs the model.
        longest: Tokens of a row at most.
    """

    labels: tuple[str, ...]
    engine: str
    longest: int

    def write(self, labels: Sequence[int], sampling: RowSampling, seed: int) -> list[str]:
        """Writes one row for each place of `labels`; a row without a word is "".

        Args:
            labels: Places of labels.
            sampling: How tokens are drawn.
            seed: Of public randomness; another one gives other rows.
        """

    def tokens(self, text: str) -> int:
        """Counts the tokens of a text."""
