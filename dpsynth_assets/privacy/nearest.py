"""Finds the nearest public row of each private row exactly, independent of all other private rows.

Letters: N private rows, C public rows, d dimensions. A private row x gets the public row c of the
largest score x·c − o(c), with a public offset o. Scores are float32 matrix products of blocks, and
a matrix product may round a row by its place in the block. So products only say which public rows
*may* be the nearest: all whose score is closer to the best one than rounding can tell. Where there
are several, the score is computed again in float64, pair by pair, in an order of additions that
depends on d alone (`row_sums`). The result is the row of the largest float64 score, regardless of
the products: it depends neither on the block that a private row falls into, nor on the processor.

This holds for products in which each multiplication and each addition, in any order, is
rounded to float32, as BLAS libraries promise; not for products in TF32 or bfloat16.

**Privacy** The sensitivity of every histogram over public bins rests on this: one record that
comes or goes must not move the bins of the others (`privacy.histogram`, `privacy.histogram`).

**Source** Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.privacy.cpu import row_sums

NO_ROW = -1
"""Stands for the nearest row of a group that has none."""

SCORES_AT_A_TIME = 1 << 19
"""Entries of a block of scores: 2 MB, which a processor's cache holds."""

BLOCK_ROWS = 1024
"""Private rows of a block at most: 1.5 MB at d = 384."""

LARGEST_NORM = 1e15
"""Of a public row: its products with a private row whose norm is a float32 do not overflow."""

_PAIRS_AT_A_TIME = 1 << 11
_UNIT_ROUNDOFF = 2.0**-24
_UNDERFLOW = 2.0**-100  # Products below 2**-126 may become zero: d of them stay below this.


@dataclass(frozen=True)
class Group:
    """Different public rows among which the nearest is looked for.

    Attributes:
        numbers: (g,) their places among all public rows, ascending.
        vectors: (g, d) float32.
        offsets: (g,) float32, o of each.
        largest_norm: Largest ‖c‖.
    """

    numbers: np.ndarray
    vectors: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    largest_norm: float


class PublicRows:
    """Public rows c with offsets o(c), which private rows are compared with.

    Attributes:
        vectors: (C, d) float32.
        offsets: (C,) float64.
    """

    def __init__(self, vectors: np.ndarray, *, distance: bool) -> None:
        """Takes public rows.

        Args:
            vectors: (C, d) finite numbers.
            distance: Whether the nearest row is the one of the smallest Euclidean distance,
                o(c) = ½‖c‖²; otherwise of the largest inner product, o(c) = 0.

        Raises:
            ValueError: They are no matrix, or not finite, or too long; no value is shown.
        """
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if self.vectors.ndim != 2:
            raise ValueError(f"Expected public rows (C, d), got shape {self.vectors.shape}.")
        wide = self.vectors.astype(np.float64)
        self._squares = row_sums(wide * wide)
        if not (self._squares <= LARGEST_NORM**2).all():
            raise ValueError(
                f"Expected finite public rows of length at most {LARGEST_NORM:g}, got another. "
                "Embed the texts again."
            )
        self.offsets = self._squares / 2.0 if distance else np.zeros(len(wide))
        # Rows of different ‖c‖² need no comparison.
        self._distinct = len(np.unique(self._squares)) == len(wide)

    def group(self, numbers: np.ndarray | None = None) -> Group:
        """Chooses some rows, ascending; None chooses all.

        Of equal rows the first stays alone, which wins every tie between them.
        """
        chosen = np.arange(len(self.vectors)) if numbers is None else np.unique(numbers)
        if not self._distinct:
            chosen = self._first_of_equal(chosen)
        return Group(
            chosen,
            self.vectors[chosen],
            self.offsets[chosen].astype(np.float32),
            float(np.sqrt(self._squares[chosen].max(initial=0.0))),
        )

    def by_label(self, labels: np.ndarray) -> dict[int, Group]:
        """The rows of each label, given the (C,) labels of all."""
        rows = _rows_of_labels(labels, len(labels))
        return {label: self.group(numbers) for label, numbers in rows}

    def _first_of_equal(self, numbers: np.ndarray) -> np.ndarray:
        places: dict[bytes, int] = {}
        for number in numbers.tolist():
            row = self.vectors[number] + np.float32(0.0)  # No -0.0.
            places.setdefault(row.tobytes(), number)
        return np.fromiter(places.values(), dtype=np.int64)  # Ascending, as it was filled.


def nearest_rows(
    private_rows: np.ndarray, public: PublicRows, group: Group | None = None
) -> np.ndarray:
    """Finds each private row's nearest public row.

    Memory beyond the arguments is bounded by a window of rows and a block of scores, for every N.

    Args:
        private_rows: (N, d) numbers, read as float32; may be mapped from a file, whose pages are
            given back once they were read.
        public: C public rows.
        group: Those that may be chosen; None: all.

    Returns:
        (N,) int64 places among the public rows, the lowest where several are equally near, and
        the lowest of the group for a row with NaN or infinity; `NO_ROW` if the group is empty.

    Raises:
        ValueError: The dimensions differ.

    **Privacy** Private. Entry i depends on private row i and the public rows only.
    """
    groups = {0: public.group() if group is None else group}
    return nearest_rows_of_labels(private_rows, None, public, groups)


def nearest_rows_of_labels(
    private_rows: np.ndarray,
    labels: np.ndarray | None,
    public: PublicRows,
    groups: Mapping[int, Group],
    *,
    norms: np.ndarray | None = None,
) -> np.ndarray:
    """Finds each private row's nearest public row among those of its label.

    Args:
        private_rows: As in `nearest_rows`.
        labels: (N,) whole numbers; None: all are 0.
        public: C public rows.
        groups: The public rows of each label.
        norms: (N,) `row_norms` of the private rows; None to find them.

    Returns:
        As `nearest_rows`; `NO_ROW` where a label's group is empty or missing.

    Raises:
        ValueError: The dimensions differ.

    **Privacy** Private. Entry i depends on private row i, its label and the public rows only.
    """
    if np.ndim(private_rows) != 2 or private_rows.shape[1] != public.vectors.shape[1]:
        raise ValueError(
            f"Expected private rows (N, {public.vectors.shape[1]}), got {np.shape(private_rows)}. "
            "Use the embedder that made the public rows."
        )
    places = np.full(len(private_rows), NO_ROW, dtype=np.int64)
    with np.errstate(all="ignore"):  # A warning would tell that a private row is broken.
        for window, rows in windows(private_rows):
            known = None if norms is None else norms[window]
            of_rows = None if labels is None else np.asarray(labels[window])
            _Search(rows, known, public, places[window]).run(of_rows, groups)
    return places


def pair_scores(
    private_rows: np.ndarray, public: PublicRows, numbers: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Computes the scores x·c − o(c) of chosen pairs.

    Args:
        private_rows: (N, d) float32.
        public: C public rows.
        numbers: (p,) which private row of each pair.
        places: (p,) which public row.

    Returns:
        (p,) float64.

    **Privacy** Private. Entry i depends on its pair only: float64 products of float32 numbers are
    exact, and `row_sums` adds them up in one order.
    """
    scores = np.empty(len(numbers))
    for start in range(0, len(numbers), _PAIRS_AT_A_TIME):
        part = slice(start, start + _PAIRS_AT_A_TIME)
        products = private_rows[numbers[part]].astype(np.float64)
        with np.errstate(all="ignore"):  # A warning would tell that a private row is broken.
            products *= public.vectors[places[part]]
            scores[part] = row_sums(products) - public.offsets[places[part]]
    return scores


def row_norms(rows: np.ndarray) -> np.ndarray:
    """(n,) ‖x‖ in float32; `_bands` allows for their rounding."""
    with np.errstate(all="ignore"):  # A warning would tell that a private row is broken.
        return np.asarray(np.sqrt(np.vecdot(rows, rows)))


class _Search:
    """The search of one window of private rows.

    Args:
        rows: (n, d) float32.
        norms: (n,) `row_norms`, or None.
        public: C public rows.
        places: (n,) results, filled here.
    """

    def __init__(
        self, rows: np.ndarray, norms: np.ndarray | None, public: PublicRows, places: np.ndarray
    ) -> None:
        self._rows, self._norms, self._public, self._places = rows, norms, public, places
        self._open: list[tuple[np.ndarray, np.ndarray]] = []
        self._open_count = 0
        self._room = np.empty((min(BLOCK_ROWS, len(rows)), rows.shape[1]), dtype=np.float32)

    def run(self, labels: np.ndarray | None, groups: Mapping[int, Group]) -> None:
        """Searches label by label; what float32 leaves open is settled together."""
        for label, numbers in _rows_of_labels(labels, len(self._rows)):
            group = groups.get(label)
            if group is not None and len(group.numbers):
                self._choose(numbers, group)
        self._settle()

    def _choose(self, numbers: np.ndarray, group: Group) -> None:
        """Finds the nearest rows of a group for some private rows, block by block."""
        count = max(1, min(len(self._room), SCORES_AT_A_TIME // len(group.numbers)))
        scores = np.empty((min(count, len(numbers)), len(group.numbers)), dtype=np.float32)
        for start in range(0, len(numbers), count):
            chosen = numbers[start : start + count]
            block = self._together(chosen)
            norms = row_norms(block) if self._norms is None else self._norms[chosen]
            best, row, place = _possible(block, norms, group, scores[: len(chosen)])
            self._places[chosen] = group.numbers[best]
            if len(row):
                self._add(chosen[row], group.numbers[place])

    def _together(self, numbers: np.ndarray) -> np.ndarray:
        """Reads ascending rows: a view where they lie together, else a copy that a cache holds."""
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            return self._rows[numbers[0] : numbers[-1] + 1]
        return np.take(self._rows, numbers, axis=0, out=self._room[: len(numbers)], mode="clip")

    def _add(self, numbers: np.ndarray, places: np.ndarray) -> None:
        """Keeps all possible pairs of some private rows; settles where many have come together."""
        self._open.append((numbers, places))
        self._open_count += len(numbers)
        if self._open_count > 4 * _PAIRS_AT_A_TIME:
            self._settle()

    def _settle(self) -> None:
        """Decides each row's pairs, one pair at a time; ties go to the first public row."""
        if not self._open:
            return
        numbers, places = (np.concatenate(column) for column in zip(*self._open, strict=True))
        scores = pair_scores(self._rows, self._public, numbers, places)
        order = np.lexsort((places, -scores, numbers))
        found, first = np.unique(numbers[order], return_index=True)
        self._places[found] = places[order][first]
        self._open, self._open_count = [], 0


def _rows_of_labels(labels: np.ndarray | None, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each label with the ascending numbers of its rows."""
    if labels is None:
        yield 0, np.arange(rows)
        return
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    for numbers in np.split(order, ends) if rows else []:
        yield int(labels[numbers[0]]), numbers


def _possible(
    block: np.ndarray, norms: np.ndarray, group: Group, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the best public row by a float32 product, and all that may be it where it is unsure.

    Args:
        block: (n, d) private rows.
        norms: (n,) `row_norms`.
        group: g public rows.
        scores: (n, g) room.

    Returns:
        (n,) best places in the group, which are final for rows without open pairs; and rows and
        places of the open pairs. Each row is judged by itself: no row, however broken, decides
        how another one's nearest row is found.
    """
    np.matmul(block, group.vectors.T, out=scores)
    if group.offsets.any():
        scores -= group.offsets
    each = np.arange(len(block))
    best = scores.argmax(axis=1)
    highest = scores[each, best]
    least = highest - _bands(norms, block.shape[1], group)
    scores[each, best] = -np.inf
    # Not `>=`: a row whose scores or norm overflow is open to all public rows.
    unsure = np.flatnonzero(~(scores.max(axis=1) < least))
    scores[each, best] = highest
    broken = ~np.isfinite(block[unsure]).all(axis=1)
    best[unsure[broken]] = 0
    unsure = unsure[~broken]
    row, place = np.nonzero(~(scores[unsure] < least[unsure, None]))
    return best, unsure[row], place


def _bands(norms: np.ndarray, dimension: int, group: Group) -> np.ndarray:
    """Bounds how far apart float32 scores of a row may be with the exact ones swapped: (n,).

    A dot product of d terms errs by at most γ‖x‖‖c‖, γ = d u / (1 − d u), in any order and
    with or without fused multiply-adds; the offset and the differences are rounded besides, and a
    float64 score errs by far less.
    """
    terms = (dimension + 4) * _UNIT_ROUNDOFF
    gamma = terms / (1.0 - terms)
    # The square of an entry below 2^-63 may underflow to zero: a norm misses at most √d of these.
    missed = np.float32(dimension**0.5 * 2.0**-62)
    at_most = norms * np.float32(1.0 + 1e-4) + missed
    largest = float(np.abs(group.offsets).max())
    return 2.0 * gamma * (group.largest_norm * at_most + np.float32(largest)) + _UNDERFLOW


WINDOW_ROWS = 32_768
"""Rows read at a time: 50 MB at d = 384."""


def windows(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields (n, d) rows as contiguous float32, in their order, with their places.

    A mapped file is read once, and the system may drop its pages once the next window is asked
    for, so that memory stays bounded.
    """
    for start in range(0, len(rows), WINDOW_ROWS):
        window = slice(start, min(start + WINDOW_ROWS, len(rows)))
        copied = True if is_mapped(rows) else None
        with np.errstate(all="ignore"):  # A warning would tell that a private row is broken.
            read = np.array(rows[window], dtype=np.float32, order="C", copy=copied)
        yield window, read
        _give_pages_back(rows)


def is_mapped(rows: np.ndarray) -> bool:
    """Says whether an array is in a mapped file."""
    return _mapping(rows) is not None


def _give_pages_back(rows: np.ndarray) -> None:
    mapping = _mapping(rows)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(rows: np.ndarray) -> mmap.mmap | None:
    owner: object = rows
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None
