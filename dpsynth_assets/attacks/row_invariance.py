"""Row invariance, on which sensitivities rest: what is computed of a record depends on it alone.

A function of rows obeys it if f(rows)[i] equals f(others)[j], bit for bit, whenever rows[i] and
others[j] are the same record. Then a record that comes or goes moves its own bin, vote or vector,
and no other. Near ties are built on purpose: on ordinary data a last bit decides nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

RowFunction = Callable[[Sequence[int]], np.ndarray]
"""Chosen record numbers -> one row of results for each, in their order."""

TIES = 24
RECORDS = 3 * TIES


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Measures how far other records move what is computed of each.

    Attributes:
        rows: Most records whose result is not the same, over all arrangements.
        by: Largest absolute difference of a number; infinity for a number that comes or goes.
    """

    rows: int
    by: float

    def __or__(self, other: "Moved") -> "Moved":
        """The larger of each."""
        return Moved(rows=max(self.rows, other.rows), by=max(self.by, other.by))


def moved(function: RowFunction, records: int, *, alone: int = 6) -> Moved:
    """Computes all records in one order, then in others, and compares each record's result.

    Args:
        function: Of record numbers in [0, records), which may repeat.
        records: How many there are; at least 2.
        alone: Records that are also computed without company.
    """
    base = np.asarray(function(range(records)))
    found = Moved(rows=0, by=0.0)
    for order in _arrangements(records, alone):
        found |= _difference(np.asarray(function(order)), base[order])
    return found


def _arrangements(records: int, alone: int) -> Iterator[list[int]]:
    """Records removed, added in front, permuted, repeated, and without company."""
    everyone = list(range(records))
    for removed in (1, 2, 5):
        yield everyone[removed:]
    for added in (1, 3, 7):
        yield everyone[-added:] + everyone
    yield everyone[::-1]
    yield np.random.default_rng(0).permutation(records).tolist()
    yield sorted(everyone * 2)
    for one in everyone[:: max(1, records // alone)]:
        yield [one]


def _difference(found: np.ndarray, expected: np.ndarray) -> Moved:
    found, expected = (part.reshape(len(part), -1) for part in (found, expected))
    same = (found == expected) | ((found != found) & (expected != expected))
    if same.all():
        return Moved(rows=0, by=0.0)
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    by = float(np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart)).max())
    return Moved(rows=int((~same).any(axis=1).sum()), by=by)


def near_ties(dimension: int, *, ties: int = TIES, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Builds records that lie within rounding of a tie between two public rows.

    Each record x has two rows of its own, a and its mirror image in a plane that holds x: in exact
    arithmetic x·a = x·b, and rounding to float32 leaves them some 10⁻⁸ apart.

    Args:
        dimension: d >= 8.
        ties: How many such records.
        seed: Of public randomness.

    Returns:
        float32 (3 ties, d) records, each followed by itself and by one near no tie; and float32
        (2 ties, d) public rows. All of unit length.
    """
    draw = np.random.default_rng(seed)
    x = _unit(draw.standard_normal((ties, dimension))).astype(np.float32)
    first = _unit(x + 0.8 * _unit(draw.standard_normal((ties, dimension))))
    normal = draw.standard_normal((ties, dimension))
    normal = _unit(normal - _along(normal, x) * x)
    second = first - 2.0 * _along(first, normal) * normal
    public = np.stack([first, second], axis=1).reshape(2 * ties, dimension).astype(np.float32)
    clear = _unit(public[::2] + 0.1 * _unit(draw.standard_normal((ties, dimension))))
    records = np.stack([x, x, clear], axis=1).reshape(3 * ties, dimension)
    return records.astype(np.float32), public


def _along(vectors: np.ndarray, directions: np.ndarray) -> np.ndarray:
    return np.asarray((vectors * directions).sum(axis=1, keepdims=True))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
