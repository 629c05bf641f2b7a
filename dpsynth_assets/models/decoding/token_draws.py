"""Seeded draws of next tokens, each row from a stream of its own. Never a privacy mechanism."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

_RESOLUTION = 2**23
"""Uniforms are multiples of 1/2^23 below 1, so that u * mass < mass in float32 too."""
_BLOCK = 64
"""Tokens of a block of probabilities."""
_LEAST_BLOCK = 8
"""Blocks of logits are smaller, the more are looked for; below this all are looked through."""
_FIRST_LOOK = 256
"""The end of a nucleus is looked for among so many of the most probable tokens first."""
_MARGIN = 0.99
"""Covers the rounding of probabilities."""


class DrawRules(Protocol):
    """Settings of a draw: `SamplingRules`, an engine's `Sampling`."""

    @property
    def temperature(self) -> float:
        """Divides the logits; 0 takes the most probable token."""

    @property
    def top_k(self) -> int | None:
        """Draws from so many most probable tokens; None: from all."""

    @property
    def top_p(self) -> float:
        """Draws from the smallest set of tokens with at least this mass; in (0, 1]."""


def uniforms(seed: int, rows: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1), (len(rows), draws) float32; row i from the stream (seed, i)."""
    return np.stack(
        [np.random.default_rng((seed, row)).integers(_RESOLUTION, size=draws) for row in rows]
    ).astype(np.float32) / np.float32(_RESOLUTION)


def draw_tokens(
    logits: "torch.Tensor", uniform: "torch.Tensor", sampling: DrawRules
) -> "torch.Tensor":
    """Draws one token a row: softmax(logits / temperature), its top k, their top-p nucleus.

    On a processor the vocabulary is never sorted, nor added up token by token: the most probable
    tokens are looked for in the blocks whose largest is among the largest, a nucleus among the
    tokens that can be in it, and a draw from all tokens picks a block, then a token in it. A row's
    token depends on its own logits and uniform alone.

    Args:
        logits: (R, V) float32.
        uniform: (R,) float32 in [0, 1).
        sampling: Temperature, top_k, top_p; the most probable token always stays. Of tokens as
            probable as the k-th, as many stay as make k.

    Returns:
        (R,) int64.
    """
    import torch

    if sampling.temperature == 0:
        return logits.argmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        values, tokens = _largest(logits, sampling.top_k)
        return _draw_among(torch.softmax(values, -1), tokens, uniform, sampling.top_p)
    if sampling.top_p < 1:
        return _draw_nucleus(torch.softmax(logits, -1), uniform, sampling.top_p)
    return _draw_any(torch.softmax(logits, -1), uniform)


def _largest(logits: "torch.Tensor", count: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """The largest logits of each row in descending order, (R, count), and their tokens.

    They lie in the `count` blocks with the largest maxima: any other block has a maximum that so
    many logits reach.
    """
    width = logits.shape[-1]
    size = width // (6 * count)
    if size < _LEAST_BLOCK:
        values, tokens = logits.topk(min(count, width), dim=-1)
        return values, tokens
    size = min(_BLOCK, 1 << (size.bit_length() - 1))
    blocks = _in_blocks(logits, -float("inf"), size)  # (R, blocks, size)
    chosen = blocks.amax(-1).topk(count, dim=-1).indices  # (R, count)
    inside = blocks.gather(1, chosen[..., None].expand(-1, -1, size)).flatten(1)
    values, places = inside.topk(count, dim=-1)
    return values, chosen.gather(1, places // size) * size + places % size


def _in_blocks(values: "torch.Tensor", filler: float, size: int = _BLOCK) -> "torch.Tensor":
    """Cuts rows (R, V) into blocks (R, ceil(V / size), size)."""
    from torch.nn.functional import pad

    spare = -values.shape[-1] % size
    filled = pad(values, (0, spare), value=filler) if spare else values
    return filled.reshape(len(values), -1, size)


def _draw_nucleus(
    probabilities: "torch.Tensor", uniform: "torch.Tensor", top_p: float
) -> "torch.Tensor":
    """Draws from each row's nucleus: row by row, but at once where a device sorts rows at once."""
    import torch

    if probabilities.is_cuda:
        values, tokens = probabilities.sort(dim=-1, descending=True)
        return _draw_among(values, tokens, uniform, top_p)
    rows = zip(probabilities.cpu().numpy(), uniform.tolist(), strict=True)
    return torch.tensor([_draw_from_nucleus(row, own, top_p) for row, own in rows])


def _draw_from_nucleus(probabilities: np.ndarray, uniform: float, top_p: float) -> int:
    """Draws from the nucleus of one row (V,).

    Tokens below (1 - top_p) / V hold less than 1 - top_p together: no nucleus needs one, and only
    the values of the others are sorted.
    """
    likely = np.flatnonzero(probabilities >= _MARGIN * (1 - top_p) / len(probabilities))
    values = probabilities[likely]
    least, count = _least_of_nucleus(np.sort(values), top_p)
    ties = np.flatnonzero(values == least)
    inside = values > least
    inside[ties[: count - int(inside.sum())]] = True
    reached = values[inside].cumsum(dtype=np.float64)
    place = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
    return int(likely[inside][min(place, count - 1)])


def _least_of_nucleus(ascending: np.ndarray, top_p: float) -> tuple[float, int]:
    """The least value of a nucleus, and how many values it has; looked for from the top."""
    look = _FIRST_LOOK
    while True:
        top = ascending[-look:][::-1].astype(np.float64)
        mass = top.cumsum()
        if mass[-1] >= top_p or look >= len(ascending):
            count = min(int(np.searchsorted(mass, top_p)) + 1, len(mass))
            return float(top[count - 1]), count
        look *= 4


def _draw_among(
    probabilities: "torch.Tensor", tokens: "torch.Tensor", uniform: "torch.Tensor", top_p: float
) -> "torch.Tensor":
    """Draws from candidates (R, count) in descending order, cut to their nucleus.

    The uniform runs through the candidates in the order of their ids, as through all tokens.
    """
    if top_p < 1:
        outside = probabilities.cumsum(-1) - probabilities >= top_p
        probabilities = probabilities.masked_fill(outside, 0.0)
    tokens, order = tokens.sort(-1)
    return tokens.gather(1, _inverse(probabilities.gather(1, order), uniform))[:, 0]


def _draw_any(probabilities: "torch.Tensor", uniform: "torch.Tensor") -> "torch.Tensor":
    """Draws from all tokens (R, V): a block by its mass, then a token of that block."""
    import torch

    blocks = _in_blocks(probabilities, 0.0)
    masses = blocks.sum(-1).cumsum(-1)  # (R, blocks)
    target = uniform[:, None] * masses[:, -1:]
    block = torch.searchsorted(masses, target, right=True)  # (R, 1)
    before = torch.where(block == 0, 0.0, masses.gather(1, (block - 1).clamp_(min=0)))
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1)
    # The block's own sum may be rounded otherwise: its last possible token then takes the rest.
    rest = torch.minimum(target - before, inside[:, -1:] * (1 - 1 / _RESOLUTION))
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True))[:, 0]


def _inverse(probabilities: "torch.Tensor", uniform: "torch.Tensor") -> "torch.Tensor":
    """First place (R, 1) at which the sum of probabilities exceeds the uniform's share of it."""
    import torch

    cumulative = probabilities.cumsum(dim=-1)
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
