"""Votes of private records: each for the nearest candidate of its own label, exactly.

Letters: N records, C candidates, d dimensions. A vote is a function of the record's embedding and
of the candidates alone: it depends neither on the block a record falls into nor on how a matrix
product rounds there (`privacy.nearest`), as the sensitivity of the vote histogram demands
(`privacy.histogram`).

**Source** Xie et al. 2024 (Aug-PE), the nearest-neighbour histogram of Algorithm 1, within classes.
"""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, counted_labels
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.histogram import GaussianVoting, count_votes
from dpsynth_assets.privacy.nearest import (
    PublicRows,
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
) -> np.ndarray:
    """Finds each record's nearest candidate of its label, in Euclidean distance.

    For unit vectors that is the most similar one in cosine. Memory beyond the arguments is bounded,
    for every N; `vectors` may be mapped from a file, whose pages are given back once they were
    read.

    Args:
        vectors: (N, d) float32.
        vector_labels: (N,) whole numbers; a label that no candidate has gives no vote.
        candidates: (C, d), finite.
        candidate_labels: (C,) whole numbers.
        norms: (N,) of `VotingRecords`; None to find them.

    Returns:
        (N,) int64 places of candidates, the lowest where several are equally near; `NO_VOTE` for
        records whose label has no candidate.

    Raises:
        ValueError: Shapes do not match or a candidate is not finite; no value is shown.

    **Privacy** Private until noise is added. Entry i depends on record i and the candidates only.
    """
    public = PublicRows(candidates, distance=True)
    groups = public.by_label(np.asarray(candidate_labels))
    return nearest_rows_of_labels(vectors, np.asarray(vector_labels), public, groups, norms=norms)


@dataclass(frozen=True)
class VotingRecords:
    """Records as repeated votes read them.

    Attributes:
        vectors: (N, d) float32.
        labels: (N,) whole numbers.
        norms: (N,) ‖x‖, float32; None where each round finds them again.
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


VOTES_PER_RECORD = 1
"""As in the paper; more would add to the sensitivity what they add to the signal."""


def voting_rounds(terms: CohortTerms, iterations: int, noise_std: float) -> GaussianVoting:
    """T rounds of votes of a cohort, all of them charged."""
    return GaussianVoting(
        noise_std=noise_std,
        iterations=iterations,
        votes_per_record=VOTES_PER_RECORD,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )


@dataclass(frozen=True, kw_only=True)
class VoteCounts:
    """Counts one round's votes of some records, for `PrivateInputs.counted`.

    Attributes:
        labels: Declared labels, in order.
        candidates: (C, d) embeddings of the candidates, which are public or released.
        candidate_labels: (C,) places of their labels.
    """

    labels: tuple[str, ...]
    candidates: np.ndarray
    candidate_labels: np.ndarray

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (C,) int64 votes; private."""
        records = private.once(
            "voting records",
            lambda: VotingRecords.in_label_order(
                private.vectors, counted_labels(private.records, self.labels)
            ),
        )
        choices = nearest_candidates(
            records.vectors,
            records.labels,
            self.candidates,
            self.candidate_labels,
            norms=records.norms,
        )
        return count_votes(choices[:, None], len(self.candidates), VOTES_PER_RECORD)


class PrivateVotes:
    """Releases one round of votes after another under one charge.

    **Privacy** Each record votes once in a round, for a candidate of its own label: records under
    an undeclared label, null records and labels without candidates give no vote. Neither noise nor
    number of rounds can change after the charge, and rounds that a killed run stored count as
    released.
    """

    def __init__(
        self, rounds: GaussianVoting, labels: tuple[str, ...], private: PrivateInputs
    ) -> None:
        self._rounds, self._labels, self._private = rounds, labels, private
        self._voting: GaussianVoting | None = None

    def __call__(self, rounds: int, population: pl.DataFrame, embeddings: np.ndarray) -> np.ndarray:
        """Counts and releases the votes of one round.

        Args:
            rounds: Rounds released before, by this run or by a killed one.
            population: C candidates.
            embeddings: float32 (C, d).

        Returns:
            (C,) int64 noisy votes.

        Raises:
            UnaccountedReleaseError: All planned rounds were released, or this one was.
        """
        if self._voting is None:
            self._voting = self._rounds.opened(rounds)
        if self._voting.iterations - self._voting.remaining != rounds:
            raise UnaccountedReleaseError(
                "Expected the round after the last released one, got another. Continue from "
                "the last checkpoint."
            )
        labels = population["label"].to_numpy()
        count = VoteCounts(labels=self._labels, candidates=embeddings, candidate_labels=labels)
        return self._voting.release(self._private.counted(count)).value
