"""Nearest-neighbour votes of Private Evolution: a noisy histogram over candidates, every round."""

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_at_least
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.nearest import NO_ROW
from dpsynth_assets.privacy.release import Release
from dpsynth_assets.privacy.units import NeighboringRelation

NO_VOTE = NO_ROW
"""Choice of a record that abstains with one of its votes."""


@dataclass(frozen=True, kw_only=True)
class GaussianVoting:
    """Releases `iterations` vote histograms with discrete Gaussian noise, and refuses one more.

    Attributes:
        noise_std: σ >= 1, in votes.
        iterations: T, rounds that will be released; all are charged.
        votes_per_record: v >= 1, votes that one record has in a round.
        relation: Declared neighbouring relation.
        max_records_per_unit: m, records one privacy unit may contribute.
        released_before: Rounds of the T that a killed run released under the same charge and
            stored; they are not released again.

    **Privacy** DP, whatever the secrets are. The m records of a unit give at most v·m votes,
    possibly all to one candidate: the histogram moves by at most v·m in L2 when they come or go,
    and by √2·v·m when they move to another candidate. One round is one histogram of v·m votes, or
    two counts that move (`NoisyHistogram`); T rounds are T of them, whatever is generated between
    them: about √T·v·m/σ-GDP, and a little more, as the noise is on whole votes
    (`integer_gaussian.dominating_mu`). Candidates must be public or come from earlier releases.
    Thresholding is post-processing.

    **Source** Xie et al. 2024 (Aug-PE), the noisy histogram of Algorithm 1, after Lin et al. 2024,
    Algorithm 2. The published code scales noise by √v, the L2 norm of v votes for different
    candidates; its packed candidates share a bin, so that one record can move a bin by v.
    """

    noise_std: float
    iterations: int
    votes_per_record: int
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    released_before: int = 0
    _released: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses settings without an event."""
        check_at_least(1, iterations=self.iterations, votes_per_record=self.votes_per_record)
        check_at_least(1, noise_std=self.noise_std)
        if not 0 <= self.released_before <= self.iterations:
            raise ValueError(
                f"Expected released_before in [0, {self.iterations}], got {self.released_before}."
            )
        _ = self.event

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, each of which could release T rounds more."""
        raise TypeError("Expected one GaussianVoting for T rounds, got a request to copy it.")

    @property
    def histogram(self) -> NoisyHistogram:
        """One round's noisy histogram: v·m votes of a unit may all be for one candidate."""
        return NoisyHistogram(
            noise="gaussian",
            scale=self.noise_std,
            relation=self.relation,
            max_records_per_unit=self.votes_per_record * self.max_records_per_unit,
        )

    @property
    def event(self) -> ComposedEvent:
        """Prices all T rounds, those that a killed run released included."""
        return ComposedEvent(events=(self.histogram.event(),) * self.iterations)

    @property
    def remaining(self) -> int:
        """Rounds that may still be released."""
        return self.iterations - self.released_before - self._released

    def release(self, private_votes: np.ndarray) -> Release[np.ndarray]:
        """Adds noise to one round's votes.

        Args:
            private_votes: (C,) whole votes of every candidate, as `count_votes` returns them; a
                record must have given at most v of them.

        Returns:
            (C,) int64 noisy votes, negative ones included, with the cost of one round.

        Raises:
            UnaccountedReleaseError: Before a vote is read, if all T rounds were released.
            ValueError: If the votes are not a list of whole numbers.
        """
        if self.remaining < 1:
            raise UnaccountedReleaseError(
                f"Expected at most {self.iterations} rounds of votes, got one more. "
                "Plan more iterations, or stop."
            )
        object.__setattr__(self, "_released", self._released + 1)
        return self.histogram.release(np.asarray(private_votes).tolist())


def count_votes(private_choices: np.ndarray, candidates: int, votes_per_record: int) -> np.ndarray:
    """Counts (C,) int64 votes of some records; private until `GaussianVoting.release` adds noise.

    Args:
        private_choices: (N, v) int, the candidates each record votes for, in [0, C);
            `NO_VOTE` abstains, and a candidate that comes twice gets two votes.
        candidates: C >= 1, public.
        votes_per_record: v.

    Raises:
        ValueError: If the shape or a candidate does not fit; no choice is shown.
    """
    choices = np.asarray(private_choices)
    if choices.ndim != 2 or choices.shape[1] != votes_per_record:
        raise ValueError(f"Expected choices of shape (N, {votes_per_record}), got {choices.shape}.")
    if not np.issubdtype(choices.dtype, np.integer):
        raise ValueError(f"Expected whole candidate numbers, got {choices.dtype}.")
    votes = choices[choices != NO_VOTE]
    if votes.size and not (votes.min() >= 0 and votes.max() < candidates):
        raise ValueError(f"Expected choices in [0, {candidates}) or {NO_VOTE}, got another.")
    return np.bincount(votes, minlength=candidates).astype(np.int64)


def voting_noise_std(
    *,
    target_epsilon: float,
    delta: float,
    accountant: str,
    iterations: int,
    votes_per_record: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
) -> float:
    """Finds the smallest noise at which all T rounds together cost at most `target_epsilon`.

    Args:
        target_epsilon: ε > 0 of all rounds.
        delta: Public δ in (0, 1).
        accountant: `tight` (the noise's own privacy loss) or `zcdp`.
        iterations: T >= 1.
        votes_per_record: v >= 1.
        relation: Declared neighbouring relation.
        max_records_per_unit: m >= 1.

    Returns:
        σ in votes, rounded up; 1 where less would do, the least that integer noise allows.
    """

    def voting(noise_std: float) -> GaussianVoting:
        return GaussianVoting(
            noise_std=noise_std,
            iterations=iterations,
            votes_per_record=votes_per_record,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )

    return integer_noise_std(
        lambda noise_std: [voting(noise_std).event],
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
    )


def threshold_votes(dp_votes: np.ndarray, threshold: float) -> np.ndarray:
    """Computes max(votes − H, 0), the weights of the next generation; free post-processing.

    Args:
        dp_votes: (C,) released votes.
        threshold: H >= 0, votes.

    **Source** Lin et al. 2024, Algorithm 2, last step.
    """
    check_at_least(0, threshold=threshold)
    return np.maximum(np.asarray(dp_votes, dtype=np.float64) - threshold, 0.0)
