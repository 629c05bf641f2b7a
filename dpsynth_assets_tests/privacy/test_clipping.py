import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy import clipping
from dpsynth_assets.privacy.clipping import ClipLattice, clip_logits, lower_floor, usable_rows

BOUNDS = [0.01, 0.5, 1.0, 5.3, 6.0, 9.0, 64.0, 100.0]


def placed(lattice, logits):
    return lattice.placed(logits, lattice.shift_of(logits.amax(dim=1).double()))


def units(lattice, logits):
    return placed(lattice, logits).view(torch.int32).long() - lattice.lowest_key


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_row_spans_at_most_twice_the_bound_in_whole_units(bound):
    lattice = ClipLattice(bound)
    assert 0 <= 2 * bound - lattice.span * lattice.unit < lattice.unit
    assert 2**22 <= lattice.span <= 2**23
    logits = torch.tensor([[3.0, -1e30, 3.0 - bound], [1e4, 1e4 - 1.0, -torch.inf]])
    found = units(lattice, logits)
    assert found.min() == 0
    assert found.max() == lattice.span
    assert found.max(dim=1).values.tolist() == [lattice.span] * 2


@settings(max_examples=100)
@given(st.sampled_from(BOUNDS), st.integers(0, 10_000), st.floats(-40, 40))
def test_lattice_values_are_the_clipped_logits_but_for_rounding(bound, seed, level):
    lattice = ClipLattice(bound)
    logits = torch.from_numpy(np.random.default_rng(seed).normal(level, bound, (5, 40))).float()
    found = lattice.values(placed(lattice, logits).view(torch.int32)).numpy()
    exact = logits.double().numpy()
    exact = np.maximum(exact - exact.max(axis=1, keepdims=True) + bound, -bound)
    rounding = lattice.unit + 2.0**-23 * float(logits.abs().max() + 4 * bound)
    np.testing.assert_allclose(found, exact, atol=rounding)
    assert np.abs(found).max() <= bound
    assert np.array_equal(clip_logits(logits.numpy(), bound), found)


def test_bits_of_unclipped_shifts_have_the_values_of_clipped_ones():
    lattice = ClipLattice(6.0)
    logits = torch.randn(9, 300, generator=torch.Generator().manual_seed(0)) * 20
    logits[0, 5] = -torch.inf
    shifts = lattice.shift_of(logits.amax(dim=1).double()).unsqueeze(1)
    raw = (logits + shifts).view(torch.int32)
    assert torch.equal(lattice.values(raw), lattice.values(placed(lattice, logits).view(raw.dtype)))


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 700])
def test_sums_of_units_are_exact_and_ignore_the_order_of_rows(rows):
    lattice = ClipLattice(64.0)
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 50, generator=generator) * 30
    logits[:, 7] = 1000.0  # every row at the largest unit: the sum that is nearest to 2^31
    held = placed(lattice, logits)
    expected = units(lattice, logits).sum(dim=0)
    assert torch.equal(lattice.sum_units(held), expected)
    assert torch.equal(lattice.sum_units(held[torch.randperm(rows)]), expected)


@settings(max_examples=200)
@given(
    st.floats(-(2.0**99), 2.0**99, width=32),
    st.floats(0.01, 50.0),
    st.integers(-8, 8),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_no_logit_at_or_below_the_lowered_floor_clips_above_it(top, clip_bound, ulps, dtype):
    row = torch.tensor([[top, top - 2 * clip_bound]]).to(dtype)
    for _ in range(abs(ulps)):
        row[0, 1] = torch.nextafter(row[0, 1], torch.tensor(ulps * torch.inf, dtype=dtype))
    lattice, maximum = ClipLattice(clip_bound), row.amax(dim=1).double()
    clipped = lattice.values(lattice.placed(row, lattice.shift_of(maximum)).view(torch.int32))
    below = row <= lower_floor(maximum, clip_bound)
    assert (clipped[below] == -clip_bound).all()


@pytest.mark.parametrize("entries", [1 << 19, 1])
@pytest.mark.parametrize("allowed", [None, torch.tensor([0, 2])])
def test_blocks_of_rows_hold_every_usable_row_once(monkeypatch, entries, allowed):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", entries)
    logits = torch.arange(24.0).reshape(8, 3)
    logits[2], logits[5, 0], logits[6] = -torch.inf, torch.nan, torch.inf
    for rows in (slice(1, 8), torch.tensor([1, 2, 3, 4, 5, 6, 7])):
        blocks = list(usable_rows(logits, allowed, rows))
        kept = logits[[1, 3, 4, 7]]
        kept = kept if allowed is None else kept[:, allowed]
        assert torch.equal(torch.cat([block for block, _ in blocks]), kept)
        assert torch.equal(torch.cat([top for _, top in blocks]), kept.amax(dim=1).double())
