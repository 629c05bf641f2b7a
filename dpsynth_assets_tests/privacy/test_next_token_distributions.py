import math

import pytest
import torch

from dpsynth_assets.privacy import clipping, sparse_vector
from dpsynth_assets.privacy.sparse_vector import (
    STEPS_PER_RECORD,
    next_token_distributions as laws_of,
)


@pytest.fixture(params=[1 << 17, 64])
def block_entries(request, monkeypatch):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", request.param)


def test_float32_sums_equal_the_laws_sums_but_for_rounding():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(37, 300, generator=generator) * 5
    logits[3] += 200.0  # leaves the range of plain exponentials
    logits[9, 2], logits[20] = math.nan, -math.inf
    for rows in (slice(2, 31), torch.tensor([36, 3, 9, 20, 1, 0])):
        for columns in (None, torch.arange(0, 300, 3)):
            found = sparse_vector._sum_on_a_cpu(logits, columns, rows)
            kept = logits[rows] if columns is None else logits[rows][:, columns]
            exact = laws_of(kept).double().sum(dim=0)
            torch.testing.assert_close(found, exact, atol=0, rtol=9 * 2.0**-24)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 4.0, 30.0])
@pytest.mark.parametrize("level", [-100.0, -40.0, 0.0, 60.0, 100.0])
def test_a_rows_law_adds_up_to_one_within_half_a_lattice_step(scale, level):
    # The sensitivity of the distance is the mass of one law: D has one whole step for rounding.
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4, 262_144, generator=generator) * scale + level
    masses = laws_of(rows).double().sum(dim=1)
    assert ((masses - 1).abs() * STEPS_PER_RECORD < 0.5).all()


def test_a_rows_law_does_not_depend_on_other_rows():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(6, 500, generator=generator) * 5
    rows[1] += 200.0  # leaves the range of plain exponentials
    rows[2, 3], rows[3] = math.inf, -math.inf
    together = laws_of(rows)
    for index in range(6):
        assert torch.equal(together[index], laws_of(rows[index : index + 1])[0])
    assert (together[2:4] == 0).all()
    assert float(together[1].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("level", [-120.0, -21.0, 0.0, 19.0, 21.0, 150.0])
def test_sums_of_laws_do_not_depend_on_the_rows_level(level):
    # Of a model whose logits lie around -100, plain exponentials would be denormal and slow.
    generator = torch.Generator().manual_seed(6)
    logits = torch.randint(-40, 20, (24, 300), generator=generator) * 0.25
    raised = logits.clone()
    raised[::2] += level  # exact, and so is taking a level off again
    exact = laws_of(logits).double().sum(dim=0)
    found = sparse_vector._sum_on_a_cpu(raised, None, slice(0, 24))
    torch.testing.assert_close(found, exact, atol=0, rtol=9 * 2.0**-24)


def test_exponentials_of_far_rows_are_normal_numbers_and_of_near_rows_plain_ones():
    logits = torch.linspace(-8.0, 8.0, 90).repeat(3, 1)
    logits[0] -= 100.0
    logits[2] += 60.0
    found = sparse_vector._exponentials(logits.numpy(), out=torch.empty(3, 90))
    assert torch.equal(found[1], torch.exp(logits[1]))
    assert ((found > 2.0**-126) & torch.isfinite(found)).all()


@pytest.mark.parametrize("level", [-120.0, 0.0, 30.0, 150.0])
@pytest.mark.parametrize("mate", [math.nan, math.inf, -math.inf])
def test_a_mate_without_a_law_leaves_the_others_sums_as_they_are(level, mate):
    # To the last bit: the price of the test has no room for laws that mates could round anew.
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(2, 300, generator=generator) * 4 + level
    logits[1] = mate
    alone = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 1))
    assert torch.equal(sparse_vector._sum_on_a_cpu(logits, None, slice(0, 2)), alone)
    assert float(alone.sum()) == pytest.approx(1.0)


def test_a_safe_row_is_not_rounded_anew_beside_an_unsafe_one():
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(2, 300, generator=generator) * 4 + 30.0
    logits[1] = -200.0 * torch.arange(300)  # nearly all its mass on one token
    alone = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 1))
    both = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 2))
    assert torch.equal(both[1:], alone[1:])
