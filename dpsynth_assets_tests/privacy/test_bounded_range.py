import math
from itertools import islice

import numpy as np
import pytest

from dpsynth_assets.privacy.batch_terms import ROWS_PER_EXPECTED_ROW, BatchTerms
from dpsynth_assets.privacy.bounded_range import (
    adaptive_profiles,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation

ADD_REMOVE = NeighboringRelation.ADD_REMOVE
PAPER = {"clip_bound": 9.0, "expected_batch_size": 64, "temperature": 1.5}


def eta_of(*, clip_bound, temperature, **terms):
    return BatchTerms(**terms).eta(clip_bound, temperature)


def profile_after(draws, eta, *, upper, steps):
    profiles = adaptive_profiles(eta, draws * eta + eta, upper=upper, steps_per_eta=steps)
    return next(islice(profiles, draws, None))


@pytest.mark.parametrize(
    ("relation", "records", "factor"), [("zero-out", 1, 1), ("replace-one", 3, 6)]
)
def test_eta_counts_every_logit_vector_that_may_change(relation, records, factor):
    eta = eta_of(
        **PAPER,
        relation=NeighboringRelation(relation),
        max_records_per_unit=records,
    )
    assert eta == pytest.approx(0.1875 * factor)


def test_slack_is_charged_for_every_row_of_every_batch_of_a_pass_and_for_the_largest_load():
    exact = eta_of(**PAPER, relation=ADD_REMOVE)
    alone = 2 * 0.01 * ROWS_PER_EXPECTED_ROW / 1.5
    for batches, load in ((1, 1.0), (8, 1.0), (1, 5.0), (8, 2.5)):
        slack = eta_of(
            **PAPER, relation=ADD_REMOVE, logit_slack=0.01, batches_per_pass=batches, load=load
        )
        assert slack - exact == pytest.approx(batches * load * alone)
    assert eta_of(**PAPER, relation=ADD_REMOVE, batches_per_pass=9, load=9) == exact


@pytest.mark.parametrize("eta", [0.05, 0.1875, 1.0, 3.0])
def test_one_draw_has_the_closed_form_profile(eta):
    upper = profile_after(1, eta, upper=True, steps=24)
    lower = profile_after(1, eta, upper=False, steps=24)
    epsilons = np.arange(24) * eta / 24
    exact = np.expm1((epsilons - eta) / 2) ** 2 / -math.expm1(-eta)
    assert (upper.deltas[:24] >= exact - 1e-15).all()
    assert (lower.deltas[:24] <= exact + 1e-15).all()
    assert (upper.deltas[:24] <= exact + 1e-2 * exact.max() + 1e-15).all()


@pytest.mark.parametrize("eta", [0.1875, 1.0])
def test_coarse_upper_bound_covers_a_finer_adversary(eta):
    # A finer grid is a stronger adversary: dropping the corrections makes this fail.
    coarse = profile_after(12, eta, upper=True, steps=4)
    fine = profile_after(12, eta, upper=False, steps=48)
    shared = fine.deltas[::12][: len(coarse.deltas)]
    assert (coarse.deltas[: len(shared)] >= shared).all()
    uncorrected = profile_after(12, eta, upper=False, steps=4)
    assert (uncorrected.deltas[: len(shared)] < shared - 1e-9).any()


def test_two_draws_are_at_least_the_best_fixed_pair():
    # Exhaustive non-adaptive adversary: both draws use the same two-point pair {t, t − η}.
    eta, epsilon = 1.0, 0.5
    upper = profile_after(2, eta, upper=True, steps=24).delta(np.array([epsilon]))[0]
    best = 0.0
    for loss in np.linspace(0.0, eta, 201):
        first = math.expm1(loss - eta) / math.expm1(-eta)
        pairs = [(loss, first), (loss - eta, 1 - first)]
        total = sum(
            p * q * max(0.0, -math.expm1(epsilon - a - b)) for a, p in pairs for b, q in pairs
        )
        best = max(best, total)
    assert best <= upper <= best * 1.05


def test_huge_blocks_are_declared_unaffordable():
    assert recursion_is_affordable(0.1875, 2000, 1e-6)
    assert not recursion_is_affordable(2 * 10 / (1023 * 1.5), 70_000, 1e-6)
