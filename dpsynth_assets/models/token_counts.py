"""Tokens that the models of this process have read and written: what a run of a method costs.

Counted are prompts, texts whose states are read, and decoding steps of every row. Fine-tuning's
passes are not. The counts follow from private texts' lengths: they are for benchmarks over public
corpora alone and reach no log, label or asset of a cohort.
"""

from dataclasses import dataclass


@dataclass
class TokenCounts:
    """Numbers of tokens.

    Attributes:
        read: Tokens of prompts and of texts that were read.
        written: Rows of all decoding steps: a token each.
    """

    read: int = 0
    written: int = 0

    def since(self, earlier: "TokenCounts") -> "TokenCounts":
        """What came after an earlier state."""
        return TokenCounts(self.read - earlier.read, self.written - earlier.written)

    def copy(self) -> "TokenCounts":
        """The state as it is now."""
        return TokenCounts(self.read, self.written)


COUNTS = TokenCounts()
"""Of this process."""
