"""Which candidate each private record votes for: the nearest one of its own label, exactly.

Letters: N records, C candidates, d dimensions. Scores are one matrix product a block, in float32; a
record whose two best scores are closer than rounding can tell is decided again in float64, pair by
pair. So a vote is a function of the record's embedding and of the candidates alone: it depends
neither on the block a record falls into nor on how a matrix product rounds there, as the
sensitivity of the vote histogram demands (`privacy.voting`).

**Source** Xie et al. 2024 (Aug-PE), the nearest-neighbour histogram of Algorithm 1, within classes.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.privacy.voting import NO_VOTE

ShareCallback = Callable[[float], None]

WINDOW_ROWS = 32_768
"""Records read at a time: 50 MB at d = 384."""

SCORES_AT_A_TIME = 1 << 20
"""Entries of a block of scores: 4 MB, which a processor's cache holds."""

BLOCK_ROWS = 1024
"""Records of a block at most: 1.5 MB at d = 384."""

SORTED_BYTES = 1 << 30
"""Records up to this size are copied in the order of their labels."""

_PAIRS_AT_A_TIME = 1 << 13
_UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class _Candidates:
    """Different candidates of one label.

    Attributes:
        numbers: (C,) their places in the population, ascending.
        vectors: (C, d) float32.
        half_norms: (C,) ½‖c‖², float32.
        largest_norm: Largest ‖c‖.
    """

    numbers: np.ndarray
    vectors: np.ndarray = field(repr=False)
    half_norms: np.ndarray = field(repr=False)
    largest_norm: float


def _by_label(candidates: np.ndarray, labels: np.ndarray) -> dict[int, _Candidates]:
    """Candidates of each label; of equal ones the first, which wins every tie between them."""
    wide = candidates.astype(np.float64)
    squares = np.vecdot(wide, wide)
    # Rows of different ‖c‖² need no comparison.
    unequal = len(np.unique(squares)) == len(squares)
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    groups = {}
    for numbers in np.split(order, ends) if len(order) else []:
        kept = numbers if unequal else _first_of_equal(candidates, numbers)
        groups[int(labels[kept[0]])] = _Candidates(
            kept,
            candidates[kept],
            (squares[kept] / 2.0).astype(np.float32),
            float(np.sqrt(squares[kept].max())),
        )
    return groups


def _first_of_equal(candidates: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Numbers of different rows among the given ones, ascending."""
    places: dict[bytes, int] = {}
    for number in numbers.tolist():
        places.setdefault((candidates[number] + np.float32(0.0)).tobytes(), number)  # No -0.0.
    return np.fromiter(places.values(), dtype=np.int64)  # Ascending, as it was filled.


def nearest_candidates(
    vectors: np.ndarray,
    vector_labels: np.ndarray,
    candidates: np.ndarray,
    candidate_labels: np.ndarray,
    *,
    norms: np.ndarray | None = None,
    progress: ShareCallback | None = None,
) -> np.ndarray:
    """Finds each record's nearest candidate of its label, in Euclidean distance.

    For unit vectors that is the most similar one in cosine. Memory beyond the arguments is bounded
    by `WINDOW_ROWS` and `SCORES_AT_A_TIME`, whatever N; `vectors` may be mapped from a file, whose
    pages are given back once they were read.

    Args:
        vectors: (N, d) float32.
        vector_labels: (N,) whole numbers; a label that no candidate has gives no vote.
        candidates: (C, d), finite.
        candidate_labels: (C,) whole numbers.
        norms: (N,) of `VotingRecords`; None to find them.
        progress: Told the share of records done.

    Returns:
        (N,) int64 places of candidates, the lowest where several are equally near; `NO_VOTE` for
        records whose label has no candidate.

    Raises:
        ValueError: Shapes do not match or a candidate is not finite; no value is shown.

    **Privacy** Private until noise is added. Entry i depends on record i and the candidates only.
    """
    _check(vectors, vector_labels, candidates, candidate_labels)
    known = np.asarray(candidates, dtype=np.float32)
    groups = _by_label(known, np.asarray(candidate_labels))
    choices = np.full(len(vectors), NO_VOTE, dtype=np.int64)
    for start in range(0, len(vectors), WINDOW_ROWS):
        window = slice(start, min(start + WINDOW_ROWS, len(vectors)))
        block = _in_memory(vectors, window)
        with np.errstate(all="ignore"):  # A warning would tell that a private vector is broken.
            labels = np.asarray(vector_labels[window])
            of_window = None if norms is None else norms[window]
            choices[window] = _window_choices(block, labels, of_window, groups, known)
        _give_pages_back(vectors)
        if progress is not None:
            progress(window.stop / len(vectors))
    return choices


@dataclass(frozen=True)
class VotingRecords:
    """Records as repeated votes read them.

    Attributes:
        vectors: (N, d) float32.
        labels: (N,) whole numbers.
        norms: (N,) ‖x‖, float32; None where each round finds them anew.
    """

    vectors: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    norms: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def in_label_order(cls, vectors: np.ndarray, labels: np.ndarray) -> "VotingRecords":
        """Copies records so that those of a label lie together; votes are the same, elsewhere.

        A mapped file, or more than `SORTED_BYTES`, stays as it is.
        """
        if _mapping(vectors) is not None or vectors.nbytes > SORTED_BYTES:
            return cls(vectors, labels)
        order = np.argsort(labels, kind="stable")
        moved = np.ascontiguousarray(vectors[order], dtype=np.float32)
        return cls(moved, labels[order], _norms(moved))


def _check(
    vectors: np.ndarray,
    vector_labels: np.ndarray,
    candidates: np.ndarray,
    candidate_labels: np.ndarray,
) -> None:
    shapes = [np.shape(part) for part in (vectors, vector_labels, candidates, candidate_labels)]
    if len(shapes[0]) != 2 or len(shapes[2]) != 2 or shapes[0][1] != shapes[2][1]:
        raise ValueError(
            f"Expected vectors (N, d) and candidates (C, d), got {shapes[0]} and {shapes[2]}."
        )
    if shapes[1] != shapes[0][:1] or shapes[3] != shapes[2][:1]:
        raise ValueError("Expected one label for each vector and for each candidate, got others.")
    if not np.isfinite(candidates).all():
        raise ValueError("Expected finite candidates, got another. Embed the texts again.")


def _window_choices(
    vectors: np.ndarray,
    labels: np.ndarray,
    norms: np.ndarray | None,
    groups: dict[int, _Candidates],
    candidates: np.ndarray,
) -> np.ndarray:
    """Votes of one window, label by label; what float32 leaves open is settled together."""
    choices = np.full(len(vectors), NO_VOTE, dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(labels[order])) + 1, len(order))
    room = np.empty((min(BLOCK_ROWS, len(vectors)), vectors.shape[1]), dtype=np.float32)
    open_pairs = _OpenPairs(vectors, candidates, choices)
    start = 0
    for end in ends.tolist():
        rows, start = order[start:end], end
        group = groups.get(int(labels[rows[0]])) if len(rows) else None
        if group is not None:
            _vote(vectors, norms, rows, group, room, open_pairs)
    open_pairs.settle()
    return choices


def _vote(
    vectors: np.ndarray,
    norms: np.ndarray | None,
    rows: np.ndarray,
    group: _Candidates,
    room: np.ndarray,
    open_pairs: "_OpenPairs",
) -> None:
    """Finds the nearest of a group's candidates for the chosen rows, block by block.

    Rows that do not lie together are gathered into `room` (rows, d), which the processor's cache
    holds.
    """
    count = max(1, min(len(room), SCORES_AT_A_TIME // len(group.vectors)))
    scores = np.empty((min(count, len(rows)), len(group.vectors)), dtype=np.float32)
    for start in range(0, len(rows), count):
        chosen = rows[start : start + count]
        block = _together(vectors, chosen, room)
        of_block = _norms(block) if norms is None else norms[chosen]
        pairs = _possible_pairs(block, of_block, group, scores[: len(chosen)])
        places = _places_of_one_each(pairs, len(chosen), len(group.vectors))
        if places is not None:
            open_pairs.choices[chosen] = group.numbers[places]
            continue
        found, places = np.divmod(pairs, len(group.vectors))
        open_pairs.choices[chosen] = group.numbers[0]  # A broken record's: no pair is possible.
        open_pairs.choices[chosen[found]] = group.numbers[places]
        doubtful = np.bincount(found)[found] > 1  # By record: no record decides for another.
        if doubtful.any():
            open_pairs.add(chosen[found[doubtful]], group.numbers[places[doubtful]])


def _together(vectors: np.ndarray, rows: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Reads ascending rows: a view where they lie together, else a copy in `room`."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return vectors[rows[0] : rows[-1] + 1]
    return np.take(vectors, rows, axis=0, out=room[: len(rows)], mode="clip")


def _possible_pairs(
    block: np.ndarray, norms: np.ndarray, group: _Candidates, scores: np.ndarray
) -> np.ndarray:
    """Maximises x·c − ½‖c‖², which orders candidates as −‖x − c‖² does.

    Args:
        block: (n, d) records.
        norms: (n,) ‖x‖.
        group: C candidates.
        scores: (n, C) room.

    Returns:
        Places in (n, C), ascending: each record with its best candidate and with those that
        rounding cannot tell from it.
    """
    np.matmul(block, group.vectors.T, out=scores)
    scores -= group.half_norms
    possible = scores >= (scores.max(axis=1) - _bands(norms, block.shape[1], group))[:, None]
    return np.flatnonzero(possible)


def _places_of_one_each(pairs: np.ndarray, rows: int, candidates: int) -> np.ndarray | None:
    """(rows,) candidates of pairs in (rows, candidates), if each row has one; else None."""
    if len(pairs) != rows:
        return None
    places = pairs - np.arange(0, rows * candidates, candidates)
    return places if places.min() >= 0 and places.max() < candidates else None


class _OpenPairs:
    """Pairs of a record and a candidate that may be its nearest; float64 decides between them.

    Args:
        vectors: (n, d) records of a window.
        candidates: (C, d) of all labels.
        choices: (n,) votes, which `settle` corrects.
    """

    def __init__(self, vectors: np.ndarray, candidates: np.ndarray, choices: np.ndarray) -> None:
        self.choices = choices
        self._vectors, self._candidates = vectors, candidates
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self._count = 0

    def add(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Adds all pairs of some records; settles where many have come together."""
        self._pairs.append((rows, numbers))
        self._count += len(rows)
        if self._count > _PAIRS_AT_A_TIME:
            self.settle()

    def settle(self) -> None:
        """Decides each record's pairs, one pair at a time; ties go to the first candidate."""
        if not self._pairs:
            return
        rows, numbers = (np.concatenate(column) for column in zip(*self._pairs, strict=True))
        scores = _exact_scores(self._vectors, self._candidates, rows, numbers)
        order = np.lexsort((numbers, -scores, rows))
        found, first = np.unique(rows[order], return_index=True)
        self.choices[found] = numbers[order][first]
        self._pairs, self._count = [], 0


def _norms(block: np.ndarray) -> np.ndarray:
    """(n,) ‖x‖ in float32; `_bands` allows for their rounding."""
    with np.errstate(all="ignore"):  # A warning would tell that a private vector is broken.
        return np.asarray(np.sqrt(np.vecdot(block, block)))


def _bands(norms: np.ndarray, dimension: int, group: _Candidates) -> np.ndarray:
    """How far apart a record's float32 scores may be although the exact ones are swapped: (n,).

    A dot product of d terms errs by at most γ‖x‖‖c‖, γ = d u / (1 − d u), in whatever order and
    with or without fused multiply-adds; ½‖c‖² and the difference are rounded besides. Each record
    has its own: no record, however broken, decides how another one's vote is found.

    **Source** Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5.
    """
    terms = (dimension + 4) * _UNIT_ROUNDOFF
    gamma = terms / (1.0 - terms)
    at_most = norms * np.float32(1.0 + 1e-4)
    return (2.0 * gamma * group.largest_norm) * (at_most + np.float32(group.largest_norm))


def _exact_scores(
    block: np.ndarray, vectors: np.ndarray, rows: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """(pairs,) x·c − ½‖c‖² in float64; each row of a contiguous sum is added up by itself."""
    scores = np.empty(len(rows))
    for start in range(0, len(rows), _PAIRS_AT_A_TIME):
        part = slice(start, start + _PAIRS_AT_A_TIME)
        chosen = vectors[candidates[part]].astype(np.float64)
        of_rows = block[rows[part]].astype(np.float64)
        scores[part] = (of_rows * chosen).sum(axis=1) - (chosen * chosen).sum(axis=1) / 2.0
    return scores


def _in_memory(vectors: np.ndarray, window: slice) -> np.ndarray:
    """Rows of a window as float32; a mapped file is read once and in its order."""
    copied = True if _mapping(vectors) is not None else None
    return np.array(vectors[window], dtype=np.float32, order="C", copy=copied)


def _give_pages_back(vectors: np.ndarray) -> None:
    """Lets the system drop what was read of a mapped file, so that memory stays bounded."""
    mapping = _mapping(vectors)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(vectors: np.ndarray) -> mmap.mmap | None:
    """The mapped file that an array lies in, if it does."""
    owner: object = vectors
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None
