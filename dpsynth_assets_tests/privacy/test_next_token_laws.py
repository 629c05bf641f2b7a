import math

import pytest
import torch

from dpsynth_assets.privacy import clipping, next_token_laws
from dpsynth_assets.privacy.next_token_laws import log_normaliser, next_token_laws as laws_of
from dpsynth_assets.privacy.sparse_vector import STEPS_PER_RECORD

VOCABULARY = 257


@pytest.fixture(params=[1 << 17, 64])
def block_entries(request, monkeypatch):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", request.param)


def test_normaliser_is_finite_exactly_where_the_maximum_is(block_entries):
    rows = torch.zeros(5, VOCABULARY)
    rows[1, 200], rows[2, 3], rows[3] = math.nan, math.inf, -math.inf
    rows[4, :256] = -math.inf
    normaliser = log_normaliser(rows, None)
    assert torch.isfinite(normaliser).tolist() == [True, False, False, False, True]
    assert float(normaliser[0]) == pytest.approx(math.log(VOCABULARY))
    assert float(normaliser[4]) == 0.0


def test_float32_sums_equal_the_laws_sums_but_for_rounding():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(37, 300, generator=generator) * 5
    logits[3] += 200.0  # leaves the range of plain exponentials
    logits[9, 2], logits[20] = math.nan, -math.inf
    for rows in (slice(2, 31), torch.tensor([36, 3, 9, 20, 1, 0])):
        for columns in (None, torch.arange(0, 300, 3)):
            found = next_token_laws._sum_on_a_cpu(logits, columns, rows)
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
