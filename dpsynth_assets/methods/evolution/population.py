"""Candidate texts with their labels and ancestry, and how many of them each label gets.

A population is public or released: nothing here is private.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

NO_PARENT = -1
"""Parent of a text that was written without another text."""


@dataclass(frozen=True)
class Population:
    """C candidate texts.

    Attributes:
        texts: C texts.
        labels: (C,) int64 label numbers.
        parents: (C,) int64 places of the texts they vary among the survivors before, themselves
            for survivors; `NO_PARENT` for random texts.
        born: (C,) int64 iteration in which each was written.
    """

    texts: tuple[str, ...] = field(repr=False)
    labels: np.ndarray = field(repr=False)
    parents: np.ndarray = field(repr=False)
    born: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        """Refuses columns of different lengths."""
        lengths = {len(self.texts), len(self.labels), len(self.parents), len(self.born)}
        if len(lengths) != 1:
            raise ValueError(f"Expected columns of one length, got lengths {sorted(lengths)}.")

    @classmethod
    def random(cls, texts: Sequence[str], labels: np.ndarray) -> "Population":
        """Texts of the first generation."""
        size = len(texts)
        return cls(
            tuple(texts),
            np.asarray(labels, dtype=np.int64),
            np.full(size, NO_PARENT, dtype=np.int64),
            np.zeros(size, dtype=np.int64),
        )

    @property
    def size(self) -> int:
        """C."""
        return len(self.texts)

    def take(self, places: np.ndarray) -> "Population":
        """The candidates at `places`, in that order; their own parents from now on."""
        return Population(
            tuple(self.texts[place] for place in places.tolist()),
            self.labels[places],
            np.arange(len(places), dtype=np.int64),
            self.born[places],
        )

    def with_variations(
        self, texts: Sequence[str], parents: np.ndarray, iteration: int
    ) -> "Population":
        """These survivors, then `texts`, each a variation of the survivor at its parent's place."""
        return Population(
            (*self.texts, *texts),
            np.concatenate([self.labels, self.labels[parents]]),
            np.concatenate([self.parents, parents]),
            np.concatenate([self.born, np.full(len(texts), iteration, dtype=np.int64)]),
        )

    def without_first(self, count: int) -> "Population":
        """All but the first `count` candidates."""
        return Population(
            self.texts[count:], self.labels[count:], self.parents[count:], self.born[count:]
        )

    def frame(self) -> "pl.DataFrame":
        """Columns `text`, `label`, `parent`, `born`."""
        import polars as pl

        columns = {
            "text": pl.Series(self.texts, dtype=pl.String),
            "label": self.labels,
            "parent": self.parents,
            "born": self.born,
        }
        return pl.DataFrame(columns)

    @classmethod
    def from_frame(cls, frame: "pl.DataFrame") -> "Population":
        """Reads what `frame` gave; other columns are ignored."""
        numbers = (frame[name].to_numpy().astype(np.int64) for name in ("label", "parent", "born"))
        return cls(tuple(frame["text"].to_list()), *numbers)


def shared_out(total: int, shares: np.ndarray, *, least: int = 1) -> np.ndarray:
    """Shares out places over labels by largest remainders: int64 (L,) summing to `total`.

    Args:
        total: Places, at least `least` x L.
        shares: (L,) shares, public or released; negative ones count as zero, equal where nothing
            is left.
        least: Places of every label. In a population 1: a label without candidates could receive
            no vote, and would be lost for all later rounds.

    Raises:
        ValueError: There are too few places.
    """
    shares = np.maximum(np.asarray(shares, dtype=np.float64), 0.0)
    count = len(shares)
    free = total - least * count
    if free < 0:
        raise ValueError(
            f"Expected population >= {least * count}, {least} for each label, got {total}. "
            "Raise it."
        )
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(count, 1.0 / count)
    quotas = free * shares
    places = np.floor(quotas).astype(np.int64)
    rest = free - int(places.sum())
    places[np.argsort(places - quotas, kind="stable")[:rest]] += 1
    return places + least
