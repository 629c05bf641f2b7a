"""The stated share of draws on tokens nobody proposes, against draws of the mechanisms themselves.

Logits are made up so that one token leads and all others lie where nobody proposes them.
"""

import math

import numpy as np
import pytest
import torch

from dpsynth_assets.methods.private_prediction.vocabulary_tails import share_at_floor
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter

V, S, G, ROUNDS = 600, 4, 500, 8
DRAWS = G * ROUNDS
BATCH = BatchTerms(expected_batch_size=S, relation="add-remove")


def rows_of(context):
    """(G·S, V) logits, every context alike but for a constant that no mechanism may see."""
    logits = torch.tensor(context, dtype=torch.float32).expand(G * S, V).clone()
    return logits + torch.linspace(-3, 3, G * S)[:, None]


def leading_by(depth):
    return np.array([0.0] + [-depth] * (V - 1))


def share_drawn(select):
    """Share of DRAWS tokens that are not the leading one."""
    owners = torch.arange(G).repeat_interleave(S)
    meter = PrivateTokenMeter(ROUNDS, G)
    drawn = [select(owners, np.arange(G), meter) for _ in range(ROUNDS)]
    return float((np.concatenate(drawn) != 0).mean())


def near(share):
    """Six standard deviations of a share of DRAWS."""
    return pytest.approx(share, abs=6 * math.sqrt(share * (1 - share) / DRAWS))


@pytest.mark.parametrize(("clip", "temperature"), [(3.0, 1.0), (4.0, 1.3), (2.0, 0.5)])
def test_the_mean_draws_from_the_floor_as_often_as_stated(clip, temperature):
    mechanism = MeanTokenMechanism(batch=BATCH, clip_bound=clip, temperature=temperature)
    rows = rows_of(leading_by(50.0))
    share = share_drawn(lambda own, active, meter: mechanism.select(rows, own, active, meter))
    assert share == near(share_at_floor(V, 2 * clip / temperature))


def test_contexts_that_disagree_leave_more_to_the_floor():
    """Each context has a token of its own 0.8 c above the common one, whose mean is 0.2 c.

    Then the share and what is stated lie six standard deviations of DRAWS apart.
    """
    clip, lower = 3.0, 0.8
    contexts = np.stack([leading_by(50.0)] * S)
    contexts[np.arange(S), 1 + np.arange(S)] = lower * clip
    rows = torch.tensor(contexts, dtype=torch.float32).repeat(G, 1)
    mechanism = MeanTokenMechanism(batch=BATCH, clip_bound=clip, temperature=1.0)
    owners, meter = torch.arange(G).repeat_interleave(S), PrivateTokenMeter(ROUNDS, G)
    drawn = [mechanism.select(rows, owners, np.arange(G), meter) for _ in range(ROUNDS)]
    share = float((np.concatenate(drawn) > S).mean())
    stated = share_at_floor(V - S, (2 - lower) * clip)
    own = S * math.exp(2 * clip / S - (2 - lower) * clip)  # the contexts' own tokens
    weight = stated / (1 - stated)
    assert share == near(weight / (1 + weight + own))
    assert share < stated


def test_a_public_support_leaves_its_own_tokens_alone():
    mechanism = MeanTokenMechanism(batch=BATCH, clip_bound=2.5, temperature=1.0, public_top_k=40)
    rows, public = rows_of(leading_by(50.0)), torch.zeros(G, V)
    public[:, :40] = 1.0
    share = share_drawn(
        lambda own, active, meter: mechanism.select(rows, own, active, meter, public_logits=public)
    )
    assert share == near(share_at_floor(40, 5.0))


def test_the_median_draws_from_the_floor_as_often_as_stated():
    mechanism = MedianTokenMechanism(clip_bound=3.0, temperature=1.0, relation="add-remove")
    rows = rows_of(leading_by(50.0))
    share = share_drawn(lambda own, active, meter: mechanism.select(rows, own, active, meter)[0])
    assert share == near(share_at_floor(V, 6.0))


@pytest.mark.parametrize(("agree_against", "gained"), [(False, 0.0), (True, 2.0)])
def test_differences_draw_public_words_as_often_as_stated(agree_against, gained):
    """Contexts say what the public prompt says, or all lift the leading token by the bound."""
    depth = 5.0
    mechanism = DifferenceTokenMechanism(batch=BATCH, clip_bound=1.0, temperature=1.0, top_k=None)
    public = torch.tensor(leading_by(depth), dtype=torch.float32).expand(G, V)
    rows = rows_of(leading_by(60.0 if agree_against else depth))
    share = share_drawn(
        lambda own, active, meter: mechanism.select(rows, own, active, meter, public_logits=public)
    )
    assert share == near(share_at_floor(V, depth + gained))


def test_known_figures_of_a_vocabulary_of_49_152_tokens():
    """Tails at c = 6, τ = 1: a quarter where contexts agree, six sevenths at half that height."""
    assert share_at_floor(49_152, 12.0) == pytest.approx(0.232, abs=1e-3)
    assert share_at_floor(49_152, 9.0) == pytest.approx(0.858, abs=1e-3)
    assert share_at_floor(1, 0.0) == 0.0


@pytest.mark.parametrize("call", [
    lambda: share_at_floor(0, 1.0), lambda: share_at_floor(3, -1.0),
])  # fmt: skip
def test_numbers_out_of_their_domain_are_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()
