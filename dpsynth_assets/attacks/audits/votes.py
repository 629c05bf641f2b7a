"""Audit of private votes: every candidate that one record gives all its votes to is a trial."""

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.events import Event, GaussianEvent
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.voting import GaussianVoting

TRIALS = 6_000
ROUNDS, VOTES, NOISE_STD = 2, 6, 9.0
RELATION = NeighboringRelation.ADD_REMOVE


def _voting(noise_std: float) -> GaussianVoting:
    return GaussianVoting(
        noise_std=noise_std, iterations=ROUNDS, votes_per_record=VOTES, relation=RELATION
    )


def _totals(voting: GaussianVoting, choices: np.ndarray) -> np.ndarray:
    """(2, TRIALS) released votes, summed over the rounds."""
    votes = voting.count(choices, 2 * TRIALS)
    rounds = [voting.release(votes).value for _ in range(ROUNDS)]
    return np.sum(rounds, axis=0).reshape(2, TRIALS)


def _measure(noise_std: float = NOISE_STD, *, claimed: Event | None = None) -> Finding:
    """Tests candidates with a record's votes against candidates without."""
    every_vote = np.repeat(np.arange(TRIALS)[:, None], VOTES, axis=1)
    with_votes, without = _totals(_voting(noise_std), every_vote)
    curve = event_curve([_voting(NOISE_STD).event if claimed is None else claimed])
    return Finding.of(audit_scores(with_votes, without, curve))


def _spread_votes() -> Finding:
    """Planted: √v for v votes of one record, true only where they go to different candidates."""
    each = GaussianEvent(noise_multiplier=NOISE_STD / np.sqrt(VOTES * ROUNDS))
    return _measure(claimed=each)


AUDITS = (
    Audit(
        name="voting",
        mechanism="nearest-neighbour votes with discrete Gaussian noise",
        events=("discrete_gaussian",),
        claim="All rounds together tell neighbours apart no better than their events.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=_measure,
        planted={
            Bug.HALVED_NOISE: lambda: _measure(NOISE_STD / 2),
            Bug.SPREAD_VOTES: _spread_votes,
        },
    ),
)
