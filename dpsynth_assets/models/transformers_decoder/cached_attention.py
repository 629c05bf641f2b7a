"""A static key/value cache, its masks, and one-token attention without repeating grouped heads.

Every row has its own write column. Prompts stand at the left edge and are padded on the right, so a
row's column equals its token position and one comparison (`column <= position`) is the whole
attention mask; layers with a sliding window have another, which hides columns that are too old. The
padding is never attended to: the columns up to a row's position were all written by that row's own
tokens.

Stock attention copies every key and value H/G times before each step, which at one query a row is
most of the work. Here the H/G queries that share a head stand where the query positions would be.
"""

from importlib.util import find_spec
from typing import Any

import torch

from dpsynth_assets.models.transformers_decoder import cuda_kernels


class RowwiseCache:
    """Cache that transformers' attention layers take as `past_key_values`.

    It answers the two calls that decoder layers make, `update` and `get_seq_length`, and needs no
    base class; masks and positions are always given explicitly, so no layer asks it for them.

    Attributes:
        keys: L tensors (R, G, P + T, D), allocated when a layer first writes.
        values: Likewise.
    """

    def __init__(self, *, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._rows: Any = slice(0, 0)
        self._first_column = 0
        self._write_columns: torch.Tensor | None = None
        self._visible_columns = 0

    def at_prompt(self, rows: slice, first_column: int = 0) -> "RowwiseCache":
        """Directs the next forward pass to the columns of `rows` from `first_column` (prefill).

        Its queries may attend to all columns before, which hold a prefix, and to its own.
        """
        self._rows, self._first_column, self._write_columns = rows, first_column, None
        return self

    def at_columns(self, columns: torch.Tensor, visible_columns: int) -> "RowwiseCache":
        """Directs the next forward pass to one column of every row: (R,), int64 (decoding)."""
        self._rows = torch.arange(len(columns), device=columns.device)
        self._write_columns, self._visible_columns = columns, visible_columns
        return self

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores one layer's new keys and values; returns what its queries may attend to."""
        if layer_idx == len(self.keys):
            for stored, each in ((self.keys, keys), (self.values, values)):
                shape = (self.rows, each.shape[1], self.columns, each.shape[3])
                stored.append(each.new_zeros(shape))
        stored_keys, stored_values = self.keys[layer_idx], self.values[layer_idx]
        if self._write_columns is None:
            last = self._first_column + keys.shape[2]
            stored_keys[self._rows, :, self._first_column : last] = keys
            stored_values[self._rows, :, self._first_column : last] = values
            if not self._first_column:
                return keys, values
            return stored_keys[self._rows, :, :last], stored_values[self._rows, :, :last]
        stored_keys[self._rows, :, self._write_columns] = keys[:, :, 0]
        stored_values[self._rows, :, self._write_columns] = values[:, :, 0]
        visible = slice(0, self._visible_columns)
        return stored_keys[:, :, visible], stored_values[:, :, visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in use. Unused by our passes, which state positions; part of the protocol."""
        del layer_idx
        return self._visible_columns

    def copy_prefix(self, source: int, rows: slice, columns: int) -> None:
        """Copies the first columns of one row to other rows, in every layer."""
        for stored in (*self.keys, *self.values):
            stored[rows, :, :columns] = stored[source : source + 1, :, :columns].clone()

    def keep(self, rows: torch.Tensor) -> None:
        """Drops every row but `rows` ((R',), int64, in this order) from all layers."""
        self.rows = len(rows)
        for stored in (self.keys, self.values):
            for layer in range(len(stored)):  # one layer at a time: the copy's peak is one layer
                stored[layer] = stored[layer].index_select(0, rows)


FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as transformers names them."""


def sliding_window(config: Any) -> int | None:
    """Columns that a layer with a window attends to, its own included; None without such layers."""
    window = getattr(config, "sliding_window", None) or None
    layers = getattr(config, "layer_types", None)
    return None if layers is not None and SLIDING not in layers else window


def attention_masks(model: Any, positions: torch.Tensor, columns: int) -> Any:
    """Makes what the model takes as `attention_mask`; no value is read back from the device.

    Args:
        model: transformers causal language model.
        positions: (R, Q) int64, the column of each query.
        columns: n, columns of the cache that the pass sees.

    Returns:
        An additive mask (R, 1, Q, n), or {kind of layer: mask} where layers differ.
    """
    config = model.config.get_text_config()
    ages = positions[:, None, :, None] - torch.arange(columns, device=positions.device)

    def mask(hidden: torch.Tensor) -> torch.Tensor:
        shown = torch.zeros(hidden.shape, dtype=model.dtype, device=hidden.device)
        return shown.masked_fill_(hidden, torch.finfo(model.dtype).min)

    window = sliding_window(config)
    if window is None:
        return mask(ages < 0)
    sliding = mask((ages < 0) | (ages >= window))
    if getattr(config, "layer_types", None) is None:
        return sliding
    return {FULL: mask(ages < 0), SLIDING: sliding}


_NAME = "dpsynth_grouped_query"


def grouped_query_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention; queries (R, H, Q, D), keys and values (R, G, n, D).

    Passes of others, which have no mask or a mask of truth values, are left to transformers.

    Args:
        module: The attention layer.
        query: One query a row in decoding, P in prefill.
        key: Keys the row may attend to.
        value: Values.
        attention_mask: Additive, broadcastable to (R, 1, Q, n).
        dropout: Ignored in our passes, which are of inference.
        scaling: Factor of the scores; None for 1/sqrt(D).
        softcap: Scores are softcap·tanh(score / softcap) (Gemma 2); None leaves them as they are.
            Stock scaled dot-product attention ignores it.
        options: Those of transformers, ignored in our passes.

    Returns:
        (R, Q, H, D) and None, as the transformers interface wants.
    """
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None or attention_mask.dtype == torch.bool:
        states = (module, query, key, value, attention_mask)
        return sdpa_attention_forward(*states, dropout, scaling, softcap=softcap, **options)
    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    factor = width**-0.5 if scaling is None else scaling
    if _fits_the_kernel(query, value):
        mask = attention_mask.expand(rows, -1, -1, -1)  # A prefill has one for all its rows.
        attended = cuda_kernels.attend(query, key, value, mask, factor, softcap)
        return attended.view(rows, 1, heads, width), None
    if groups != heads and queries == 1:
        query = query.reshape(rows, groups, heads // groups, width)
    elif groups != heads:
        key = key.repeat_interleave(heads // groups, dim=1)
        value = value.repeat_interleave(heads // groups, dim=1)
    if softcap is None:
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    else:  # Softmax in float32, as Gemma 2 has it.
        scores = torch.matmul(query, key.transpose(-1, -2)).mul_(factor / softcap)
        scores = scores.tanh_().mul_(softcap) + attention_mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        attended = torch.matmul(weights, value)
    return attended.reshape(rows, heads, queries, -1).transpose(1, 2).contiguous(), None


def group_queries(model: Any) -> None:
    """Runs a model's `sdpa` layers through `grouped_query_attention`; leaves other kinds alone.

    It stays so: passes that are not ours compute as before, bit for bit.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config()
    if config._attn_implementation == "sdpa":
        AttentionInterface.register(_NAME, grouped_query_attention)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        config._attn_implementation = _NAME


def _fits_the_kernel(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether queries (R, H, Q, D) fit the kernel: one a row, on a CUDA device."""
    one_query = query.shape[2] == 1 and query.shape[3] == value.shape[3] <= cuda_kernels.WIDEST
    return query.is_cuda and one_query and find_spec("triton") is not None
