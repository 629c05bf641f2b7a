"""Costs of every private draw of an ex-post run, by batch and by place in a document.

**Privacy** All of it depends on private data without noise: it stays in the owner-only store and in
internal reports, and never becomes a fact or a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dpsynth_assets.methods.private_prediction.loop import Document

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


@dataclass(frozen=True, kw_only=True)
class RealisedCosts:
    """Ex-post ε of a run's draws, filled in by its selector.

    Attributes:
        by_batch: (batches,) float64, sum over the batch's draws so far, and over draws of other
            batches that rounding of its records may have moved.
        by_draw: (batches, r) float64, in the order of the draws; zero where nothing was drawn.
    """

    by_batch: np.ndarray = field(repr=False)
    by_draw: np.ndarray = field(repr=False)

    @classmethod
    def of_nothing(cls, batches: int, tokens_per_batch: int) -> Self:
        """Before the first draw."""
        return cls(by_batch=np.zeros(batches), by_draw=np.zeros((batches, tokens_per_batch)))

    def kept(self, own: slice) -> dict[str, Any]:
        """JSON values of the batches of one pass, for its owner only."""
        return {"costs": self.by_batch[own].tolist(), "draw_costs": self.by_draw[own].tolist()}

    def restore(self, own: slice, values: Mapping[str, Any]) -> None:
        """Takes back what `kept` gave of one pass."""
        self.by_batch[own] = values["costs"]
        self.by_draw[own] = values["draw_costs"]

    def by_position(self, documents: Sequence[Document]) -> dict[str, np.ndarray]:
        """Distribution of the cost of a token by its place in its document.

        Args:
            documents: All documents of the run, those of a batch in the order in which they ended.

        Returns:
            Arrays over places 0, 1, ...: `count` of draws there, `mean`, and the quantiles `p10`,
            `p50` and `p90` over all batches and documents. An end token stands at the place it
            took. Where a schema constrains texts, places count drawn tokens alone.

        **Source** Amin et al. 2025, Appendix D.4, Figures 5 and 6.
        """
        place = self._place_of_draw(documents)
        drawn = place >= 0
        order = np.argsort(place[drawn], kind="stable")
        count = np.bincount(place[drawn])
        parts = np.split(self.by_draw[drawn][order], np.cumsum(count)[:-1]) if len(count) else []
        shown = {"count": count, "mean": np.array([part.mean() for part in parts])}
        for name, level in QUANTILES.items():
            shown[name] = np.array([np.quantile(part, level) for part in parts])
        return shown

    def _place_of_draw(self, documents: Sequence[Document]) -> np.ndarray:
        """(batches, r) place of each draw in its document; -1 where nothing was drawn."""
        place = np.full(self.by_draw.shape, -1, dtype=np.int64)
        drawn = np.zeros(len(place), dtype=np.int64)
        for document in documents:
            start, draws = drawn[document.batch], document.private_tokens
            place[document.batch, start : start + draws] = np.arange(draws)
            drawn[document.batch] += draws
        return place
