"""Audit of released votes against the trade-off curve of their event, with planted bugs.

Every candidate that one unit gives all its votes to is a trial, so that one run holds thousands.
False alarm: at most 1e-6 for each audit if the claim holds.
"""

import numpy as np
import pytest

from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.voting import GaussianVoting

TRIALS, ROUNDS, VOTES, NOISE = 6_000, 4, 4, 8.0
ADD_REMOVE, _, REPLACE_ONE = NeighboringRelation


def voting(noise_std=NOISE, *, records=1, relation=ADD_REMOVE):
    return GaussianVoting(
        noise_std=noise_std,
        iterations=ROUNDS,
        votes_per_record=VOTES,
        relation=relation,
        max_records_per_unit=records,
    )


def refutes(mechanism, event, records=1):
    """Sums all rounds' votes for candidates with a unit's votes, and for candidates without."""
    choices = np.repeat(np.arange(TRIALS), records)[:, None].repeat(VOTES, axis=1)
    votes = mechanism.count(choices, 2 * TRIALS)
    total = np.sum([mechanism.release(votes).value for _ in range(ROUNDS)], axis=0)
    return audit_scores(total[:TRIALS], total[TRIALS:], event_curve([event])).refuted


def moved_votes(side):
    """(TRIALS,) differences where a unit votes for candidate 2i + side, one of a pair."""
    mechanism = voting(relation=REPLACE_ONE)
    choices = (2 * np.arange(TRIALS) + side)[:, None].repeat(VOTES, axis=1)
    votes = mechanism.count(choices, 2 * TRIALS)
    total = np.sum([mechanism.release(votes).value for _ in range(ROUNDS)], axis=0)
    return total[::2] - total[1::2]


@pytest.mark.statistical
def test_all_votes_of_a_unit_reveal_no_more_than_their_event():
    mechanism = voting(records=3)
    assert not refutes(mechanism, mechanism.event, records=3)


@pytest.mark.statistical
def test_moved_votes_reveal_no_more_than_the_replace_one_event():
    scores = moved_votes(0), moved_votes(1)
    replaced = event_curve([voting(relation=REPLACE_ONE).event])
    assert not audit_scores(*scores, replaced).refuted
    # Planted bug: a replaced record charged as one that comes or goes.
    assert audit_scores(*scores, event_curve([voting().event])).refuted


@pytest.mark.statistical
def test_group_privacy_forgotten_is_caught():
    assert refutes(voting(records=3), voting(records=1).event, records=3)


@pytest.mark.statistical
def test_rounds_charged_as_one_are_caught():
    mechanism = voting()
    assert refutes(mechanism, mechanism.histogram.event())
