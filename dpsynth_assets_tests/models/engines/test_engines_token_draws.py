"""Tokens are drawn from the distribution that the sampling states."""

import numpy as np
import pytest
import torch

from dpsynth_assets.models.engines import Sampling
from dpsynth_assets.models.engines.token_draws import draw_tokens, uniforms

PROBABILITIES = torch.tensor([0.4, 0.05, 0.3, 0.15, 0.1])
DRAWS = 4000


def shares(**settings):
    """Share of each token when the uniforms are spread evenly over [0, 1)."""
    logits = PROBABILITIES.log().expand(DRAWS, -1)
    uniform = (torch.arange(DRAWS) + 0.5) / DRAWS
    tokens = draw_tokens(logits, uniform, Sampling(**settings))
    return np.bincount(tokens, minlength=5) / DRAWS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.4, 0.05, 0.3, 0.15, 0.1]),
        ({"temperature": 0}, [1, 0, 0, 0, 0]),
        ({"temperature": 0.5}, [0.16, 0.0025, 0.09, 0.0225, 0.01]),
        ({"top_k": 2}, [0.4, 0, 0.3, 0, 0]),
        ({"top_k": 9}, [0.4, 0.05, 0.3, 0.15, 0.1]),
        ({"top_p": 0.8}, [0.4, 0, 0.3, 0.15, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.8}, [0.4, 0, 0.3, 0, 0]),  # the nucleus of what top_k leaves
    ],
)
def test_shares_are_those_of_the_stated_distribution(settings, expected):
    np.testing.assert_allclose(shares(**settings), np.array(expected) / sum(expected), atol=1e-3)


def test_the_largest_uniform_draws_no_impossible_token():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    largest = torch.tensor([1 - 2.0**-23])
    assert draw_tokens(logits, largest, Sampling()).item() == 1


def test_rows_have_streams_of_their_own():
    first = uniforms(7, [0, 1, 2], 50)
    assert first.dtype == np.float32
    assert first.min() >= 0
    assert first.max() < 1
    np.testing.assert_array_equal(uniforms(7, [2], 20)[0], first[2, :20])
    assert len(np.unique(first)) > 140
    assert (uniforms(8, [0, 1, 2], 50) != first).mean() > 0.9
