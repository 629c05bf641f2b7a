"""Tail of a method: the share of private draws that would fall on tokens nobody proposes."""

from dataclasses import dataclass

from dpsynth_assets.privacy.directed_rounding import rounded_up

LARGEST_TAIL = 0.1
"""A plan of a longer tail is refused: one token in ten would have nothing to do with the text."""

TYPICAL_AGREEMENT = 0.9
"""How high the leading token of a typical draw stands, as a share of what full agreement gives it.

Measured on public text (news reports and Brown paragraphs, 48 contexts of SmolLM2-135M-Instruct,
c from 6 to 12): the maximum of the mean of re-centred clipped logits is above 0.92 c in nine draws
of ten, and 0.98 c in the median. 0.9 errs on the side of a longer tail.
"""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """Share of private draws on tokens that nobody proposes, by public facts and one assumption.

    One token leads and all others lie where a token lies that no context proposes, so the share is
    an upper estimate: tokens in between take draws from both.

    Attributes:
        tokens: Tokens among which one is drawn; None if no declaration says how many there are.
        agreed: The share if all contexts agree on the leading token; None where unknown.
        typical: The share at TYPICAL_AGREEMENT; None where unknown.
        settings: What it follows from, in words.
        remedy: What would shorten it, in a sentence.
    """

    tokens: int | None
    agreed: float | None
    typical: float | None
    settings: str
    remedy: str

    @property
    def refusal(self) -> str | None:
        """Why so long a tail is refused, in one line; None where it is short, or unknown."""
        if self.typical is None or self.typical <= LARGEST_TAIL:
            return None
        return (
            f"Expected a tail of at most {LARGEST_TAIL:.0%} of private draws (tokens that no "
            f"context proposes), got {percent(self.typical)} with {self.tokens:,} tokens, "
            f"{self.settings}. {self.remedy}"
        )

    def describe(self) -> str:
        """States the typical share and, in brackets, the one where all contexts agree."""
        if self.typical is None or self.agreed is None:
            return "unknown"
        return f"{percent(self.typical)} ({percent(self.agreed)})"


def percent(share: float) -> str:
    """Writes a share in [0, 1] in percent, with two digits, rounded up; less than 0.01% as that.

    Shares near 1 keep below it.
    """
    if share < 1e-4:
        return "<0.01%"
    return f"{rounded_up(100 * share, '.2g') if share < 0.99 else '>99'}%"
