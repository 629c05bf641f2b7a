import numpy as np
import pytest
import torch

from dpsynth_assets.privacy import clipping, median_box
from dpsynth_assets.privacy.cpu import maxima
from dpsynth_assets.privacy.median_box import ordered_keys
from dpsynth_assets_tests.pairs import pairwise
from dpsynth_assets_tests.privacy.spread_logits import LATTICE, TOKENS, placed, spread_logits


def ranks_of(logits, first, count):
    shift = LATTICE.shift(maxima(logits))
    keys = ordered_keys(logits, shift, first=first, count=count, floor=LATTICE.lowest_key)
    return LATTICE.values_of_bits(keys)


@pytest.mark.parametrize(
    ("entries", "scale", "share", "shape"),
    pairwise(
        [1 << 17, 2000, 1],
        [0.01, 3.0, 40.0],
        [-1.0, 0.6, 2.0],  # all columns are sorted, some, or any
        [(3, 1 << 20), (8, 100), (16, 1 << 20), (64, 1 << 20), (300, 7000)],
    ),
)
def test_ordered_keys_are_the_sorted_clipped_logits(monkeypatch, entries, scale, share, shape):
    rows, wide = shape
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", entries)
    monkeypatch.setattr(median_box, "_TURNED_ENTRIES", wide)
    monkeypatch.setattr(median_box, "_WORTH_LEAVING_OUT", share)
    logits = spread_logits(rows, scale)
    for first, count in ((rows // 2, 2 if rows > 3 else 1), (0, 1), (rows - 2, 2)):
        expected = placed(logits).sort(dim=0).values[first : first + count]
        found = ranks_of(logits, first, count)
        assert found.tolist() == LATTICE.values(expected.view(torch.int32)).tolist()


def test_columns_at_the_floor_in_most_rows_are_left_unsorted(monkeypatch):
    ranked = []
    whole = median_box._rank_some
    monkeypatch.setattr(
        median_box,
        "_rank_some",
        lambda keys, own, *rest: ranked.append(len(own)) or whole(keys, own, *rest),
    )
    logits = np.zeros((20, TOKENS), dtype=np.float32)
    logits[:12, 100:] = -20.0  # twelve of twenty rows: the twelfth lowest is the floor
    logits[:11, 40:100] = -20.0  # eleven of twenty: it is not
    found = ranks_of(logits, 11, 1)
    assert ranked == [100]
    assert (found[0, :100] == 6.0).all()
    assert (found[0, 100:] == -6.0).all()


@pytest.mark.parametrize("rows", range(1, 17))
def test_a_sorting_network_sorts_all_zeros_and_ones_and_hence_all_numbers(rows):
    keys = np.array(np.meshgrid(*[[0, 1]] * rows)).reshape(rows, -1).astype(np.int8)
    for low, high in median_box.sorting_network(rows):
        assert low < high < rows
        keys[[low, high]] = np.minimum(keys[low], keys[high]), np.maximum(keys[low], keys[high])
    assert (keys[:-1] <= keys[1:]).all()


def test_counts_above_do_not_overflow_a_byte():
    keys = np.full((700, 4), LATTICE.lowest_key, dtype=np.int32)
    keys[:, 1] += 1
    keys[:256, 2] += 1
    keys[:, 3] = -5
    assert median_box._counts_above(keys, LATTICE.lowest_key).tolist() == [0, 700, 256, 0]


def test_ranks_leave_the_logits_as_they_are():
    logits = spread_logits(20, 3.0)
    before = logits.copy()
    ranks_of(logits, 3, 2)
    assert np.array_equal(logits, before)
