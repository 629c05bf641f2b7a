"""Audits of the public-token test against ε = 2/(sσ): exact transcripts.

Exact: the likelihood of "near" k times and then "far" is a sum over the integer noise of the
threshold, computed with the very scales that the running code asks its sampler for.
Samples of one transcript are the audit `public-token-test`.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.attacks.audits.token_choices import EqualBatches
from dpsynth_assets.privacy import sparse_vector
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.privacy.batched import batched
from dpsynth_assets_tests.privacy.oracles import distance_oracle

ROUNDING = 1 + 1e-7
"""Thousands of float64 logarithms are summed."""
PUBLIC = torch.tensor([[40.0, -40.0, -40.0]])
VOCABULARY = 16
ADVERSARIAL = np.where(np.arange(12) == 5, 60.0, -60.0)
SETTINGS = {"expected_batch_size": 1, "noise_scale": 2.0, "threshold": 1.0}


def public_test(kind=PublicTokenTest, **changes):
    return batched(kind, **(SETTINGS | changes))


# Exact transcripts


class Law:
    """The integer law that one instance really runs: its start, scales and sensitivity."""

    def __init__(self, tested, monkeypatch):
        calls = []

        def recorded(values, scale):
            calls.append((values, scale))
            return values

        with monkeypatch.context() as patch:
            patch.setattr(sparse_vector, "discrete_laplace", recorded)
            opened = tested.open(PrivateTokenMeter(1, 1))
            rows = torch.zeros(1, dtype=torch.int64)
            opened.needs_private_token(NextLogits(PUBLIC, rows, np.array([0]), PUBLIC))
        (threshold, self.threshold_scale), (_, self.query_scale) = calls
        self.threshold = threshold[0]
        self.sensitivity = tested.sensitivity_steps

    def log_likelihood(self, near, last, repeats=1):
        """Log-likelihood of "near" to all of `near`, `repeats` times over, then "far" to `last`."""
        reach = math.ceil(40 * self.threshold_scale) if self.threshold_scale else 0
        noise = np.arange(-reach, reach + 1)
        log_density = -np.abs(noise) / (self.threshold_scale or 1.0)
        log_density -= np.logaddexp.reduce(log_density)
        total = log_density + log_at_least(last, self.threshold + noise, self.query_scale)
        for distance in near:
            total += repeats * log_below(distance, self.threshold + noise, self.query_scale)
        return float(np.logaddexp.reduce(total))


def log_at_least(distance, bounds, scale):
    """Log-probability of distance + k >= bound, where P(k) ∝ exp(−|k|/scale)."""
    gap = np.asarray(bounds - distance, dtype=np.float64)
    tail = -np.where(gap > 0, gap, 1 - gap) / scale - math.log1p(math.exp(-1 / scale))
    with np.errstate(divide="ignore"):
        return np.where(gap > 0, tail, np.log1p(-np.exp(np.minimum(tail, -1e-300))))


def log_below(distance, bounds, scale):
    """Log-probability of distance + k < bound, by symmetry of k."""
    return log_at_least(-distance, 1 - bounds, scale)


OFFSETS = ((8, 0), (1, 0), (0, 0), (-1, -1), (-4, -4))
"""Where the "near" distances and the last one lie against the threshold, in query scales."""


def worst_ratio(law, repeats, offsets=OFFSETS):
    """Largest |log-likelihood ratio| found when a record moves "near" and "far" distances apart."""
    ratios = []
    for offset in offsets:
        near, last = (law.threshold + round(part * law.query_scale) for part in offset)
        still = law.log_likelihood([near], last, repeats)
        moved = law.log_likelihood([near - law.sensitivity], last + law.sensitivity, repeats)
        ratios.append(abs(moved - still))
    return max(ratios)


@pytest.fixture
def coarse(monkeypatch):
    """A lattice of 16 steps a record: sums of thousands of terms instead of millions."""
    monkeypatch.setattr(sparse_vector, "STEPS_PER_RECORD", 16)


@pytest.mark.parametrize(("repeats", "share"), [(3, 0.95), (10, 0.99999), (1000, 0.99999)])
def test_worst_transcript_approaches_epsilon_and_never_passes_it(
    coarse, monkeypatch, repeats, share
):
    tested = public_test()
    observed = worst_ratio(Law(tested, monkeypatch), repeats)
    assert share * tested.epsilon < observed <= tested.epsilon * ROUNDING


def test_worst_transcript_on_the_lattice_that_is_used(monkeypatch):
    tested = public_test(noise_scale=0.5)
    observed = worst_ratio(Law(tested, monkeypatch), 10, [(8, 0)])
    assert 0.999 * tested.epsilon < observed <= tested.epsilon * ROUNDING


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-80, 80), st.integers(-18, 18)), max_size=6),
    st.integers(-80, 80),
    st.integers(-18, 18),
)
def test_no_transcript_passes_epsilon(queries, last, last_move):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_vector, "STEPS_PER_RECORD", 16)
        tested = public_test()
        law = Law(tested, patch)
        assert law.sensitivity == 18  # a record, a step, and a part of one for float32 sums
    before = law.log_likelihood([distance for distance, _ in queries], last)
    after = law.log_likelihood([sum(query) for query in queries], last + last_move)
    assert abs(before - after) <= tested.epsilon * ROUNDING


def test_moves_add_up_over_the_records_of_a_unit(coarse, monkeypatch):
    single, several = public_test(), public_test(max_records_per_unit=3)
    law = Law(several, monkeypatch)
    law.sensitivity *= 3
    observed = worst_ratio(law, 1000)
    assert 2.9 * single.epsilon < observed <= several.epsilon * ROUNDING


# The distance


def record(generator):
    """Ordinary or adversarial logits."""
    row = np.full(VOCABULARY, -60.0)
    row[generator.random(VOCABULARY) < generator.random()] = 60.0
    return row if generator.random() < 0.5 else generator.normal(0, 5, VOCABULARY)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40))
def test_a_record_moves_the_distance_by_no_more_than_is_charged(seed, rows, size):
    """That of the softmax of the mean of clipped logits, as published, moves by more."""
    generator = np.random.default_rng(seed)
    before = np.array([record(generator) for _ in range(rows)]).reshape(-1, VOCABULARY)
    public = generator.normal(0, 3, VOCABULARY)
    more, replaced = (np.vstack([before, record(generator)]) for _ in range(2))
    distances = [distance_oracle(each, public, size) for each in (before, more, replaced)]
    assert abs(distances[1] - distances[0]) <= 1 / size + 1e-12
    assert abs(distances[2] - distances[1]) <= 2 / size + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_numerical_batch_variance_stays_within_the_slack(seed, size):
    generator, s, slack = np.random.default_rng(seed), 10, 0.05
    public = generator.normal(0, 3, 12)
    rows = generator.normal(0, 3, (size, 12))
    moved = rows + slack * generator.choice([-1.0, 1.0], rows.shape)
    with_record = distance_oracle(np.vstack([moved, ADVERSARIAL]), public, s)
    change = abs(with_record - distance_oracle(rows, public, s))
    tested = public_test(expected_batch_size=s, logit_slack=slack)
    assert change <= tested.epsilon * tested.noise_scale / 2 + 1e-12


def test_equal_batches_have_the_distance_that_each_would_have():
    rows = torch.arange(4).repeat_interleave(3)
    private, public = torch.randn(3, 3).repeat(4, 1), torch.randn(1, 3).repeat(4, 1)
    asked = (private, public, rows, np.arange(4))
    once = public_test(EqualBatches).private_distances(*asked)
    assert torch.equal(once, public_test().private_distances(*asked))
