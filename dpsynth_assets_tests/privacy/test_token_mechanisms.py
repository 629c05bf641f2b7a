"""Laws of all mechanisms over next-token logits, of the mean, and of the meter that pays."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import BoundedRangeEvent, PureEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import (
    MeanTokenMechanism,
    NextLogits,
    PrivateTokenMeter,
    allowed_tokens,
    rows_by_batch,
)
from dpsynth_assets_tests.privacy.batched import VOCABULARY, Unread, batched, batches
from dpsynth_assets_tests.privacy.oracles import mean_scores_oracle

SIZE = 4
ADD_REMOVE = NeighboringRelation.ADD_REMOVE
BATCH = {"expected_batch_size": SIZE, "relation": ADD_REMOVE}
MEAN = batched(MeanTokenMechanism, clip_bound=90.0, temperature=0.5, **BATCH)
DIFFERENCE = batched(DifferenceTokenMechanism, clip_bound=90.0, temperature=0.5, **BATCH)
MEDIAN = MedianTokenMechanism(clip_bound=90.0, temperature=0.5, relation=ADD_REMOVE)
TEST = batched(PublicTokenTest, noise_scale=0.2, threshold=0.5, **BATCH)


def selected(mechanism, logits, public, owners, active, meter, allowed=None):
    """Tokens of a mechanism, or answers of the test."""
    asked = NextLogits(logits, owners, active, public, allowed)
    if mechanism is TEST:
        return mechanism.open(meter).needs_private_token(asked)
    found = mechanism.select(asked, meter)
    return found[0] if mechanism is MEDIAN else found


def scores(mechanism, logits, public):
    """What the draw or the answer of the first batch is made from, before noise."""
    owners = torch.zeros(len(logits), dtype=torch.int64)
    if mechanism is DIFFERENCE:
        rows, tokens = torch.arange(len(logits)), torch.arange(logits.shape[1])
        return mechanism.private_scores(logits, public[0], rows, tokens)
    if mechanism is MEAN:
        return mechanism.private_scores(logits, owners, np.array([0]))[0]
    return mechanism.private_distances(logits, public, owners, np.array([0]))


DRAWING = pytest.mark.parametrize("mechanism", [MEAN, DIFFERENCE, MEDIAN])
SUMMING = pytest.mark.parametrize("mechanism", [MEAN, DIFFERENCE, TEST])
ALL = pytest.mark.parametrize("mechanism", [MEAN, DIFFERENCE, MEDIAN, TEST])


@ALL
def test_an_exhausted_batch_is_refused_before_any_logit_is_read(mechanism):
    meter = PrivateTokenMeter(0, 1)
    with pytest.raises(UnaccountedReleaseError):
        selected(mechanism, Unread(), Unread(), Unread(), np.array([0]), meter)


@DRAWING
def test_tokens_come_in_the_order_of_active_and_each_is_paid(mechanism):
    logits = torch.full((SIZE * 2, VOCABULARY), -100.0)
    logits[:SIZE, 11], logits[SIZE:, 22] = 100.0, 100.0
    owners, active = torch.tensor([9] * SIZE + [4] * SIZE), np.array([9, 4])
    meter = PrivateTokenMeter(2, 10)
    tokens = selected(mechanism, logits, torch.zeros(2, VOCABULARY), owners, active, meter)
    assert tokens.tolist() == [11, 22]
    assert np.flatnonzero(meter.spent).tolist() == [4, 9]


@DRAWING
def test_only_allowed_tokens_are_drawn(mechanism):
    allowed = np.isin(np.arange(VOCABULARY), [3, 200])
    logits, meter = torch.zeros(2, VOCABULARY), PrivateTokenMeter(50, 1)
    asked = logits, torch.zeros(1, VOCABULARY), torch.zeros(2, dtype=torch.int64), np.array([0])
    drawn = {int(selected(mechanism, *asked, meter, allowed)[0]) for _ in range(50)}
    assert drawn == {3, 200}


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_left_as_they_are(mechanism, dtype):
    logits, public = torch.randn(9, VOCABULARY, dtype=dtype), torch.randn(2, VOCABULARY)
    owners, before = torch.tensor([0] * 4 + [1] * 5), logits.clone()
    selected(mechanism, logits, public, owners, np.array([0, 1]), PrivateTokenMeter(1, 2))
    assert torch.equal(logits, before)


@SUMMING
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_maximum_contributes_nothing(mechanism, poison):
    logits, public = torch.randn(3, VOCABULARY), torch.randn(1, VOCABULARY)
    bad = torch.cat([logits, torch.full((1, VOCABULARY), poison)])
    found = [scores(mechanism, rows, public) for rows in (logits, bad)]
    torch.testing.assert_close(*found, atol=2.0**-20 if mechanism is TEST else 0, rtol=0)


def test_events_price_what_is_drawn_or_asked():
    for mechanism in (MEAN, DIFFERENCE):
        assert mechanism.event(7) == BoundedRangeEvent(eta=mechanism.eta, count=7)
    assert TEST.event(7) == PureEvent(epsilon=TEST.epsilon, count=7)


@ALL
@pytest.mark.parametrize(
    ("owners", "active", "allowed", "match"),
    [
        (torch.zeros(3, dtype=torch.int64), [0], None, "batch_of_row"),
        (torch.zeros(2, dtype=torch.int64), [0, 0], None, "distinct"),
        (torch.zeros(2, dtype=torch.int64), [0], np.zeros(5, dtype=bool), "allowed"),
        (torch.zeros(2, dtype=torch.int64), [0], np.ones(4, dtype=bool), "allowed"),
    ],
)
def test_shapes_that_disagree_are_refused(mechanism, owners, active, allowed, match):
    asked = torch.zeros(2, 5), torch.zeros(len(active), 5), owners, np.array(active)
    with pytest.raises(ValueError, match=match):
        selected(mechanism, *asked, PrivateTokenMeter(9, 1), allowed)


@pytest.mark.parametrize("mechanism", [DIFFERENCE, TEST])
@pytest.mark.parametrize(
    ("public", "match"),
    [
        (torch.zeros(2, 5), "public logits"),
        (torch.zeros(1, 4), "public logits"),
        (torch.full((1, 5), math.nan), "finite maxima"),
    ],
)
def test_public_logits_that_define_no_law_are_refused(mechanism, public, match):
    asked = torch.zeros(2, 5), public, torch.zeros(2, dtype=torch.int64), np.array([0])
    with pytest.raises(ValueError, match=match):
        selected(mechanism, *asked, PrivateTokenMeter(9, 1))


# The mean of clipped logits, and the meter

MECHANISM = batched(MeanTokenMechanism, clip_bound=9.0, temperature=1.5, **BATCH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_tensor_scores_match_the_numpy_oracle(block_entries, dtype, masked):
    logits, _, batch_of_row = batches()
    logits = logits.to(dtype)
    active = np.array([5, 2, 0, 3])
    allowed = np.random.default_rng(0).random(VOCABULARY) < 0.5 if masked else None
    scores = MECHANISM.private_scores(
        logits, batch_of_row, active, allowed_tokens(logits, allowed)
    ).numpy()
    for position, batch in enumerate(active):
        rows = logits[batch_of_row == batch].double().numpy()
        rows = rows if allowed is None else rows[:, allowed]
        expected = mean_scores_oracle(rows, clip_bound=9.0, expected_batch_size=4, temperature=1.5)
        np.testing.assert_allclose(scores[position], expected, atol=1e-12)


def test_rows_side_by_side_and_apart_give_the_same_scores_to_the_last_bit():
    logits, _, batch_of_row = batches()
    grouped = batch_of_row.argsort(stable=True)
    active = np.array([0, 1, 3, 4, 5])
    apart = MECHANISM.private_scores(logits, batch_of_row, active)
    together = MECHANISM.private_scores(logits[grouped], batch_of_row[grouped], active)
    assert torch.equal(apart, together)


def test_every_row_goes_to_its_own_batch_and_to_no_other():
    batch_of_row = torch.tensor([4, 4, 7, 4, 9, 9, 2, 7])
    rows = rows_by_batch(batch_of_row, np.array([9, 4, 3, 7]))
    listed = [torch.arange(8)[part].tolist() for part in rows]
    assert listed == [[4, 5], [0, 1, 3], [], [2, 7]]
    assert rows[0] == slice(4, 6)


@pytest.mark.parametrize("masked", [False, True])
def test_public_top_k_draws_among_each_batchs_own_top_tokens(masked):
    logits, public, batch_of_row = batches()
    allowed = np.arange(VOCABULARY) % 2 == 0 if masked else None
    ranked = public if allowed is None else public.masked_fill(~torch.from_numpy(allowed), -9.0)
    support = ranked.topk(3, dim=1).indices.tolist()
    restricted = dataclasses.replace(MECHANISM, public_top_k=3)
    meter, seen = PrivateTokenMeter(200, 6), [set() for _ in range(6)]
    for _ in range(200):
        asked = NextLogits(logits, batch_of_row, np.arange(6), public, allowed)
        drawn = restricted.select(asked, meter)
        for own, token in zip(seen, drawn, strict=True):
            own.add(int(token))
    assert all(own <= set(top) for own, top in zip(seen, support, strict=True))
    assert seen[2] == set(support[2])  # without rows: uniform on the support


def test_public_top_k_clips_on_the_support_and_keeps_the_price():
    logits, _, batch_of_row = batches()
    columns = torch.tensor([[3, 9, 27], [200, 5, 81]])
    active = np.array([0, 3])
    scores = MECHANISM.private_scores(logits, batch_of_row, active, columns).numpy()
    for position, batch in enumerate(active):
        rows = logits[batch_of_row == batch][:, columns[position]].double().numpy()
        expected = mean_scores_oracle(rows, clip_bound=9.0, expected_batch_size=4, temperature=1.5)
        np.testing.assert_allclose(scores[position], expected, atol=1e-12)
    assert dataclasses.replace(MECHANISM, public_top_k=3).event(5) == MECHANISM.event(5)


def test_public_top_k_needs_public_logits():
    logits, _, batch_of_row = batches()
    restricted = dataclasses.replace(MECHANISM, public_top_k=3)
    asked = NextLogits(logits, batch_of_row, np.arange(6))
    with pytest.raises(ValueError, match="public logits"):
        restricted.select(asked, PrivateTokenMeter(1, 6))


# What is paid for


@given(st.integers(0, 6), st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=12))
def test_no_sequence_of_requests_draws_more_than_r_tokens(tokens, requests):
    meter = PrivateTokenMeter(tokens, 4)
    drawn = np.zeros(4, dtype=int)
    for request in requests:
        try:
            meter.spend(np.array(request, dtype=np.int64))
        except UnaccountedReleaseError:
            continue
        drawn += np.bincount(np.array(request, dtype=np.int64), minlength=4)
    assert (drawn <= tokens).all()
    assert (meter.spent == drawn).all()
    assert (meter.exhausted == (drawn >= tokens)).all()


@pytest.mark.parametrize("indices", [[-1], [3], [0, 7]])
def test_unknown_batches_are_refused(indices):
    with pytest.raises(UnaccountedReleaseError, match="batch indices"):
        PrivateTokenMeter(5, 3).spend(np.array(indices))


def test_meter_cannot_be_reset_through_its_readings():
    meter = PrivateTokenMeter(1, 2)
    meter.spend(np.array([0]))
    meter.spent[:] = 0
    assert meter.exhausted.tolist() == [True, False]
