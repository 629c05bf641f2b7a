import pytest
import torch

from dpsynth_assets.privacy.median_box import order_statistics, rows_where
from dpsynth_assets_tests.pairs import pairwise

LOWEST, SPAN = 0x41A00000, 6291456


def keys(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, SPAN + 1, (rows, 90), generator=generator)
    drawn[:, :20] = torch.randint(0, 3, (rows, 20), generator=generator)  # ties
    drawn[:, 20], drawn[:, 21] = 0, SPAN
    return (drawn + LOWEST).to(torch.int32)


@pytest.mark.parametrize(("rows", "count"), pairwise([1, 2, 7, 64, 128, 129, 300], [1, 2, 4]))
def test_order_statistics_equal_the_sorted_columns(rows, count):
    held = keys(rows, rows)
    ordered = torch.sort(held, dim=0).values
    for first in {0, (rows - 1) // 2, max(0, rows - count)}:
        wanted = min(count, rows - first)
        found = order_statistics(held, first, wanted, lowest=LOWEST, span=SPAN)
        assert torch.equal(found, ordered[first : first + wanted])


def test_keys_below_the_lowest_become_it():
    held = keys(9)
    held[:6] = -5
    found = order_statistics(held, 4, 3, lowest=LOWEST, span=SPAN)
    expected = torch.sort(held, dim=0).values[4:7].clamp(min=LOWEST)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 255, 256, 700])
def test_counts_are_exact_beyond_a_byte(rows):
    mask = torch.rand(rows, 40, generator=torch.Generator().manual_seed(rows)) < 0.8
    mask[:, 0] = True
    assert torch.equal(rows_where(mask), mask.sum(dim=0, dtype=torch.int32))
