"""One row more or less changes the forward passes of at most P others, whatever the rows are."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.batch_terms import BatchTerms, pass_rows, row_key
from dpsynth_assets.privacy.guarantees import NeighboringRelation


def mates(keys, most_rows):
    """For each key the set of keys of its pass."""
    passes = [frozenset(keys[row] for row in rows) for rows in pass_rows(keys, most_rows)]
    return {key: members for members in passes for key in members}


def disturbed(keys, other, most_rows):
    """Keys of both sets whose mates differ."""
    before, after = mates(keys, most_rows), mates(other, most_rows)
    return {key for key in before.keys() & after.keys() if before[key] != after[key]}


def hard_keys(draw, count):
    """Keys that agree in many leading bits, as hashes of an adversary's choice."""
    keys = set()
    while len(keys) < count:
        bits = draw.integers(0, 2, 256)
        bits[: int(draw.integers(0, 250))] = draw.integers(0, 2)
        keys.add(np.packbits(bits).tobytes())
    return sorted(keys)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(1, 20), st.booleans())
def test_one_row_disturbs_at_most_a_pass_of_others(seed, count, most_rows, hard):
    draw = np.random.default_rng(seed)
    keys = hard_keys(draw, count) if hard else [row_key(seed, row) for row in range(count)]
    for gone in draw.permutation(count)[:10].tolist():
        others = keys[:gone] + keys[gone + 1 :]
        assert len(disturbed(keys, others, most_rows)) <= most_rows


def test_the_bound_is_reached():
    keys = [row_key(row) for row in range(9)]
    assert len(disturbed(keys, keys[:8], 8)) == 8


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 500])
def test_passes_hold_every_row_once_and_no_more_than_a_pass_of_them(count):
    keys = [row_key(row) for row in range(count)]
    passes = pass_rows(keys, 8)
    assert sorted(np.concatenate(passes).tolist()) == list(range(count))
    assert all(len(rows) <= 8 and (np.diff(rows) > 0).all() for rows in passes)
    assert (len(passes) == 1) == (count <= 8)


def test_passes_do_not_depend_on_the_order_of_rows():
    keys = [row_key(row) for row in range(60)]
    assert mates(keys, 7) == mates(keys[::-1], 7)


def test_the_room_of_a_pass_is_what_is_charged():
    for size, batches, load in ((64, 8, 1.0), (1, 1, 1.0), (7, 3, 2.37)):
        batch = BatchTerms(
            expected_batch_size=size,
            relation=NeighboringRelation.ADD_REMOVE,
            logit_slack=1.0,
            batches_per_pass=batches,
            load=load,
        )
        room = batch.rows_per_pass
        assert room - 1e-9 <= batch.slack_of_pass < room + 1 + 1e-9


def test_names_of_rows_are_told_apart():
    assert len({row_key(*parts) for parts in [("a", "b"), ("ab",), ("a", 1), ("a1",), ()]}) == 5


def test_a_pass_without_rows_and_rows_without_a_name_are_refused():
    with pytest.raises(ValueError, match="most_rows >= 1"):
        pass_rows([row_key(1)], 0)
    with pytest.raises(ValueError, match="distinct keys"):
        pass_rows([row_key(1)] * 3, 2)
    assert len(pass_rows([row_key(1)] * 2, 2)) == 1
