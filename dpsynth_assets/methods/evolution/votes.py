"""Which candidate each private record votes for: the nearest one of its own label, exactly.

Letters: N records, C candidates, d dimensions. Scores are one matrix product a block, in float32; a
record whose two best scores are closer than rounding can tell is decided again in float64, pair by
pair. So a vote is a function of the record's embedding and of the candidates alone: it depends
neither on the block a record falls into nor on how a matrix product rounds there, as the
sensitivity of the vote histogram demands (`privacy.voting`).

**Source** Xie et al. 2024 (Aug-PE), the nearest-neighbour histogram of Algorithm 1, within classes.
"""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.privacy.voting import NO_VOTE

ShareCallback = Callable[[float], None]

WINDOW_ROWS = 32_768
"""Records read at a time: 50 MB at d = 384."""

SCORES_AT_A_TIME = 1 << 20
"""Entries of a block of scores: 4 MB, which a processor's cache holds."""

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

    @classmethod
    def of(cls, numbers: np.ndarray, vectors: np.ndarray) -> "_Candidates":
        """Keeps the first of equal candidates, which wins every tie between them."""
        places: dict[bytes, int] = {}
        for place, vector in enumerate(vectors + np.float32(0.0)):  # -0.0 becomes 0.0.
            places.setdefault(vector.tobytes(), place)
        first = np.fromiter(places.values(), dtype=np.int64)  # Ascending, as it was filled.
        kept = np.ascontiguousarray(vectors[first])
        squares = np.einsum("cd,cd->c", kept, kept, dtype=np.float64)
        return cls(
            numbers[first],
            kept,
            (squares / 2.0).astype(np.float32),
            float(np.sqrt(squares.max())),
        )


def nearest_candidates(
    vectors: np.ndarray,
    vector_labels: np.ndarray,
    candidates: np.ndarray,
    candidate_labels: np.ndarray,
    *,
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
        progress: Told the share of records done.

    Returns:
        (N,) int64 places of candidates, the lowest where several are equally near; `NO_VOTE` for
        records whose label has no candidate.

    Raises:
        ValueError: Shapes do not match or a candidate is not finite; no value is shown.

    **Privacy** Private until noise is added. Entry i depends on record i and the candidates only.
    """
    _check(vectors, vector_labels, candidates, candidate_labels)
    groups = _by_label(np.asarray(candidates, dtype=np.float32), np.asarray(candidate_labels))
    choices = np.full(len(vectors), NO_VOTE, dtype=np.int64)
    for start in range(0, len(vectors), WINDOW_ROWS):
        window = slice(start, min(start + WINDOW_ROWS, len(vectors)))
        block = np.array(vectors[window], dtype=np.float32, order="C")
        with np.errstate(all="ignore"):  # A warning would tell that a private vector is broken.
            choices[window] = _window_choices(block, np.asarray(vector_labels[window]), groups)
        _give_pages_back(vectors)
        if progress is not None:
            progress(window.stop / len(vectors))
    return choices


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


def _by_label(candidates: np.ndarray, labels: np.ndarray) -> dict[int, _Candidates]:
    return {
        int(label): _Candidates.of(numbers, candidates[numbers])
        for label in np.unique(labels)
        for numbers in [np.flatnonzero(labels == label)]
    }


def _window_choices(
    vectors: np.ndarray, labels: np.ndarray, groups: dict[int, _Candidates]
) -> np.ndarray:
    """Votes of one window, label by label."""
    choices = np.full(len(vectors), NO_VOTE, dtype=np.int64)
    order = np.argsort(labels, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(labels[order])) + 1, len(order))
    start = 0
    for end in ends.tolist():
        rows, start = order[start:end], end
        group = groups.get(int(labels[rows[0]])) if len(rows) else None
        if group is not None:
            of_label = vectors if len(rows) == len(vectors) else vectors[rows]
            choices[rows] = group.numbers[_nearest(of_label, group)]
    return choices


def _nearest(vectors: np.ndarray, group: _Candidates) -> np.ndarray:
    """(n,) nearest of a group's candidates, by place in the group."""
    nearest = np.empty(len(vectors), dtype=np.int64)
    rows = max(1, SCORES_AT_A_TIME // len(group.vectors))
    scores = np.empty((min(rows, len(vectors)), len(group.vectors)), dtype=np.float32)
    for start in range(0, len(vectors), rows):
        block = vectors[start : start + rows]
        nearest[start : start + rows] = _block_nearest(block, group, scores[: len(block)])
    return nearest


def _block_nearest(block: np.ndarray, group: _Candidates, scores: np.ndarray) -> np.ndarray:
    """Maximises x·c − ½‖c‖², which orders candidates as −‖x − c‖² does."""
    np.matmul(block, group.vectors.T, out=scores)
    scores -= group.half_norms
    best = scores.argmax(axis=1)
    rows = np.arange(len(block))
    top = scores[rows, best]
    scores[rows, best] = -np.inf
    band = _bands(block, group)
    doubtful = np.flatnonzero(~(top - scores.max(axis=1) > band))
    scores[rows, best] = top
    possible = scores[doubtful] >= (top - band)[doubtful, None]
    best[doubtful] = _decided(block[doubtful], group, possible)
    return best


def _bands(block: np.ndarray, group: _Candidates) -> np.ndarray:
    """How far apart a record's float32 scores may be although the exact ones are swapped: (n,).

    A dot product of d terms errs by at most γ‖x‖‖c‖, γ = d u / (1 − d u), in whatever order and
    with or without fused multiply-adds; ½‖c‖² and the difference are rounded besides. Each record
    has its own: no record, however broken, decides how another one's vote is found.

    **Source** Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5.
    """
    terms = (block.shape[1] + 4) * _UNIT_ROUNDOFF
    gamma = terms / (1.0 - terms)
    norms = np.sqrt(np.einsum("nd,nd->n", block, block)) * np.float32(1.0 + 1e-4)
    return (2.0 * gamma * group.largest_norm) * (norms + np.float32(group.largest_norm))


def _decided(block: np.ndarray, group: _Candidates, possible: np.ndarray) -> np.ndarray:
    """Settles doubtful records in float64, one pair at a time; ties go to the first candidate."""
    decided = np.zeros(len(block), dtype=np.int64)
    for rows in _row_slices(possible.sum(axis=1)):
        pair_rows, pair_candidates = np.nonzero(possible[rows])
        scores = _exact_scores(block[rows], group.vectors, pair_rows, pair_candidates)
        order = np.lexsort((pair_candidates, -scores, pair_rows))
        found, first = np.unique(pair_rows[order], return_index=True)
        decided[rows.start + found] = pair_candidates[order][first]
    return decided


def _row_slices(pairs: np.ndarray) -> Iterator[slice]:
    """Cuts rows into runs of about `_PAIRS_AT_A_TIME` pairs, each of one row at least."""
    start, total = 0, 0
    for row, count in enumerate(pairs.tolist()):
        if row > start and total + count > _PAIRS_AT_A_TIME:
            yield slice(start, row)
            start, total = row, 0
        total += count
    if start < len(pairs):
        yield slice(start, len(pairs))


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


def _give_pages_back(vectors: np.ndarray) -> None:
    """Lets the system drop what was read of a mapped file, so that memory stays bounded."""
    owner: object = vectors
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap):
        owner.madvise(mmap.MADV_DONTNEED)
