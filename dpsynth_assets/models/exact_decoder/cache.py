"""Keys and values of every row, 8 bits a number, in columns of a public constant count."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.exact_decoder.shapes import LlamaShape

COLUMN_MULTIPLE = 32
"""Attention reads a multiple of this many columns: whole vectors of every kernel."""


def whole_columns(columns: int) -> int:
    """Rounds a number of columns up to what attention reads."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


class KeyValueCache:
    """Integers and scales of keys (kind 0) and values (kind 1), layer by layer.

    A key or value of one token and head is 8-bit integers times one scale. Columns behind a row's
    position are never attended to.

    Attributes:
        integers: L tensors (R, 2, G, C, D), int8.
        scales: L tensors (R, 2, G, C), float32.
    """

    def __init__(self, shape: "LlamaShape", *, rows: int, columns: int) -> None:
        """Makes room for `rows` contexts of `columns` tokens: 2 L G (D + 4) bytes a token."""
        import torch

        self.rows, self.columns = rows, whole_columns(columns)
        sizes = (rows, 2, shape.groups, self.columns)
        self.integers = [
            torch.zeros((*sizes, shape.depth), dtype=torch.int8) for _ in range(shape.layers)
        ]
        self.scales = [torch.zeros(sizes) for _ in range(shape.layers)]

    def slots(self, rows: "torch.Tensor", positions: "torch.Tensor") -> "torch.Tensor":
        """Places of T tokens' keys and values in a layer's flat tensors: (T * 2 * G,) int64."""
        import torch

        kinds = 2 * self.integers[0].shape[2]
        heads = rows[:, None] * kinds + torch.arange(kinds)
        return (heads * self.columns + positions[:, None]).reshape(-1)

    def write(
        self, layer: int, slots: "torch.Tensor", integers: "torch.Tensor", scales: "torch.Tensor"
    ) -> None:
        """Stores T tokens: integers (T, 2G, D) int8 and scales (T, 2G), keys before values."""
        depth = integers.shape[-1]
        self.integers[layer].view(-1, depth).index_copy_(0, slots, integers.view(-1, depth))
        self.scales[layer].view(-1).index_copy_(0, slots, scales.reshape(-1))

    def copy_prefix(self, source: int, rows: slice, columns: int) -> None:
        """Copies the first columns of one row to other rows, in every layer."""
        for stored in (*self.integers, *self.scales):
            stored[rows, :, :, :columns] = stored[source : source + 1, :, :, :columns].clone()

    def keep(self, rows: Sequence[int]) -> None:
        """Drops every row but these, in this order; one layer at a time, so the peak is one."""
        import torch

        index = torch.tensor(rows, dtype=torch.long)
        self.rows = len(index)
        for stored in (self.integers, self.scales):
            for layer in range(len(stored)):
                stored[layer] = stored[layer].index_select(0, index)
