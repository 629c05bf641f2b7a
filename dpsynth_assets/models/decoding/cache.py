"""A static key/value cache in which every row has its own write column.

Prompts stand at the left edge and are padded on the right, so a row's column equals its token
position and one comparison (`column <= position`) is the whole attention mask. The padding is
never attended to: the columns up to a row's position were all written by that row's own tokens.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class RowwiseCache:
    """Cache that transformers' attention layers take as `past_key_values`.

    It answers the two calls that decoder layers make, `update` and `get_seq_length`, and needs no
    base class; masks and positions are always given explicitly, so no layer asks it for them.

    Attributes:
        keys: L tensors (R, G, P + T, D), allocated when a layer first writes.
        values: Same shape.
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

    def at_columns(self, columns: "torch.Tensor", visible_columns: int) -> "RowwiseCache":
        """Directs the next forward pass to one column of every row: (R,), int64 (decoding)."""
        import torch

        self._rows = torch.arange(len(columns), device=columns.device)
        self._write_columns, self._visible_columns = columns, visible_columns
        return self

    def update(
        self, keys: "torch.Tensor", values: "torch.Tensor", layer_idx: int, *_: Any, **__: Any
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Stores one layer's new keys and values; returns what its queries may attend to."""
        if layer_idx == len(self.keys):
            self._allocate(keys)
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

    def keep(self, rows: "torch.Tensor") -> None:
        """Drops every row but `rows` ((R',), int64, in this order) from all layers."""
        self.rows = len(rows)
        for stored in (self.keys, self.values):
            for layer in range(len(stored)):  # one layer at a time: the copy's peak is one layer
                stored[layer] = stored[layer].index_select(0, rows)

    def _allocate(self, like: "torch.Tensor") -> None:
        shape = (self.rows, like.shape[1], self.columns, like.shape[3])
        self.keys.append(like.new_zeros(shape))
        self.values.append(like.new_zeros(shape))
