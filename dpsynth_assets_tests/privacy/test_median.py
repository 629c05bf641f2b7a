"""Laws of the median of clipped logits, its γ, and the ranks that it is read off."""

import itertools
import math

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy import clipping, median_box
from dpsynth_assets.privacy.clipping import ClipLattice, clip_logits
from dpsynth_assets.privacy.cpu import maxima
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.median_box import _box_on_a_device, ordered_keys, rank_window
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.pairs import pairwise
from dpsynth_assets_tests.privacy.oracles import median_oracle
from dpsynth_assets_tests.privacy.spread_logits import LATTICE

BOUND, TEMPERATURE, VOCABULARY = 6.0, 1.5, 61


def mechanism(relation="add-remove", records=1, **settings):
    return MedianTokenMechanism(
        clip_bound=BOUND,
        temperature=TEMPERATURE,
        relation=NeighboringRelation(relation),
        max_records_per_unit=records,
        **settings,
    )


def selected(tested, logits, owners, active):
    """Tokens and γ of batches that each have one private token."""
    return tested.select(NextLogits(logits, owners, np.array(active)), PrivateTokenMeter(1, 6))


def batches(scale):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(23, VOCABULARY, generator=generator) * scale
    batch_of_row = torch.tensor([0] * 7 + [1] * 8 + [3] + [4] * 2 + [5] * 5)
    batch_of_row = batch_of_row[torch.randperm(23, generator=generator)]
    logits[3, 5], logits[11] = math.nan, math.inf
    return logits, batch_of_row


@pytest.mark.parametrize(
    ("entries", "scale", "unit"),
    pairwise(
        [1 << 21, 40], [1.0, 6.0, 40.0], [("add-remove", 1), ("replace-one", 1), ("zero-out", 3)]
    ),
)
def test_tensor_form_matches_the_numpy_oracle(monkeypatch, entries, scale, unit):
    # Sharp rows leave few columns above the floor, flat rows leave all of them.
    monkeypatch.setattr(clipping, "BLOCK_ENTRIES", entries)
    logits, batch_of_row = batches(scale)
    tested = mechanism(*unit)
    active = np.array([4, 2, 0, 1, 3, 5])  # sizes 2, 0, 7, 8, 1, 5, two rows of them unusable
    tokens, gamma = selected(tested, logits, batch_of_row, active)
    for position, batch in enumerate(active):
        rows = logits[batch_of_row == batch].double().numpy()
        _, expected = median_oracle(
            rows, clip_bound=BOUND, temperature=TEMPERATURE, changes=tested.changes
        )
        assert gamma[position] == pytest.approx(expected[tokens[position]], abs=1e-9)


def on_the_lattice(logits, maximum):
    """Clips by one float32 addition that lets a row's maximum come to lie at 32: c is 6."""
    moved = logits + (32.0 - maximum.numpy()).astype(np.float32)[:, None]
    return np.clip(moved.astype(np.float64), 20.0, 32.0) - 26.0


@pytest.mark.parametrize(
    ("entries", "turned", "share", "dtype", "scale", "size"),
    pairwise(
        [1 << 16, 40],
        [1 << 20, 100],
        [-1.0, 0.6, 2.0],  # all columns are sorted, some, or any
        [torch.float32, torch.bfloat16, torch.float64],
        [0.5, 3.0, 40.0],
        [(1, 1), (2, 1), (7, 1), (8, 2), (33, 3), (64, 1), (300, 2)],
    ),
)
def test_selected_order_statistics_equal_sorting_everything_to_the_last_bit(
    monkeypatch, entries, turned, share, dtype, scale, size
):
    # Many entries lie at the floor, at it but for rounding, or tie; rows stand apart or together.
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", entries)
    monkeypatch.setattr(median_box, "_TURNED_ENTRIES", turned)
    monkeypatch.setattr(median_box, "_WORTH_LEAVING_OUT", share)
    rows, records = size
    draw = np.random.default_rng(rows)
    logits = torch.from_numpy(draw.normal(100 * scale, scale, (2 * rows, VOCABULARY)))
    near = logits.amax(dim=1, keepdim=True) - 2 * BOUND * (1 + draw.integers(-2, 3) * 2.0**-22)
    logits = torch.where(torch.from_numpy(draw.random(logits.shape) < 0.4), near, logits).to(dtype)
    tested = mechanism("add-remove", records)
    for taken in (slice(0, rows), torch.arange(0, 2 * rows, 2)):
        boxes = [
            tested._private_box(logits, taken, None),
            _box_on_a_device(logits[taken], ClipLattice(BOUND), tested.changes),
        ]
        padding = rank_window(rows, tested.changes)[2]
        edge = np.full((padding, VOCABULARY), BOUND)
        clipped = on_the_lattice(logits[taken].float().numpy(), logits[taken].amax(dim=1).double())
        ordered = np.sort(np.vstack([-edge, clipped, edge]), axis=0)
        halves = len(ordered) - 1 + tested.changes * np.arange(-1, 2)
        expected = (ordered[halves // 2] + ordered[(halves + 1) // 2]) / 2
        assert all(np.array_equal(box.numpy(), expected) for box in boxes)


def test_rows_without_a_finite_maximum_are_left_out_on_a_device():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(4, VOCABULARY)))
    logits[1, 2], logits[3, 0] = math.nan, math.inf
    whole, usable = (
        _box_on_a_device(each, ClipLattice(BOUND), 2) for each in (logits, logits[::2])
    )
    assert torch.equal(whole, usable)


@pytest.mark.parametrize("changes", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", range(6))
def test_rank_window_holds_every_neighbours_median_and_is_reached(rows, changes):
    # Exhaustive over multisets of four values and over all additions and removals.
    values = (-1.0, -0.5, 0.5, 1.0)

    def median(multiset):
        return float(np.median([-1.0, *multiset, 1.0]))

    for multiset in itertools.combinations_with_replacement(values, rows):
        lowest, _, padding = rank_window(rows, changes)
        ordered = [-1.0] * padding + sorted(multiset) + [1.0] * padding
        half = len(ordered) - 1 - changes
        assert half // 2 == lowest
        left = (ordered[half // 2] + ordered[(half + 1) // 2]) / 2
        reached = [
            median([*kept, *added])
            for removed in range(min(changes, rows) + 1)
            for kept in set(itertools.combinations(multiset, rows - removed))
            for added in itertools.combinations_with_replacement(values, changes - removed)
        ]
        assert left <= min(reached)
        if rows >= changes:
            assert left == min(reached)


def test_empty_batch_is_uniform_and_still_costs():
    # A neighbour may put a record into it, which the other batch's cost says nothing of.
    logits = torch.full((8, VOCABULARY), 0.0)
    logits[:, 0] = 20.0
    owners = torch.zeros(8, dtype=torch.int64)
    _, gamma = selected(mechanism(), logits, owners, [0, 1])
    laws = [
        torch.log_softmax(torch.from_numpy(clip_logits(row, BOUND) / (2 * TEMPERATURE)), 0)
        for row in (np.zeros(VOCABULARY), logits[0].double().numpy())
    ]
    assert gamma[1] >= (laws[0] - laws[1]).abs().min() > gamma[0] + 0.1


def test_realised_epsilon_adds_the_batches_that_one_unit_may_touch():
    totals = np.array([0.5, 2.0, 1.0])
    assert mechanism().realised_epsilon(totals) == 2.0
    assert mechanism("replace-one").realised_epsilon(totals) == 3.0
    assert mechanism("add-remove", 3).realised_epsilon(totals) == 3.5


def test_slack_is_added_to_every_token_for_every_batch_that_draws_in_the_pass():
    owners = torch.arange(12) // 4
    tested = mechanism(logit_slack=0.01)
    _, gamma = selected(tested, torch.zeros(12, VOCABULARY), owners, [0, 2])
    assert gamma == pytest.approx(2 * 4 * 0.01 / TEMPERATURE, abs=1e-12)


# Ranks of columns


def test_a_column_is_at_the_floor_where_too_few_rows_exceed_it(monkeypatch):
    monkeypatch.setattr(median_box, "_WORTH_LEAVING_OUT", 2.0)
    logits = np.zeros((700, 3), dtype=np.float32)  # More rows than a byte counts.
    logits[:399, 1], logits[:400, 2] = -20.0, -20.0
    shift, floor = LATTICE.shift(maxima(logits)), LATTICE.lowest_key
    keys = ordered_keys(logits, shift, first=399, count=1, floor=floor)
    assert LATTICE.values_of_bits(keys).tolist() == [[6.0, 6.0, -6.0]]


@pytest.mark.parametrize("rows", range(1, 17))
def test_a_sorting_network_sorts_all_zeros_and_ones_and_hence_all_numbers(rows):
    keys = np.array(np.meshgrid(*[[0, 1]] * rows)).reshape(rows, -1).astype(np.int8)
    for low, high in median_box.sorting_network(rows):
        assert low < high < rows
        keys[[low, high]] = np.minimum(keys[low], keys[high]), np.maximum(keys[low], keys[high])
    assert (keys[:-1] <= keys[1:]).all()
