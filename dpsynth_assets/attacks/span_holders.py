"""Private units that hold given spans of words, counted wherever their records lie."""

from collections.abc import Callable, Sequence

import numpy as np

from dpsynth_assets.attacks.word_spans import WordBlock, word_blocks

SpanHolders = Callable[[np.ndarray, int], np.ndarray]
"""Counts the private units that hold each span: (uint64 (C,) sorted and distinct hashes, words a
span) -> int64 (C,). Where records lie in parts, all records of a unit lie in one of them, so the
counts of all parts add up to those of the whole."""


def holders_among(texts: Sequence[str], units: Sequence[str] | None) -> SpanHolders:
    """Counts among records in memory.

    Args:
        texts: Private records.
        units: Unit of each; None counts each record as a unit.

    Raises:
        ValueError: Units and records differ in number.
    """
    numbers = _unit_numbers(units, len(texts))

    def holders(candidates: np.ndarray, words: int) -> np.ndarray:
        unit_count = int(numbers.max(initial=0)) + 1
        pairs = np.empty(0, dtype=np.int64)  # candidate * units + unit, each once
        for block in word_blocks(texts):
            places, rows = matches(candidates, block, words)
            pairs = np.union1d(pairs, places * unit_count + numbers[rows])
        return np.bincount(pairs // unit_count, minlength=len(candidates))

    return holders


def matches(candidates: np.ndarray, block: WordBlock, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds a block's spans among sorted candidates: places there, and texts they lie in."""
    hashes, starts = block.spans(words)
    if len(candidates) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.searchsorted(candidates, hashes).clip(max=len(candidates) - 1)
    found = candidates[places] == hashes
    return places[found], block.texts[starts[found]]


def _unit_numbers(units: Sequence[str] | None, records: int) -> np.ndarray:
    if units is None:
        return np.arange(records)
    if len(units) != records:
        raise ValueError(
            f"Expected a unit for each private record, got {len(units)} units and "
            f"{records} records."
        )
    return np.unique(np.asarray(units), return_inverse=True)[1]
