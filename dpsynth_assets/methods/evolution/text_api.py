"""Writers of texts: at random for a label, or as a variation of a text. All of it is public.

**Privacy** Random texts come from public words alone; variations from texts that released votes
chose. Prompts are marked `PUBLIC` or `RELEASED` accordingly, so that an endpoint may see them; a
private record never enters one.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

ShareCallback = Callable[[float], None]


class TextApi(Protocol):
    """Writes texts for labels, and texts like other texts."""

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """Writes one text for each label, in their order.

        Args:
            labels: Composite label values, as in `CohortTerms.labels`.
            seed: Public; equal calls give equal texts where the engine keeps seeds.
            progress: Told the share done.
        """

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """Writes one variation of each text; a text itself where nothing else came out.

        Args:
            texts: Released texts.
            labels: Composite label value of each.
            degree: How much is written anew, in (0, 1].
            seed: Public.
            progress: Told the share done.
        """
