"""Covers of all pairs: few cases in which every two values of two factors meet."""

import itertools
from collections.abc import Iterable, Sequence


def pairwise(*factors: Sequence[object]) -> list[tuple[object, ...]]:
    """Chooses rows, one value a factor, until any two values of two factors share a row.

    A fault that two settings make together shows in some row, as in the product of all factors; of
    that, rows are a small part. They are the same every time.
    """
    rows = list(itertools.product(*factors))
    left = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while left:
        best = max(rows, key=lambda row: len(left.intersection(_pairs(row))))
        left.difference_update(_pairs(best))
        chosen.append(best)
    return chosen


def _pairs(row: Iterable[object]) -> set[object]:
    return set(itertools.combinations(enumerate(row), 2))
