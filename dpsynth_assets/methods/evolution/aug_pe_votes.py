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
from dpsynth_assets.privacy.voting import GaussianVoting

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
        if private.embeddings is None or len(private.embeddings) != private.records.height:
            raise ValueError("Expected one embedding for each private record. Embed them again.")
        self._rounds = rounds
        numbers = counted_labels(private.records, labels)
        self._records = VotingRecords.in_label_order(private.embeddings, numbers)
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
        records = self._records
        choices = nearest_candidates(
            records.vectors, records.labels, embeddings, population.labels, norms=records.norms
        )
        private_votes = self._voting.count(choices[:, None], population.size)
        return self._voting.release(private_votes).value
