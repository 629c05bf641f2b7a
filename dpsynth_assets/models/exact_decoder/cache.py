"""Keys and values of rows, 8 bits a number, as tables whose weighted rows PyTorch adds up."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dpsynth_assets.models.exact_decoder.integer_products import ZERO_POINT

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.exact_decoder.shapes import LlamaShape


COLUMN_MULTIPLE = 64
"""Attention reads a multiple of this many columns: whole vectors of every kernel."""
TAIL = 8
"""Bytes after each row of a table: its scale 1 and its bias -128, float32."""


def whole_columns(columns: int) -> int:
    """Rounds a number of columns up to what attention reads."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


class Stored(NamedTuple):
    """Keys and values of one layer: bytes with 128 added, rows with the tail of a table.

    Attributes:
        keys: (R, G, D, C + 8) uint8.
        values: (R, G, C, D + 8) uint8.
        scales: (R, 2, G, C) float32, of keys and values.
    """

    keys: "torch.Tensor"
    values: "torch.Tensor"
    scales: "torch.Tensor"

    def first(self, columns: int) -> "Stored":
        """Views of the first columns."""
        return Stored(
            self.keys[..., :columns], self.values[:, :, :columns], self.scales[..., :columns]
        )


class KeyValueCache:
    """Integers and scales of keys and values, layer by layer.

    A key or value of one token and head is 8-bit integers times one scale. Columns behind a row's
    position are never attended to.

    Attributes:
        rows: R contexts.
        columns: C of each, all of which attention reads.
        layers: L layers.
    """

    def __init__(self, shape: "LlamaShape", *, rows: int, columns: int) -> None:
        """Makes room for `rows` contexts of `columns` tokens: some 2 L G (D + 8) bytes a token."""
        self.rows, self.columns, self._shape = rows, whole_columns(columns), shape
        self.layers = [self._empty() for _ in range(shape.layers)]

    def _empty(self) -> Stored:
        import torch

        rows, groups, depth = self.rows, self._shape.groups, self._shape.depth
        tail = torch.tensor([1.0, -ZERO_POINT]).view(torch.uint8)
        keys = torch.zeros((rows, groups, depth, self.columns + TAIL), dtype=torch.uint8)
        values = torch.zeros((rows, groups, self.columns, depth + TAIL), dtype=torch.uint8)
        keys[..., -TAIL:] = values[..., -TAIL:] = tail
        return Stored(keys, values, torch.zeros((rows, 2, groups, self.columns)))

    def widen(self, columns: int) -> None:
        """Makes room for so many columns, layer by layer, where there is less."""
        before, self.columns = self.columns, max(self.columns, whole_columns(columns))
        if self.columns > before:
            for index, stored in enumerate(self.layers):
                self.layers[index] = self._empty()
                _copy(stored.first(before), self.layers[index].first(before))

    def write(
        self,
        layer: int,
        rows: "torch.Tensor",
        positions: "torch.Tensor",
        integers: "torch.Tensor",
        scales: "torch.Tensor",
    ) -> None:
        """Stores T tokens of `rows` at `positions`, (T,) each.

        Args:
            layer: Which layer's.
            rows: Row of the cache of each token.
            positions: Its column.
            integers: Bytes (T, 2G, D), keys before values.
            scales: (T, 2G).
        """
        own, groups, depth = self.layers[layer], self._shape.groups, self._shape.depth
        own.keys[rows, :, :, positions] = integers[:, :groups]
        own.values[rows, :, positions, :depth] = integers[:, groups:]
        own.scales[rows, :, :, positions] = scales.view(-1, 2, groups)

    def copy_prefix(self, source: int, rows: slice, columns: int) -> None:
        """Copies the first columns of one row to other rows, in every layer."""
        for layer in self.layers:
            for stored in layer.first(columns):
                stored[rows] = stored[source : source + 1].clone()

    def begin_with(self, prefix: "KeyValueCache", columns: int) -> None:
        """Copies the first columns of another cache of one row to every row."""
        for own, read in zip(self.layers, prefix.layers, strict=True):
            _copy(read.first(columns), own.first(columns))

    def keep(self, rows: Sequence[int]) -> None:
        """Drops every row but these, in this order; one layer at a time, so the peak is one."""
        import torch

        index = torch.tensor(rows, dtype=torch.long)
        self.rows = len(index)
        for layer, stored in enumerate(self.layers):
            self.layers[layer] = Stored(*(each.index_select(0, index) for each in stored))


def _copy(source: Stored, target: Stored) -> None:
    for read, written in zip(source, target, strict=True):
        written.copy_(read)
