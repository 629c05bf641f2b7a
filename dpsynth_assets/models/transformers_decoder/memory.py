"""Computes the device memory that decoding needs, from public numbers, before anything runs.

Weights are not counted: they are in memory already where a number of rows is asked for.

Letters: R rows, n rows of a pass, P prompt columns, T new tokens, L layers, H query heads, G heads
of keys and values, D head width, d width of the stream, I inner width, V vocabulary.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROW_MULTIPLE = 16
"""Decoding passes have a multiple of this many rows, so kernels see few distinct shapes."""
COLUMN_MULTIPLE = 64
"""On CUDA, passes see a multiple of this many columns: few graphs, and aligned masks."""
_FLOAT = 4
"""Bytes of float32."""
_SHARE = 0.95
"""Of free memory that is counted on: allocators leave gaps."""


def filled_up(count: int, multiple: int) -> int:
    """Rounds up to whole multiples."""
    return -(-count // multiple) * multiple


def seen_columns(columns: int, device_type: str) -> int:
    """Rounds a number of cache columns up to what a pass on a type of device sees."""
    return filled_up(columns, COLUMN_MULTIPLE) if device_type == "cuda" else columns


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a model, off its transformers configuration."""

    layers: int
    heads: int
    groups: int
    width: int
    stream: int
    inner: int
    vocabulary: int
    caps_scores: bool
    caps_logits: bool

    @classmethod
    def of(cls, config: Any) -> "_Sizes":
        text = config.get_text_config()
        heads, stream = text.num_attention_heads, text.hidden_size
        return cls(
            layers=text.num_hidden_layers,
            heads=heads,
            groups=getattr(text, "num_key_value_heads", None) or heads,
            width=getattr(text, "head_dim", None) or stream // heads,
            stream=stream,
            inner=getattr(text, "intermediate_size", None)
            or getattr(text, "n_inner", None)
            or 4 * stream,
            vocabulary=text.vocab_size,
            caps_scores=getattr(text, "attn_logit_softcapping", None) is not None,
            caps_logits=getattr(text, "final_logit_softcapping", None) is not None,
        )

    def score_bytes(self, item: int) -> int:
        """Bytes of an attention score: written out where scores are capped, with its softmax.

        Below float32 a copy in float32 is made first.
        """
        return (item + _FLOAT + (_FLOAT if item < _FLOAT else 0)) if self.caps_scores else 0


def cache_bytes(
    config: Any,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    device_type: str = "cuda",
) -> int:
    """Counts the keys and values of R rows, filled up as `PackedContexts` fills them.

    Args:
        config: The transformers configuration.
        rows: R, contexts.
        columns: P + T, tokens of the longest row.
        dtype: Number type of the weights.
        device_type: `cuda`, where columns are filled up as well, or `cpu`.
    """
    sizes = _Sizes.of(config)
    token = 2 * sizes.layers * sizes.groups * sizes.width * dtype.itemsize
    return token * filled_up(rows, ROW_MULTIPLE) * seen_columns(columns, device_type)


def peak_bytes(
    config: Any,
    rows: int,
    prompt_columns: int,
    new_tokens: int,
    dtype: torch.dtype,
    device_type: str = "cuda",
) -> int:
    """Counts what contexts take at most besides the weights: cache, and the largest pass.

    The largest is a prefill pass, the copy that drops filler rows, or a decoding pass with its
    logits. On CUDA a graph keeps the memory of a pass. Where only the sum of prompt and document is
    known, a prompt as long as the whole bounds it.

    Args:
        config: The transformers configuration.
        rows: R, contexts of one `PackedContexts`.
        prompt_columns: P, tokens of a prompt.
        new_tokens: T, tokens of a document at most.
        dtype: Number type of the weights.
        device_type: `cuda` or `cpu`.

    Returns:
        Bytes. Prompts of several public prefixes take up to 15 rows more for each.
    """
    if not rows:
        return 0
    sizes, columns = _Sizes.of(config), prompt_columns + new_tokens
    cache = cache_bytes(config, rows, columns, dtype, device_type)
    passes = (
        _prefill_bytes(sizes, ROW_MULTIPLE, prompt_columns, dtype.itemsize),
        cache // (2 * sizes.layers),
        _step_bytes(sizes, filled_up(rows, ROW_MULTIPLE), columns, dtype.itemsize),
    )
    return cache + max(passes)


def rows_within(room: int, taken: Callable[[int, int], int], most: int, tokens: int) -> int:
    """Finds how many of `most` rows fit.

    Args:
        room: Bytes.
        taken: (rows, tokens) -> bytes, growing with the rows.
        most: Rows asked for.
        tokens: Of a row.
    """
    if taken(most, tokens) <= room:
        return most
    # What fits is a whole number of filled-up passes: rows between take as much.
    passes = bisect_right(
        range(1, most // ROW_MULTIPLE + 1), room, key=lambda n: taken(n * ROW_MULTIPLE, tokens)
    )
    return passes * ROW_MULTIPLE


def room_on(device: torch.device, besides: int = 0) -> int:
    """Reads the bytes that a device of this machine can give now, less `besides` and gaps."""
    from dpsynth_assets.models.language_model import free_bytes

    free = free_bytes(str(device))
    if device.type == "cuda":  # What the allocator holds and does not use is free as well.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * max(0, free - besides))


def _prefill_bytes(sizes: _Sizes, rows: int, columns: int, item: int) -> int:
    """Counts the activations of a layer that reads prompts: its MLP, or its attention."""
    tokens, stream = rows * columns, sizes.stream * item
    heads, groups = sizes.heads * sizes.width * item, sizes.groups * sizes.width * item
    norm = 4 * stream + 3 * sizes.stream * _FLOAT
    inner = 4 * stream + 3 * sizes.inner * item
    attention = 3 * stream + 4 * heads + 2 * groups
    scores = rows * sizes.heads * columns**2 * sizes.score_bytes(item)
    return max(tokens * max(norm, inner), tokens * attention + scores)


def _step_bytes(sizes: _Sizes, rows: int, columns: int, item: int) -> int:
    """Counts a decoding pass: logits as the model makes them and in float32, and a layer."""
    made = sizes.vocabulary * item if item < _FLOAT else 0
    capped = 2 * sizes.vocabulary * item if sizes.caps_logits else 0
    logits = max(made + sizes.vocabulary * _FLOAT, capped)
    layer = 2 * sizes.stream * item + max(3 * sizes.inner * item, 3 * sizes.stream * _FLOAT)
    layer = max(layer, columns * (1 + 2 * item))
    layer = max(layer, sizes.heads * columns * sizes.score_bytes(item))
    return rows * max(logits, layer)
