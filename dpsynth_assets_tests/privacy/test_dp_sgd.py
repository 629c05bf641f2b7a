"""Laws of DP-SGD. Each statistical test raises a false alarm at most 1e-8 of the time."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch import nn

from dpsynth_assets.attacks.audits.gradients import linear_layers, private_gradient
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets.privacy.per_example.arithmetic import SumLattice
from dpsynth_assets.privacy.poisson_sampling import poisson_sample
from dpsynth_assets_tests.privacy import dp_sgd_cases
from dpsynth_assets_tests.privacy.small_models import clipped_sum

FALSE_ALARM = 1e-9
SAMPLING = {"sampling_probability": 0.25, "noise_multiplier": 1.5, "steps": 4}
WIDTHS = [6, 1, 5]


mechanism = partial(dp_sgd_cases.mechanism, l2_bound=2.0, expected_batch_size=5.0, **SAMPLING)


def gradients(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, width, generator=generator) for width in WIDTHS]


def stack(tensors):
    """(B, P) float64 of per-record gradients, or (P,) of one gradient."""
    return torch.cat([each.double() for each in tensors], dim=-1).numpy()


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("units", [1, 3])
def test_event_of_poisson_batches_states_relation_and_unit(relation, units):
    event = dp_sgd_event(relation=relation, max_records_per_unit=units, **SAMPLING)
    assert event == PoissonGaussianEvent(
        max_records_per_unit=units, replaced=relation is NeighboringRelation.REPLACE_ONE, **SAMPLING
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


def test_more_gradients_than_batches_are_refused():
    tested = mechanism(sampling_probability=1.0)
    with pytest.raises(UnaccountedReleaseError, match="Draw a batch"):
        private_gradient(tested, gradients(3))
    next(tested.batches(3))
    assert tested.released_steps == 0
    private_gradient(tested, gradients(3))
    assert tested.released_steps == 1
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


def test_a_resumed_run_draws_only_the_steps_that_are_left():
    resumed = mechanism(steps=5, sampling_probability=1.0)
    resumed.resume_at(3)
    assert resumed.released_steps == 3
    for batch in resumed.batches(2):
        private_gradient(resumed, gradients(len(batch)))
    assert resumed.released_steps == 5
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        resumed.batches(2)


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


# Batches that workers share, and the lattice on which their sums lie

RECORDS = 24


planned = partial(dp_sgd_cases.mechanism, l2_bound=0.7, steps=2, expected_batch_size=5.0)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def losses(own, row):
    tokens = torch.from_numpy(np.random.default_rng(row).integers(0, 9, (1, 3 + row % 5)))
    return own(tokens).square().sum(dim=(1, 2)) * 10.0 ** (row % 4 - 2)


def parts(rows):
    return [LossOfPart(1, lambda own, row=row: losses(own, row)) for row in rows]


@pytest.mark.parametrize("threads", [1, 3])
def test_exact_sums_have_the_same_bits_in_any_order_and_on_any_threads(threads):
    gradients = PerExampleGradients(model(), Products.FLOAT64)
    expected = clipped_sum(gradients, parts(range(RECORDS)), 0.7)
    tested = PerExampleGradients(model(), Products.FLOAT64, threads)
    for order in (range(RECORDS), reversed(range(RECORDS)), [*range(9, RECORDS), *range(9)]):
        assert torch.equal(clipped_sum(tested, parts(order), 0.7), expected)


@pytest.mark.parametrize("bound", [1e-3, 0.3, 1.0, 2.0, 1e6])
def test_units_are_small_powers_of_two_and_numbers_go_to_the_nearest(bound):
    lattice = SumLattice.of(bound)
    assert math.frexp(lattice.unit)[0] == 0.5
    assert 2.0**-32 * bound <= lattice.unit < 2.0**-31 * bound
    numbers = torch.from_numpy(np.random.default_rng(0).uniform(-256 * bound, 256 * bound, 1000))
    placed = lattice.placed(numbers.clone())
    assert ((placed - numbers).abs() <= lattice.unit / 2).all()
    assert torch.equal(placed / lattice.unit, (placed / lattice.unit).round())
    assert torch.equal(lattice.sums(lattice.units(placed)), placed)
    assert torch.equal(lattice.placed(-numbers), -placed)


def test_a_batch_of_workers_is_the_batch_of_one_process(noiseless):
    own, others = model(), (PerExampleGradients(model(), Products.FLOAT64) for _ in range(3))
    gradients = PerExampleGradients(own, Products.FLOAT64)
    whole = planned()
    batch = next(whole.batches(RECORDS))
    expected = whole.private_gradient_of_losses(gradients, parts(batch))
    shares = [range(start, RECORDS, 3) for start in range(3)]

    def counted(sampled):
        return sum(
            sampled.counted(worker, parts(np.array(share)[sampled.drawn(len(share))]))
            for worker, share in zip(others, shares, strict=True)
        )

    split = planned()
    noiseless.clear()
    found = split.private_gradient_of_workers(counted, gradients.parameters)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert noiseless == [0.7] * len(found)
    assert split.released_steps == 1
    assert split.event() == whole.event()


def test_workers_draw_no_more_batches_than_were_charged(noiseless):
    asked = []
    gradients = PerExampleGradients(model(), Products.FLOAT64)

    def counted(sampled):
        asked.append(sampled)
        return sampled.counted(gradients, [])

    tested = planned()
    tested.resume_at(1)
    tested.private_gradient_of_workers(counted, gradients.parameters)
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        tested.private_gradient_of_workers(counted, gradients.parameters)
    assert len(asked) == 1, "nobody draws before the batch is counted"


def test_a_step_that_workers_lose_is_spent(noiseless):
    def lost(_):
        raise RuntimeError("a worker ended")

    gradients, tested = PerExampleGradients(model(), Products.FLOAT64), planned()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a worker ended"):
            tested.private_gradient_of_workers(lost, gradients.parameters)
    assert tested.released_steps == 0
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        tested.private_gradient_of_workers(lost, gradients.parameters)


def test_what_needs_the_whole_sample_is_not_split():
    with pytest.raises(ValueError, match="needs the size of the whole sample"):
        planned(most_in_company=4).sampled_sum()


def test_sums_that_are_not_exact_or_of_several_records_a_pass_are_refused():
    sampled = planned().sampled_sum()
    assert sampled.l2_bound == planned().record_bound
    with pytest.raises(ValueError, match="exact_sums: true"):
        sampled.counted(PerExampleGradients(model()), parts([0]))
    two = [LossOfPart(2, lambda own: torch.cat([losses(own, 0), losses(own, 0)]))]
    with pytest.raises(UnaccountedReleaseError, match="a pass of its own"):
        sampled.counted(PerExampleGradients(model(), Products.FLOAT64), two)


def test_sums_of_another_model_are_refused(noiseless):
    gradients = PerExampleGradients(model(), Products.FLOAT64)
    for wrong in (np.zeros(3, dtype=np.int64), np.zeros(200)):
        with pytest.raises(ValueError, match="whole numbers from the workers"):
            planned().private_gradient_of_workers(lambda _, w=wrong: w, gradients.parameters)
    assert not noiseless
