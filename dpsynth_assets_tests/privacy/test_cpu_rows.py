import threading

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy import clipping, cpu_rows
from dpsynth_assets.privacy.clipping import ClipLattice
from dpsynth_assets.privacy.cpu_rows import (
    blocks_of_rows,
    is_plain,
    ordered_keys,
    side_by_side,
    sum_of_units,
)

TOKENS = 300
LATTICE = ClipLattice(6.0)


@pytest.fixture(params=[1 << 17, 2000, 1])
def block_entries(request, monkeypatch):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", request.param)


def spread_logits(rows, scale, seed=0):
    """Rows at different levels, with entries at the floor and at the maximum but for rounding."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(100 * scale, scale, (rows, TOKENS)) + draw.normal(0, 50, (rows, 1))
    edge = logits.max(axis=1, keepdims=True) - draw.choice([0, 12.0], logits.shape)
    edge *= 1 + draw.integers(-2, 3, logits.shape) * 2.0**-23
    return np.where(draw.random(logits.shape) < 0.3, edge, logits).astype(np.float32)


def placed(logits):
    tensor = torch.from_numpy(logits)
    return LATTICE.placed(tensor, LATTICE.shift_of(tensor.amax(dim=1).double()))


@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("rows", [0, 1, 63, 200])
def test_sums_of_units_equal_those_of_the_tensor_form_to_the_last_unit(block_entries, rows, scale):
    logits = spread_logits(rows + 5, scale)
    for taken in (slice(2, rows + 2), torch.arange(rows).flip(0)):
        for columns in (None, np.arange(0, TOKENS, 3)):
            units, used = sum_of_units(LATTICE, logits, columns, taken)
            own = logits[taken if isinstance(taken, slice) else taken.numpy()]
            own = own if columns is None else own[:, columns]
            expected = LATTICE.sum_units(placed(own)).tolist() if rows else [0] * len(units)
            assert units.tolist() == expected
            assert used == rows


def test_rows_without_a_finite_maximum_add_nothing(block_entries):
    logits = spread_logits(9, 3.0)
    clean, _ = sum_of_units(LATTICE, logits[[0, 2, 3, 5, 6, 7]], None, slice(0, 6))
    logits[1, 4], logits[4, 9], logits[8] = np.nan, np.inf, -np.inf
    units, used = sum_of_units(LATTICE, logits, None, slice(0, 9))
    assert used == 6
    assert units.tolist() == clean.tolist()


def test_an_infinite_logit_below_is_the_floor():
    logits = np.array([[1.0, -np.inf, 0.5]], dtype=np.float32)
    units, _ = sum_of_units(LATTICE, logits, None, slice(0, 1))
    assert units[1] == 0
    assert units[0] == LATTICE.span


def test_sums_leave_the_logits_as_they_are(block_entries):
    logits = spread_logits(20, 3.0)
    before = logits.copy()
    sum_of_units(LATTICE, logits, None, slice(0, 20))
    maximum = torch.from_numpy(logits).amax(dim=1).double()
    shift = LATTICE.shift_of(maximum).numpy()
    ordered_keys(logits, shift, first=3, count=2)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
@pytest.mark.parametrize(("rows", "wide"), [(3, 1 << 20), (64, 1 << 20), (200, 7000)])
def test_ordered_keys_are_the_sorted_clipped_logits(monkeypatch, block_entries, rows, wide, scale):
    monkeypatch.setattr(cpu_rows, "_TURNED_ENTRIES", wide)
    logits = spread_logits(rows, scale)
    first, count = rows // 2, 2 if rows > 3 else 1
    shift = LATTICE.shift_of(torch.from_numpy(logits).amax(dim=1).double()).numpy()
    keys = ordered_keys(logits, shift, first=first, count=count)
    expected = placed(logits).sort(dim=0).values[first : first + count]
    found = LATTICE.values_of_bits(keys)
    assert found.tolist() == LATTICE.values(expected.view(torch.int32)).tolist()


@pytest.mark.parametrize("tokens", [1, 300, 1 << 18])
def test_blocks_hold_every_row_once_and_stay_small(tokens):
    logits = np.broadcast_to(np.arange(700, dtype=np.float32)[:, None], (700, tokens))
    for rows in (slice(3, 698), torch.arange(3, 698)):
        sizes, seen = [], []
        for block in blocks_of_rows(logits, None, rows):
            sizes.append(len(block))
            seen += block[:, 0].tolist()
        assert seen == list(range(3, 698))
        assert max(sizes) <= clipping.ROWS_PER_SUM
        assert max(sizes) == 1 or max(sizes) * tokens <= clipping.CACHED_ENTRIES


def test_batches_are_mapped_in_order_on_as_many_threads_as_pytorch_has(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)

    def met(item):
        meeting.wait()  # passes only if two batches are worked on at the same moment
        return item * 10

    assert side_by_side(met, [1, 2, 3, 4], entries=1 << 20) == [10, 20, 30, 40]


@pytest.mark.parametrize(("threads", "entries"), [(1, 1 << 30), (8, 1000)])
def test_small_work_starts_no_threads(monkeypatch, threads, entries):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    here = threading.get_ident()
    assert side_by_side(lambda _: threading.get_ident(), [1, 2], entries) == [here, here]


def test_only_float32_on_a_cpu_is_plain():
    assert is_plain(torch.zeros(1))
    assert not is_plain(torch.zeros(1, dtype=torch.bfloat16))
    assert not is_plain(torch.zeros(1, device="meta"))
