"""Seeded draws of next tokens, each row from a stream of its own. Never a privacy mechanism."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.engines.protocol import Sampling

if TYPE_CHECKING:
    import torch

_RESOLUTION = 2**23
"""Uniforms are multiples of 1/2^23 below 1, so that u * mass < mass in float32 too."""


def uniforms(seed: int, rows: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1), (len(rows), draws) float32; row i from the stream (seed, i)."""
    return np.stack(
        [np.random.default_rng((seed, row)).integers(_RESOLUTION, size=draws) for row in rows]
    ).astype(np.float32) / np.float32(_RESOLUTION)


def draw_tokens(
    logits: "torch.Tensor", uniform: "torch.Tensor", sampling: Sampling
) -> "torch.Tensor":
    """Draws one token a row: softmax(logits / temperature), its top k, their top-p nucleus.

    Args:
        logits: (R, V) float32.
        uniform: (R,) float32 in [0, 1).
        sampling: Temperature, top_k, top_p; the most probable token always stays.

    Returns:
        (R,) int64.
    """
    import torch

    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = torch.softmax(logits, dim=-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        outside = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        probabilities.scatter_(-1, order, ordered.masked_fill(outside, 0.0))
    cumulative = probabilities.cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return drawn[:, 0].clamp_(max=logits.shape[-1] - 1)
