"""Laws of batches that workers share, and of the lattice on which their sums lie."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets.privacy.per_example.arithmetic import SumLattice
from dpsynth_assets_tests.privacy import dp_sgd_cases

RECORDS = 24


mechanism = partial(dp_sgd_cases.mechanism, l2_bound=0.7, steps=2, expected_batch_size=5.0)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def losses(own, row):
    tokens = torch.from_numpy(np.random.default_rng(row).integers(0, 9, (1, 3 + row % 5)))
    return own(tokens).square().sum(dim=(1, 2)) * 10.0 ** (row % 4 - 2)


def parts(rows):
    return [LossOfPart(1, lambda own, row=row: losses(own, row)) for row in rows]


def flat(sums):
    return torch.cat([each.flatten() for each in sums])


@pytest.mark.parametrize("threads", [1, 3])
def test_exact_sums_have_the_same_bits_in_any_order_and_on_any_threads(threads):
    gradients = PerExampleGradients(model(), Products.FLOAT64)
    expected, _ = gradients.private_clipped_sums(parts(range(RECORDS)), 0.7)
    tested = PerExampleGradients(model(), Products.FLOAT64, threads)
    for order in (range(RECORDS), reversed(range(RECORDS)), [*range(9, RECORDS), *range(9)]):
        found, rows = tested.private_clipped_sums(parts(order), 0.7)
        assert rows == RECORDS
        assert torch.equal(flat(found), flat(expected))


def test_large_models_have_one_thread_a_pass_and_one_sum():
    wide = nn.Linear(4096, 4097, bias=False)  # Just above `cpu_threads.LARGE`.
    assert PerExampleGradients(wide, Products.FLOAT64, 2).threads == 2
    assert PerExampleGradients(wide, Products.NATIVE, 2).threads == 1


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
    whole = mechanism()
    batch = next(whole.batches(RECORDS))
    expected = whole.private_gradient_of_losses(gradients, parts(batch))
    shares = [range(start, RECORDS, 3) for start in range(3)]

    def counted(sampled):
        return sum(
            sampled.counted(worker, parts(np.array(share)[sampled.drawn(len(share))]))
            for worker, share in zip(others, shares, strict=True)
        )

    split = mechanism()
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

    tested = mechanism()
    tested.resume_at(1)
    tested.private_gradient_of_workers(counted, gradients.parameters)
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        tested.private_gradient_of_workers(counted, gradients.parameters)
    assert len(asked) == 1, "nobody draws before the batch is counted"


def test_a_step_that_workers_lose_is_spent(noiseless):
    def lost(_):
        raise RuntimeError("a worker ended")

    gradients, tested = PerExampleGradients(model(), Products.FLOAT64), mechanism()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a worker ended"):
            tested.private_gradient_of_workers(lost, gradients.parameters)
    assert tested.released_steps == 0
    with pytest.raises(UnaccountedReleaseError, match="planned steps"):
        tested.private_gradient_of_workers(lost, gradients.parameters)


def test_what_needs_the_whole_sample_is_not_split():
    with pytest.raises(ValueError, match="needs the size of the whole sample"):
        mechanism(most_in_company=4).sampled_sum()


def test_sums_that_are_not_exact_or_of_several_records_a_pass_are_refused():
    sampled = mechanism().sampled_sum()
    assert sampled.l2_bound == mechanism().record_bound
    with pytest.raises(ValueError, match="exact_sums: true"):
        sampled.counted(PerExampleGradients(model()), parts([0]))
    two = [LossOfPart(2, lambda own: torch.cat([losses(own, 0), losses(own, 0)]))]
    with pytest.raises(UnaccountedReleaseError, match="a pass of its own"):
        sampled.counted(PerExampleGradients(model(), Products.FLOAT64), two)


def test_sums_of_another_model_are_refused(noiseless):
    gradients = PerExampleGradients(model(), Products.FLOAT64)
    for wrong in (np.zeros(3, dtype=np.int64), np.zeros(200)):
        with pytest.raises(ValueError, match="whole numbers from the workers"):
            mechanism().private_gradient_of_workers(lambda _, w=wrong: w, gradients.parameters)
    assert not noiseless
