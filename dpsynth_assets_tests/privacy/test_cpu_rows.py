import numpy as np
import pytest
import torch

from dpsynth_assets.privacy import clipping
from dpsynth_assets.privacy.cpu import (
    blocks_of_rows,
    is_plain,
    largest_columns,
    nth_largest,
    plain_entries,
    sum_of_units,
)
from dpsynth_assets_tests.privacy.spread_logits import LATTICE, TOKENS, placed, spread_logits


@pytest.fixture(params=[1 << 17, 2000, 1])
def block_entries(request, monkeypatch):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", request.param)


def units_of(logits, columns, taken):
    """Sums and rows used; what the memory of the sums held before must not matter."""
    tokens = TOKENS if columns is None else len(columns)
    tokens = min(tokens, logits.shape[1])
    floor, out = np.full(tokens, LATTICE.lowest, dtype=np.float32), np.full(tokens, np.nan)
    used = sum_of_units(LATTICE, logits, columns, taken, floor=floor, out=out)
    return out, used


@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("rows", [0, 1, 63, 300])
def test_sums_of_units_equal_those_of_the_tensor_form_to_the_last_unit(block_entries, rows, scale):
    logits = spread_logits(rows + 5, scale)
    for taken in (slice(2, rows + 2), torch.arange(rows).flip(0)):
        for columns in (None, np.arange(0, TOKENS, 3)):
            units, used = units_of(logits, columns, taken)
            own = logits[taken if isinstance(taken, slice) else taken.numpy()]
            own = own if columns is None else own[:, columns]
            expected = LATTICE.sum_units(placed(own)).tolist() if rows else [0] * len(units)
            assert units.tolist() == expected
            assert used == rows


def test_rows_without_a_finite_maximum_add_nothing(block_entries):
    logits = spread_logits(9, 3.0)
    clean, _ = units_of(logits[[0, 2, 3, 5, 6, 7]], None, slice(0, 6))
    logits[1, 4], logits[4, 9], logits[8] = np.nan, np.inf, -np.inf
    units, used = units_of(logits, None, slice(0, 9))
    assert used == 6
    assert units.tolist() == clean.tolist()


def test_an_infinite_logit_below_is_the_floor():
    logits = np.array([[1.0, -np.inf, 0.5]], dtype=np.float32)
    units, _ = units_of(logits, None, slice(0, 1))
    assert units[1] == 0
    assert units[0] == LATTICE.span


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


def test_only_float32_on_a_cpu_is_plain():
    assert is_plain(torch.zeros(1))
    assert plain_entries(torch.zeros(3, 2)) == 6
    assert plain_entries(torch.zeros(3, 2, dtype=torch.float64)) == 0
    assert not is_plain(torch.zeros(1, dtype=torch.bfloat16))
    assert not is_plain(torch.zeros(1, device="meta"))


@pytest.mark.parametrize("tokens", [300, 5_003])
@pytest.mark.parametrize("count", [1, 7, 64, 299, 300])
def test_largest_columns_are_those_of_a_stable_sort(count, tokens):
    draw = np.random.default_rng(count)
    for drawn in (draw.normal(0, 3, (4, tokens)), draw.integers(-3, 3, (4, tokens))):
        logits = drawn.astype(np.float32)
        logits[2, 150:] = -np.inf
        logits[3] = np.sort(logits[3])
        order = np.argsort(-logits, axis=1, kind="stable")[:, :count]
        assert np.array_equal(largest_columns(logits, count), np.sort(order, axis=1))
        expected = -np.sort(-logits, axis=1)[:, count - 1]
        assert [nth_largest(row, count) for row in logits] == expected.tolist()


@pytest.mark.parametrize("numbers", [1, 3, 9])
def test_not_a_number_is_the_largest(numbers):
    row = np.random.default_rng(0).normal(0, 3, 5_000).astype(np.float32)
    row[:numbers] = np.nan
    expected = np.partition(row, 4_997)[4_997]
    assert np.array_equal(nth_largest(row, 3), expected, equal_nan=True)
