"""Mechanism of Aug-PE: T rounds of noisy votes, and what each record votes for."""

from dataclasses import dataclass

import numpy as np

from dpsynth_assets.methods.counted_labels import counted_labels
from dpsynth_assets.methods.evolution.population import Population
from dpsynth_assets.methods.evolution.votes import VotingRecords, nearest_candidates
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.voting import GaussianVoting, count_votes

VOTES_PER_RECORD = 1
"""As in the paper; more would add to the sensitivity what they add to the signal."""


@dataclass(frozen=True, kw_only=True)
class VotingRounds:
    """T rounds of votes, all of them charged.

    Attributes:
        noise_std: σ >= 1, in votes.
        iterations: T.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one privacy unit may contribute.
    """

    noise_std: float
    iterations: int
    relation: NeighboringRelation
    max_records_per_unit: int

    def event(self) -> ComposedEvent:
        """Prices all T rounds."""
        return self.open().event

    def open(self, released_before: int = 0) -> GaussianVoting:
        """Opens the rounds after those that a killed run released and stored."""
        return GaussianVoting(
            noise_std=self.noise_std,
            iterations=self.iterations,
            votes_per_record=VOTES_PER_RECORD,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
            released_before=released_before,
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
        return self.of(_voting_records(private, self.labels))

    def of(self, records: VotingRecords) -> np.ndarray:
        """Counts (C,) int64 votes of records that were prepared for several rounds; private."""
        choices = nearest_candidates(
            records.vectors,
            records.labels,
            self.candidates,
            self.candidate_labels,
            norms=records.norms,
        )
        return count_votes(choices[:, None], len(self.candidates), VOTES_PER_RECORD)


def _voting_records(private: PrivateInputs, labels: tuple[str, ...]) -> VotingRecords:
    """Prepares records for votes.

    Raises:
        ValueError: There is not one embedding for each.
    """
    if private.embeddings is None or len(private.embeddings) != private.records.height:
        raise ValueError("Expected one embedding for each private record. Embed them again.")
    numbers = counted_labels(private.records, labels)
    return VotingRecords.in_label_order(private.embeddings, numbers)


class PrivateVotes:
    """Releases one round of votes after another under one charge.

    **Privacy** Each record votes once in a round, for a candidate of its own label: records under
    an undeclared label, null records and labels without candidates give no vote. Neither noise nor
    number of rounds can change after the charge, and rounds that a killed run stored count as
    released.
    """

    def __init__(
        self, rounds: VotingRounds, labels: tuple[str, ...], private: PrivateInputs
    ) -> None:
        self._rounds, self._labels, self._private = rounds, labels, private
        # Records in memory are sorted once for all rounds; parts are read anew in each.
        self._records = None if private.parts is not None else _voting_records(private, labels)
        self._voting: GaussianVoting | None = None

    def __call__(self, rounds: int, population: Population, embeddings: np.ndarray) -> np.ndarray:
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
            self._voting = self._rounds.open(rounds)
        if self._voting.iterations - self._voting.remaining != rounds:
            raise UnaccountedReleaseError(
                "Expected the round after the last released one, got another. Go on from the last "
                "checkpoint."
            )
        count = VoteCounts(
            labels=self._labels, candidates=embeddings, candidate_labels=population.labels
        )
        if self._records is None:
            private_votes = self._private.counted(count)
        else:
            private_votes = count.of(self._records)
        return self._voting.release(private_votes).value
