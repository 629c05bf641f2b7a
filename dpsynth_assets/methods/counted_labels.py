"""Records that a count or a vote counts, each under its declared label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.methods.inputs import PrivateInputs

if TYPE_CHECKING:
    import polars as pl

UNCOUNTED = -1
"""In a label's place: of no declared label, or a null record."""


def counted_labels(records: "pl.DataFrame", declared: Sequence[str]) -> np.ndarray:
    """Finds each record's place among the declared labels.

    Args:
        records: N rows with `label` and `text`.
        declared: Declared labels, in order.

    Returns:
        (N,) int64 places, UNCOUNTED for a record of none of them and for one of blank text.

    **Privacy** Reads one record at a time. Blank texts are the null records of zero-out neighbours
    (`public_facts.slots`); elsewhere they were set aside. A null record must count nowhere: in the
    cell of its blank text it would replace a record, which moves two cells instead of one.
    """
    place = {label: number for number, label in enumerate(declared)}
    columns = zip(records["label"], records["text"], strict=True)
    numbers = [
        place.get(label, UNCOUNTED) if text.strip() else UNCOUNTED for label, text in columns
    ]
    return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Counts records by label, for `PrivateInputs.counted`.

    Attributes:
        labels: L declared labels, in order.
    """

    labels: tuple[str, ...]

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (L,) int64; private."""
        numbers = counted_labels(private.records, self.labels)
        return np.bincount(numbers[numbers != UNCOUNTED], minlength=len(self.labels))
