"""Seeded draws of next tokens, each row from a stream of its own. Never a privacy mechanism."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.cpu import is_plain, largest_tokens, map_on_cpu_threads

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.engines.protocol import Sampling

_RESOLUTION = 2**23
"""Uniforms are multiples of 1/2^23 below 1, so that u * mass < mass in float32 too."""
_BLOCK = 64
"""Tokens of a block of probabilities."""
_ENTRIES = 1 << 20
"""Logits of the rows that a processor's thread works on at a time: 4 MiB."""
_MARGIN = 0.99
"""Covers the rounding of probabilities."""
_FIRST_LOOK = 8
"""Probabilities this many times as large as any nucleus could need are looked through first."""


def uniforms(seed: int, rows: Sequence[int], draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1), (len(rows), draws) float32; row i from the stream (seed, i)."""
    return np.stack(
        [np.random.default_rng((seed, row)).integers(_RESOLUTION, size=draws) for row in rows]
    ).astype(np.float32) / np.float32(_RESOLUTION)


def draw_tokens(
    logits: "torch.Tensor", uniform: "torch.Tensor", sampling: "Sampling"
) -> "torch.Tensor":
    """Draws one token a row: softmax(logits / temperature), its top k, their top-p nucleus.

    The uniform runs through the tokens in the order of their ids. On a processor the vocabulary is
    never sorted, nor added up token by token, and rows are shared out to threads that draw alone. A
    row's token depends on its own logits and uniform alone.

    Args:
        logits: (R, V) float32.
        uniform: (R,) float32 in [0, 1).
        sampling: Temperature, top_k, top_p; the most probable token always stays. Of tokens as
            probable as the k-th, or as the last of the nucleus, the first stay.

    Returns:
        (R,) int64.
    """
    import torch

    if not is_plain(logits):
        return _draw(logits, uniform, sampling)
    drawn = np.zeros(len(logits), dtype=np.int64)

    def draw(own: slice) -> None:
        drawn[own] = _draw(logits[own], uniform[own], sampling).numpy()

    together = max(1, _ENTRIES // logits.shape[1])
    parts = [slice(start, start + together) for start in range(0, len(logits), together)]
    map_on_cpu_threads(draw, parts, logits.numel())
    return torch.from_numpy(drawn)


def _draw(logits: "torch.Tensor", uniform: "torch.Tensor", sampling: "Sampling") -> "torch.Tensor":
    """Draws (n,) tokens of (n, V) logits; see `draw_tokens`."""
    import torch

    if sampling.temperature == 0:
        return _most_probable(logits)
    tokens = None
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        tokens = largest_tokens(logits, sampling.top_k)
        logits = logits.gather(1, tokens)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    probabilities = torch.softmax(logits, -1)
    if sampling.top_p < 1:
        drawn = _draw_from_nuclei(probabilities, uniform, sampling.top_p)
    else:
        drawn = _draw_any(probabilities, uniform)
    return drawn if tokens is None else tokens.gather(1, drawn[:, None])[:, 0]


def _most_probable(logits: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.from_numpy(logits.numpy().argmax(1)) if is_plain(logits) else logits.argmax(-1)


def _draw_from_nuclei(
    probabilities: "torch.Tensor", uniform: "torch.Tensor", top_p: float
) -> "torch.Tensor":
    """Draws from each row's nucleus: row by row, but at once where a device sorts rows at once."""
    import torch

    if is_plain(probabilities):
        rows = zip(probabilities.numpy(), uniform.tolist(), strict=True)
        return torch.tensor([_draw_from_nucleus(row, own, top_p) for row, own in rows])
    values, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    outside = values.cumsum(-1) - values >= top_p
    return _draw_any(probabilities.scatter(1, tokens, values.masked_fill(outside, 0.0)), uniform)


def _draw_from_nucleus(probabilities: np.ndarray, uniform: float, top_p: float) -> int:
    """Draws from the nucleus of one row (V,).

    Tokens below (1 - top_p) / V hold less than 1 - top_p together: no nucleus needs one, and most
    need none of those that are a few times as probable.
    """
    import torch

    needed = _MARGIN * (1 - top_p) / len(probabilities)
    for least in (_FIRST_LOOK * needed, needed):
        likely = np.flatnonzero(probabilities >= np.float32(least))
        values = probabilities[likely]
        if values.sum(dtype=np.float64) >= top_p:
            break
    if not len(values):
        raise ValueError("Expected a finite logit in every row to draw from, got a row without.")
    inside = _nucleus(values, top_p)
    mass = torch.from_numpy(values[inside]).cumsum(0, dtype=torch.float64).numpy()
    place = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return int(likely[inside[min(place, len(inside) - 1)]])


def _nucleus(values: np.ndarray, top_p: float) -> np.ndarray:
    """Lists the ascending places of the fewest of (n,) probabilities that reach top_p together.

    Of equal ones it takes the first, and everything where all together do not reach it.
    """
    own = np.sort(values)[::-1]
    count = min(int(np.searchsorted(own.cumsum(dtype=np.float64), top_p)), len(own) - 1) + 1
    inside = np.flatnonzero(values >= own[count - 1])
    if surplus := len(inside) - count:
        inside = np.delete(inside, np.flatnonzero(values[inside] == own[count - 1])[-surplus:])
    return inside


def _draw_any(probabilities: "torch.Tensor", uniform: "torch.Tensor") -> "torch.Tensor":
    """Draws from all tokens (R, V): a block by its mass, then a token of that block."""
    import torch

    blocks = _in_blocks(probabilities)
    masses = blocks.sum(-1).cumsum(-1)  # (R, blocks)
    target = uniform[:, None] * masses[:, -1:]
    block = torch.searchsorted(masses, target, right=True)  # (R, 1)
    before = torch.where(block == 0, 0.0, masses.gather(1, (block - 1).clamp_(min=0)))
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1)
    # The block's own sum may be rounded otherwise: its last possible token then takes the rest.
    rest = torch.minimum(target - before, inside[:, -1:] * (1 - 1 / _RESOLUTION))
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True))[:, 0]


def _in_blocks(probabilities: "torch.Tensor") -> "torch.Tensor":
    """Cuts rows (R, V) into blocks (R, ceil(V / 64), 64); zeros fill the last."""
    from torch.nn.functional import pad

    spare = -probabilities.shape[-1] % _BLOCK
    filled = pad(probabilities, (0, spare)) if spare else probabilities
    return filled.reshape(len(probabilities), -1, _BLOCK)
