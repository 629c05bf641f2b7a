import math
from functools import partial

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism, public_support
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.privacy.batched import batched
from dpsynth_assets_tests.privacy.oracles import difference_scores_oracle

VOCABULARY = 257
EVERY = torch.arange(VOCABULARY)


mechanism = partial(
    batched, DifferenceTokenMechanism, clip_bound=1.0, temperature=1.2, expected_batch_size=4
)


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    public = torch.randn(6, VOCABULARY, generator=generator) * 4
    batch_of_row = torch.randint(0, 6, (20,), generator=generator)
    batch_of_row[batch_of_row == 2] = 3  # batch 2 is empty
    logits = public[batch_of_row] + torch.randn(20, VOCABULARY, generator=generator)
    return logits, public, batch_of_row


def rows_of(batch_of_row, batch):
    return torch.nonzero(batch_of_row == batch).squeeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("top_k", [None, 9])
def test_tensor_scores_match_the_numpy_oracle(block_entries, dtype, top_k):
    logits, public, batch_of_row = batches()
    logits, tested = logits.to(dtype), mechanism(top_k=top_k)
    for batch in range(6):
        rows = rows_of(batch_of_row, batch)
        support = tested.support(public[batch], None)
        scores = tested.private_scores(logits, public[batch], rows, support)
        expected = difference_scores_oracle(
            logits[rows].double().numpy(),
            public[batch].double().numpy(),
            support.numpy(),
            clip_bound=1.0,
            expected_batch_size=4,
            temperature=1.2,
        )
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-12)


def test_token_that_a_record_forbids_loses_no_more_than_the_bound():
    public = torch.zeros(VOCABULARY)
    row = torch.zeros(1, VOCABULARY)
    row[0, 7] = -math.inf
    scores = mechanism().private_scores(row, public, torch.arange(1), EVERY)
    assert torch.isfinite(scores).all()
    assert float(scores[0] - scores[7]) == pytest.approx(1.0 / (4 * 1.2), abs=1e-2)


# Support


def test_support_holds_the_k_largest_and_all_within_the_margin():
    logits = torch.tensor([3.0, 9.0, 8.5, 8.4, -1.0, 8.0])
    assert public_support(logits, 2, 0.0).nonzero().squeeze(1).tolist() == [1, 2]
    assert public_support(logits, 2, 0.1001).nonzero().squeeze(1).tolist() == [1, 2, 3]
    assert public_support(logits, None, 0.0).all()
    assert public_support(logits, 99, 0.0).all()


def test_support_keeps_ties_at_the_last_place():
    assert public_support(torch.tensor([1.0, 1.0, 0.0, 1.0]), 1, 0.0).sum() == 3


def test_support_never_holds_a_token_without_a_finite_logit():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [-math.inf, 5.0, -math.inf]])
    for k in (None, 1, 3):
        assert not public_support(logits, k, 1.0)[~torch.isfinite(logits)].any()


def test_margin_is_two_clip_bounds_over_the_expected_batch_size():
    assert mechanism(clip_bound=3.0).support_margin == pytest.approx(1.5)
    logits = torch.full((VOCABULARY,), -9.0)
    logits[[5, 6, 7]] = torch.tensor([2.0, 1.51, 1.49])
    assert mechanism(top_k=1).support(logits, None).tolist() == [5, 6]


@pytest.mark.parametrize(("k", "margin"), [(0, 0.0), (1, -1.0), (1, math.inf)])
def test_support_refuses_settings_outside_their_domain(k, margin):
    with pytest.raises(ValueError, match="Expected"):
        public_support(torch.zeros(3), k, margin)


def test_settings_without_a_token_or_a_range_are_refused():
    with pytest.raises(ValueError, match="top_k"):
        mechanism(top_k=0)
    with pytest.raises(ValueError, match="clip_bound"):
        mechanism(clip_bound=0.0)


# Selection


def test_only_the_support_and_allowed_tokens_are_drawn():
    logits, public, batch_of_row = batches()
    tested, active = mechanism(top_k=3), np.arange(6)
    allowed = np.zeros(VOCABULARY, dtype=bool)
    allowed[::2] = True
    meter = PrivateTokenMeter(30, 6)
    supports = [set(tested.support(public[batch], allowed).tolist()) for batch in range(6)]
    for _ in range(30):
        asked = NextLogits(logits, batch_of_row, active, public, allowed)
        tokens = tested.select(asked, meter)
        assert all(token in support for token, support in zip(tokens, supports, strict=True))
        assert (tokens % 2 == 0).all()


def test_a_mask_that_leaves_no_public_token_is_refused():
    public = torch.tensor([[0.0] + [-math.inf] * 4])
    with pytest.raises(ValueError, match="allowed"):
        mechanism().support(public[0], np.arange(5) == 3)
