import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy import clipping
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.clipping import column_blocks
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.token_selection import (
    MeanTokenMechanism,
    NextLogits,
    PrivateTokenMeter,
    allowed_tokens,
    rows_by_batch,
)
from dpsynth_assets_tests.privacy.batched import VOCABULARY, batches
from dpsynth_assets_tests.privacy.oracles import mean_scores_oracle

MECHANISM = MeanTokenMechanism(
    clip_bound=9.0,
    temperature=1.5,
    batch=BatchTerms(expected_batch_size=4, relation=NeighboringRelation.ADD_REMOVE),
)


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


def test_reading_rows_side_by_side_leaves_the_logits_as_they_are():
    logits, _, batch_of_row = batches()
    logits, batch_of_row = logits.double(), batch_of_row.sort().values
    before = logits.clone()
    MECHANISM.private_scores(logits, batch_of_row, np.arange(6))
    assert torch.equal(logits, before)


def test_only_allowed_tokens_are_drawn():
    logits, _, batch_of_row = batches()
    allowed = np.zeros(VOCABULARY, dtype=bool)
    allowed[[3, 200]] = True
    meter = PrivateTokenMeter(50, 6)
    for _ in range(50):
        asked = NextLogits(logits, batch_of_row, np.arange(6), allowed=allowed)
        tokens = MECHANISM.select(asked, meter)
        assert set(tokens) <= {3, 200}


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


def test_public_top_k_needs_public_logits_and_a_token():
    logits, _, batch_of_row = batches()
    restricted = dataclasses.replace(MECHANISM, public_top_k=3)
    asked = NextLogits(logits, batch_of_row, np.arange(6))
    with pytest.raises(ValueError, match="public logits"):
        restricted.select(asked, PrivateTokenMeter(1, 6))
    with pytest.raises(ValueError, match="public_top_k >= 1"):
        dataclasses.replace(MECHANISM, public_top_k=0)


@settings(max_examples=20)
@given(st.integers(1, 3000), st.integers(1, 5000))
def test_blocks_cover_the_vocabulary_and_stay_small(rows, vocabulary):
    logits = torch.empty(1, 1).expand(rows, vocabulary)
    parts = list(column_blocks(logits, None))
    covered = np.concatenate([np.arange(part.start, part.stop) for part, _ in parts])
    assert covered.tolist() == list(range(vocabulary))
    assert all(block.numel() <= max(clipping.CACHED_ENTRIES, rows) for _, block in parts)


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


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="tokens_per_batch"):
        PrivateTokenMeter(-1, 2)
