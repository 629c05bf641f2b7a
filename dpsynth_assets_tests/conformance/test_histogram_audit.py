"""Statistical audit of released histograms for every noise, relation and number of records.

Each test is the one of `attacks.audits.statistics`: false alarm at most 1e-6 if the claim holds.
"""

import numpy as np
import pytest
from scipy import stats

from dpsynth_assets.attacks.audits.statistics import (
    audit_scores,
    event_curve,
    lower_rate,
    pure_curve,
    upper_rate,
)
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.histogram import NoisyHistogram, scale_for
from dpsynth_assets.privacy.units import NeighboringRelation

pytestmark = pytest.mark.statistical

TRIALS = 8_000
NOISES = ("laplace", "gaussian")
RELATIONS = [str(relation) for relation in NeighboringRelation]


def settings(noise, relation, records=1, scale=1.0):
    return {
        "noise": noise,
        "scale": scale,
        "relation": NeighboringRelation(relation),
        "max_records_per_unit": records,
    }


def scores(counts, **setting):
    """Noisy first bins, less the second bin where there is one; (TRIALS,)."""
    released = NoisyHistogram(**setting).release(counts * TRIALS).value.reshape(TRIALS, -1)
    return released @ np.array([1, -1])[: len(counts)]


def neighbours(relation, records):
    if relation == "replace-one":
        return [records, 0], [0, records]
    return [records], [0]


def audit(noise, relation, records, claimed, scale=1.0):
    setting = settings(noise, relation, records, scale)
    first, second = neighbours(relation, records)
    return audit_scores(scores(first, **setting), scores(second, **setting), claimed)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("relation", "records"), [("zero-out", 1), ("add-remove", 3)])
def test_counts_are_as_hard_to_see_through_as_their_event_says(noise, relation, records):
    scale = 3.0 * records
    claimed = event_curve([NoisyHistogram(**settings(noise, relation, records, scale)).event()])
    assert not audit(noise, relation, records, claimed, scale).refuted


@pytest.mark.parametrize("noise", NOISES)
def test_units_of_two_records_charged_as_one_are_caught(noise):
    # Planted bug: a unit's second record is forgotten in the event.
    claimed = event_curve([NoisyHistogram(**settings(noise, "add-remove")).event()])
    assert audit(noise, "add-remove", 2, claimed).refuted


def test_a_scale_for_an_epsilon_keeps_it_and_wastes_little():
    scale = scale_for(1.0, 1e-6, "laplace", NeighboringRelation.ADD_REMOVE)
    assert not audit("laplace", "add-remove", 1, pure_curve(1.0), scale).refuted
    assert audit("laplace", "add-remove", 1, pure_curve(0.6), scale).refuted


def test_gaussian_counts_are_gaussian_to_an_attacker():
    # The discrete law on whole counts gives nothing away that the continuous one does not.
    assert not audit(
        "gaussian", "add-remove", 1, event_curve([GaussianEvent(noise_multiplier=1.0)])
    ).refuted
    assert audit(
        "gaussian", "add-remove", 1, event_curve([GaussianEvent(noise_multiplier=1 / 0.6)])
    ).refuted


@pytest.mark.parametrize("noise", NOISES)
def test_noise_has_the_stated_law(noise):
    scale = 4.0
    setting = settings(noise, "add-remove", scale=scale)
    drawn = NoisyHistogram(**setting).release([0] * TRIALS).value
    support = np.arange(-200, 201)
    powers = np.abs(support) / scale if noise == "laplace" else support**2 / (2 * scale**2)
    law = np.exp(-powers) / np.exp(-powers).sum()
    levels = np.arange(-12, 13)
    # One interval for each level and side: 50 bounds share the false alarm.
    hits = np.array([(drawn >= level).sum() for level in levels])
    tails = np.array([law[support >= level].sum() for level in levels])
    assert (lower_rate(hits, TRIALS, 1e-6 / 50) <= tails).all()
    assert (upper_rate(hits, TRIALS, 1e-6 / 50) >= tails).all()


def test_bins_get_independent_noise():
    setting = settings("gaussian", "add-remove", scale=5.0)
    drawn = NoisyHistogram(**setting).release([0] * (2 * TRIALS)).value.reshape(TRIALS, 2)
    same_sign = int(((drawn[:, 0] > 0) == (drawn[:, 1] > 0)).sum())
    share = (drawn > 0).mean()
    expected = share**2 + (1 - share) ** 2
    assert abs(stats.norm.isf(5e-7)) * np.sqrt(0.25 / TRIALS) > abs(same_sign / TRIALS - expected)
