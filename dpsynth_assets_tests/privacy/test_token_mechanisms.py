"""Laws that every mechanism over next-token logits obeys, in one table."""

import math

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import BoundedRangeEvent, PureEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.privacy.batched import batched

SIZE, VOCABULARY = 4, 257
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


class Unread:
    def __getattr__(self, name):
        raise AssertionError("logits were read without a paid token")


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
