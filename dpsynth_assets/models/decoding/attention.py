"""One-token attention without repeating the grouped key/value heads.

Stock attention copies every key and value H/G times before each step, which at one query a row is
most of the work. Here the H/G queries that share a head stand where the query positions would be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NAME = "dpsynth_grouped_query"


def grouped_query_attention(
    module: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> "tuple[torch.Tensor, None]":
    """Scaled dot-product attention; queries (R, H, Q, D), keys and values (R, G, n, D).

    Args:
        module: The attention layer (part of the transformers interface; unused).
        query: One query a row in decoding, P in prefill.
        key: Keys the row may attend to.
        value: Values.
        attention_mask: Additive, broadcastable to (R, 1, Q, n).
        dropout: Ignored: these are inference passes.
        scaling: Factor of the scores; None for 1/sqrt(D).
        softcap: Scores are softcap·tanh(score / softcap) (Gemma 2); None leaves them as they are.
            Stock scaled dot-product attention ignores it.

    Returns:
        (R, Q, H, D) and None, as the transformers interface wants.
    """
    del module, dropout
    from torch.nn.functional import scaled_dot_product_attention

    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    if groups != heads and queries == 1:
        query = query.reshape(rows, groups, heads // groups, width)
    elif groups != heads:
        key = key.repeat_interleave(heads // groups, dim=1)
        value = value.repeat_interleave(heads // groups, dim=1)
    if softcap is None:
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    else:
        attended = _capped_attention(query, key, value, attention_mask, scaling, softcap)
    return attended.reshape(rows, heads, queries, width).transpose(1, 2).contiguous(), None


def _capped_attention(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attention_mask: "torch.Tensor | None",
    scaling: float | None,
    softcap: float,
) -> "torch.Tensor":
    """Attends with capped scores; shapes as above. Softmax in float32, as Gemma 2 has it."""
    import torch

    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query, key.transpose(-1, -2)).mul_(factor / softcap)
    scores = scores.tanh_().mul_(softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)


_entered: dict[int, int] = {}
"""Number of passes, in any thread, that are inside `grouped_queries` of a configuration, by id."""
_entering = Lock()


@contextmanager
def grouped_queries(model: Any) -> Iterator[None]:
    """Runs a model's `sdpa` layers through `grouped_query_attention`; leaves other kinds alone.

    Threads may be inside with the same model: the last one to leave puts its attention back, so no
    pass ever changes kind on its way.
    """
    config = model.config
    with _entering:
        inside = _entered.get(id(config), 0)
        if not inside and config._attn_implementation != "sdpa":
            grouped = False
        else:
            _register()
            _entered[id(config)] = inside + 1
            config._attn_implementation = _NAME
            grouped = True
    try:
        yield
    finally:
        if grouped:
            _leave(config)


def _leave(config: Any) -> None:
    with _entering:
        _entered[id(config)] -= 1
        if not _entered[id(config)]:
            del _entered[id(config)]
            config._attn_implementation = "sdpa"


def _register() -> None:
    from transformers import AttentionInterface

    if _NAME not in AttentionInterface().valid_keys():
        AttentionInterface.register(_NAME, grouped_query_attention)
