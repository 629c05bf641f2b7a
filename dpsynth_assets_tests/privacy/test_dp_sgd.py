"""Laws of DP-SGD. Each statistical test raises a false alarm at most 1e-8 of the time."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.attacks.audits.gradients import linear_layers, private_gradient
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.per_example import LossOfPart, Products
from dpsynth_assets.privacy.poisson_sampling import poisson_sample
from dpsynth_assets_tests.privacy import dp_sgd_cases

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
FALSE_ALARM = 1e-9
MARGIN = Products.NATIVE.clip_margin
SAMPLING = {"sampling_probability": 0.25, "noise_multiplier": 1.5, "steps": 4}
WIDTHS = [6, 1, 5]


mechanism = partial(dp_sgd_cases.mechanism, l2_bound=2.0, expected_batch_size=5.0, **SAMPLING)


def gradients(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, width, generator=generator) for width in WIDTHS]


def stack(tensors):
    """(B, P) float64 of per-record gradients, or (P,) of one gradient."""
    return torch.cat([each.double() for each in tensors], dim=-1).numpy()


def clipped_sum(per_record, bound):
    """The sum in plain NumPy, without margin."""
    norms = np.linalg.norm(per_record, axis=1, keepdims=True)
    return (per_record * np.minimum(1.0, bound / norms)).sum(axis=0)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("units", [1, 3])
def test_event_of_poisson_batches_states_relation_and_unit(relation, units):
    event = dp_sgd_event(relation=relation, max_records_per_unit=units, **SAMPLING)
    assert event == PoissonGaussianEvent(
        max_records_per_unit=units, replaced=relation is REPLACE_ONE, **SAMPLING
    )


def test_batches_hold_each_record_at_most_once_and_come_exactly_as_planned():
    tested = mechanism(steps=40)
    drawn = list(tested.batches(10))
    assert len(drawn) == 40
    for batch in drawn:
        assert batch.dtype == np.int64
        assert (np.diff(batch) > 0).all()
        assert set(batch) <= set(range(10))
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        tested.batches(10)


def test_two_loaders_of_one_run_share_its_steps():
    tested = mechanism(steps=3)
    first, second = tested.batches(10), tested.batches(10)
    next(first), next(second), next(first)
    assert list(second) == []


@pytest.mark.statistical
def test_batch_sizes_are_binomial_and_records_independent():
    draws, records, chance = 3_000, 8, 0.3
    inside = np.zeros((draws, records))
    for row in inside:
        row[poisson_sample(records, chance)] = 1
    expected = stats.binom.pmf(np.arange(records + 1), records, chance) * draws
    observed = np.bincount(inside.sum(axis=1).astype(int), minlength=records + 1)
    few = expected < 10
    merged = [np.append(each[~few], each[few].sum()) for each in (observed, expected)]
    assert stats.chisquare(*merged).pvalue > FALSE_ALARM
    correlations = np.corrcoef(inside.T)[np.triu_indices(records, 1)]
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / math.sqrt(draws)
    assert np.abs(correlations).max() < limit
    for share in inside.mean(axis=0) * draws:
        assert stats.binomtest(int(share), draws, chance).pvalue > FALSE_ALARM


def test_gradient_is_the_clipped_sum_over_a_fixed_number(noiseless):
    tested = mechanism(sampling_probability=1.0)
    for batch in tested.batches(7):
        per_record = gradients(len(batch))
        released = private_gradient(tested, per_record)
        expected = clipped_sum(stack(per_record), 2.0 * (1 - MARGIN)) / 5.0
        np.testing.assert_allclose(stack(released), expected, rtol=2e-6, atol=2e-6)
    assert set(noiseless) == {1.5 * 2.0}


def test_more_gradients_than_batches_are_refused():
    tested = mechanism(sampling_probability=1.0)
    with pytest.raises(UnaccountedReleaseError, match="Draw a batch"):
        private_gradient(tested, gradients(3))
    next(tested.batches(3))
    private_gradient(tested, gradients(3))
    with pytest.raises(UnaccountedReleaseError, match="Draw a batch"):
        private_gradient(tested, gradients(3))


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_a_loop_that_skips_drops_or_repeats_records_is_refused(rows):
    tested = mechanism(sampling_probability=1.0)
    next(tested.batches(3))
    with pytest.raises(UnaccountedReleaseError, match="empty ones too"):
        private_gradient(tested, gradients(rows))


ADVERSARIAL = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.lists(ADVERSARIAL, min_size=12, max_size=12))
def test_clipped_sum_moves_by_at_most_the_bound_when_a_record_goes(seed, rest, record):
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.integers(-20, 20, (rest, 1))
    others = torch.from_numpy(generator.normal(0, scales, (rest, 12)).astype(np.float32))
    mine = torch.tensor([record], dtype=torch.float32)
    moved = private_sum(torch.cat([others, mine])) - private_sum(others)
    assert np.linalg.norm(moved) <= 1.0


def private_sum(rows, bound=1.0):
    split = [rows[:, :5], rows[:, 5:]]
    part = LossOfPart(len(rows), lambda model: model(*split))
    layers = linear_layers((5, rows.shape[1] - 5), Products.FLOAT64)
    sums, count = layers.private_clipped_sums([part] if len(rows) else [], bound)
    assert count == len(rows)
    return stack([each[0] for each in sums])


def test_a_float32_sum_would_move_by_more_than_the_bound():
    # Why sums are float64: next to 4096 a float32 rounds 0.31623 up to 0.31641 in every entry.
    others = torch.full((1 << 14, 10), 0.25)
    rows = torch.cat([others, torch.full((1, 10), math.sqrt(0.1))])
    in_float32 = rows.sum(dim=0) - others.sum(dim=0)
    assert in_float32.double().norm() > 1.0005
    assert np.linalg.norm(private_sum(rows) - private_sum(others)) <= 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"l2_bound": 0.0},
        {"l2_bound": math.nan},
        {"expected_batch_size": 0.0},
        {"noise_multiplier": 0.0},
        {"sampling_probability": 1.1},
        {"relation": "swap"},
    ],
)
def test_settings_outside_their_domain_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Expected|swap"):
        mechanism(**wrong)


def test_a_resumed_run_draws_only_the_steps_that_are_left():
    resumed = mechanism(steps=5, sampling_probability=1.0)
    resumed.resume_at(3)
    assert resumed.released_steps == 3
    for batch in resumed.batches(2):
        private_gradient(resumed, gradients(len(batch)))
    assert resumed.released_steps == 5
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        resumed.batches(2)


def test_a_batch_without_its_gradient_does_not_count_as_released():
    tested = mechanism(sampling_probability=1.0)
    next(tested.batches(3))
    assert tested.released_steps == 0
    private_gradient(tested, gradients(3))
    assert tested.released_steps == 1


@pytest.mark.parametrize("step", [-1, 5])
def test_a_run_resumes_within_its_plan_alone(step):
    with pytest.raises(UnaccountedReleaseError, match="0 to 4 steps"):
        mechanism(steps=4).resume_at(step)


def test_a_run_under_way_cannot_be_set_back():
    tested = mechanism(steps=4)
    next(tested.batches(3))
    with pytest.raises(UnaccountedReleaseError, match="before the first batch"):
        tested.resume_at(0)
    resumed = mechanism(steps=4)
    resumed.resume_at(2)
    with pytest.raises(UnaccountedReleaseError, match="before the first batch"):
        resumed.resume_at(0)
