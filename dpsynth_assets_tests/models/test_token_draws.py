"""Tokens are drawn from the distribution that the sampling states."""

import numpy as np
import pytest
import torch

from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines import Sampling

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


def draw_by_sorting(logits, uniform, sampling):
    """The definition, in 64 bits: sort all, keep the top k and their nucleus, invert the sum."""
    drawn = []
    for row, share in zip(logits.double().numpy(), uniform.double().numpy(), strict=True):
        order = np.argsort(-row, kind="stable")[: sampling.top_k or len(row)]
        masses = np.exp((row[order] - row[order[0]]) / sampling.temperature)
        masses /= masses.sum()
        masses = np.where(np.cumsum(masses) - masses < sampling.top_p, masses, 0.0)
        kept = np.zeros(len(row))
        kept[order] = masses
        cumulative = np.cumsum(kept)
        drawn.append(np.searchsorted(cumulative, share * cumulative[-1], side="right"))
    return np.array(drawn)


@pytest.mark.parametrize("vocabulary", [100, 4_099, 40_000])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_k": 40, "top_p": 0.7, "temperature": 1.3},
        {"top_p": 0.5},
        {"top_p": 0.999, "temperature": 2.0},  # a nucleus of most of the vocabulary
    ],
    ids=str,
)
def test_draws_are_those_of_the_definition(vocabulary, settings):
    generator = torch.Generator().manual_seed(vocabulary)
    spread = torch.tensor([1.0, 3.0, 6.0]).repeat_interleave(8)[:, None]
    logits = spread * torch.randn((24, vocabulary), generator=generator)
    logits[3, ::2] = -torch.inf
    uniform = torch.from_numpy(uniforms(5, range(24), 1)[:, 0])
    sampling = Sampling(**settings)
    drawn = draw_tokens(logits, uniform, sampling)
    agree = (drawn.numpy() == draw_by_sorting(logits, uniform, sampling)).mean()
    assert agree >= 23 / 24  # a uniform within rounding of a boundary may fall on its other side
    assert logits.gather(1, drawn[:, None]).isfinite().all()


@pytest.mark.parametrize("settings", [{}, {"top_k": 40}, {"top_p": 0.9}], ids=str)
def test_a_rows_token_does_not_depend_on_other_rows(settings):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((16, 20_000), generator=generator)
    logits[:8] *= 8  # half the rows have a nucleus of a few tokens, half of thousands
    uniform = torch.from_numpy(uniforms(1, range(16), 1)[:, 0])
    together = draw_tokens(logits, uniform, Sampling(**settings))
    for row in range(16):
        own = slice(row, row + 1)
        assert draw_tokens(logits[own], uniform[own], Sampling(**settings)) == together[row]
    order = torch.randperm(16, generator=generator)
    permuted = draw_tokens(logits[order], uniform[order], Sampling(**settings))
    assert torch.equal(permuted, together[order])


def test_the_vocabulary_is_not_sorted(monkeypatch):
    widths = []
    sort = torch.Tensor.sort

    def watched(self, *arguments, **options):
        widths.append(self.shape[-1])
        return sort(self, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "sort", watched)
    logits = 5 * torch.randn((4, 40_000), generator=torch.Generator().manual_seed(0))
    for settings in ({"top_p": 0.9}, {"top_k": 100}, {}):
        draw_tokens(logits, torch.full((4,), 0.5), Sampling(**settings))
    assert max(widths) <= 1024
