"""Votes of private records: each for the nearest candidate of its own label, exactly.

Letters: N records, C candidates, d dimensions. A vote is a function of the record's embedding and
of the candidates alone: it depends neither on the block a record falls into nor on how a matrix
product rounds there (`privacy.nearest`), as the sensitivity of the vote histogram demands
(`privacy.voting`).

**Source** Xie et al. 2024 (Aug-PE), the nearest-neighbour histogram of Algorithm 1, within classes.
"""

from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.privacy.nearest import (
    Group,
    PublicRows,
    ShareCallback,
    is_mapped,
    nearest_rows_of_labels,
    row_norms,
)

SORTED_BYTES = 1 << 30
"""Records up to this size are copied in the order of their labels."""


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

    For unit vectors that is the most similar one in cosine. Memory beyond the arguments is bounded,
    whatever N; `vectors` may be mapped from a file, whose pages are given back once they were read.

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
    public = PublicRows(candidates, distance=True)
    groups = _by_label(public, np.asarray(candidate_labels))
    return nearest_rows_of_labels(
        vectors, np.asarray(vector_labels), public, groups, norms=norms, progress=progress
    )


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
        if is_mapped(vectors) or vectors.nbytes > SORTED_BYTES:
            return cls(vectors, labels)
        order = np.argsort(labels, kind="stable")
        moved = np.ascontiguousarray(vectors[order], dtype=np.float32)
        return cls(moved, labels[order], row_norms(moved))


def _by_label(public: PublicRows, labels: np.ndarray) -> dict[int, Group]:
    """Candidates of each label."""
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    parts = np.split(order, ends) if len(order) else []
    return {int(labels[numbers[0]]): public.group(numbers) for numbers in parts}


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
