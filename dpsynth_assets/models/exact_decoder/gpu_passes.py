"""Passes of the exact decoder on a CUDA device: int8 products, and the kernels between them.

Letters as in the package; n' is a number of channels rounded up to what int8 products take, and T'
tokens likewise. Rows beyond T of their operands hold arbitrary numbers: no other row reads them.
"""

from typing import NamedTuple

import torch

from dpsynth_assets.models.exact_decoder.attention import COLUMN_MULTIPLE, KeyValueCache, Stored
from dpsynth_assets.models.exact_decoder.weights import Layer, LlamaShape

_CHANNELS, _TOKENS = 16, 32
"""int8 products on tensor cores take multiples of these."""
_PREFILL_QUERIES = 64
"""Queries, tokens times heads of a group, that attend together in a prefill."""
_LEAST_QUERIES = 16
"""What tensor cores multiply at least; a step fills up with nothing."""
_LOGITS = 1024
"""Logits of a row that one program scales."""


def _whole(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class DeviceProduct:
    """An int8 product on tensor cores: sums of 32 bits, which are exact and have no order."""

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, device: torch.device) -> None:
        """Copies W (out, in) int8 and scale (out,) to a device, filled up with zeros."""
        from torch.nn.functional import pad

        self.outputs, self.inputs = integers.shape
        more = [-size % _CHANNELS for size in integers.shape]
        self.integers = pad(integers, (0, more[1], 0, more[0])).to(device)
        self.scale = pad(scale.float(), (0, more[0])).to(device)
        self.stride = len(self.integers)

    def __call__(self, activations: torch.Tensor) -> torch.Tensor:
        """Maps int8 (T', in') to int32 (T', out')."""
        return torch._int_mm(activations, self.integers.t())


DeviceLayer = Layer[DeviceProduct]


class DeviceStored(Stored):
    """Keys and values of one layer on a device.

    Attributes:
        keys: (R, G, C, D) int8.
        values: (R, G, D, C) int8.
        scales: (R, 2, G, C) float32, of keys and values.
    """

    def first(self, columns: int) -> "DeviceStored":
        """Views of the first columns."""
        return DeviceStored(
            self.keys[:, :, :columns], self.values[..., :columns], self.scales[..., :columns]
        )


class DeviceCache(KeyValueCache):
    """Keys and values on a device."""

    def __init__(self, shape: LlamaShape, *, rows: int, columns: int, device: torch.device) -> None:
        """Makes room for `rows` contexts of `columns` tokens: 2 L G (D + 4) bytes a token."""
        self._device = device
        super().__init__(shape, rows=rows, columns=columns)

    def _empty(self) -> DeviceStored:
        rows, groups, depth = self.rows, self._shape.groups, self._shape.depth
        keys = torch.zeros(
            (rows, groups, self.columns, depth), dtype=torch.int8, device=self._device
        )
        scales = torch.zeros((rows, 2, groups, self.columns), device=self._device)
        return DeviceStored(keys, keys.new_zeros((rows, groups, depth, self.columns)), scales)


class Places(NamedTuple):
    """Where the tokens of a pass lie, and how their queries are grouped, on the device.

    Attributes:
        positions: (T,) int64, columns in the cache.
        rows: (T,) int64, rows of the cache.
        starts: (B,) int64, first token of each block of queries.
        counts: (B,) int64, its tokens, in one row and at consecutive positions.
        owners: (B,) int64, that row.
        tokens: Tokens of a block at most.
        shared: Places of a block for the heads of a group, at least H / G.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    owners: torch.Tensor
    tokens: int
    shared: int

    @classmethod
    def of_step(cls, shape: LlamaShape, positions: torch.Tensor, rows: torch.Tensor) -> "Places":
        """One token a row."""
        starts = torch.arange(len(rows), device=rows.device)
        shared = max(_LEAST_QUERIES, _power(shape.heads // shape.groups))
        return cls(positions, rows, starts, torch.ones_like(starts), rows, 1, shared)

    @classmethod
    def of_rows(
        cls,
        shape: LlamaShape,
        positions: torch.Tensor,
        rows: torch.Tensor,
        lengths: torch.Tensor,
    ) -> "Places":
        """Rows of some tokens each, end to end; tensors on the processor."""
        shared = _power(shape.heads // shape.groups)
        tokens = max(1, _PREFILL_QUERIES // shared)
        blocks = -(-lengths // tokens)  # of each row
        own = torch.arange(len(lengths)).repeat_interleave(blocks)
        inside = (torch.arange(len(own)) - (blocks.cumsum(0) - blocks)[own]) * tokens
        starts = (lengths.cumsum(0) - lengths)[own] + inside
        counts = (lengths[own] - inside).clamp_max(tokens)
        return cls(positions, rows, starts, counts, rows[starts], tokens, shared)

    def to(self, device: torch.device) -> "Places":
        """The same on a device."""
        moved = {name: getattr(self, name).to(device) for name in self._fields[:5]}
        return self._replace(**moved)


class _Pending(NamedTuple):
    """What the next norm adds to the stream: a product's sums, and the scales of its inputs."""

    product: DeviceProduct
    sums: torch.Tensor
    scales: torch.Tensor


class DevicePass:
    """Launches one pass; tensors are those of the device the weights lie on."""

    def __init__(self, shape: LlamaShape, columns: int, places: Places) -> None:
        from dpsynth_assets.models.exact_decoder import gpu_kernels

        self._kernels, self._shape, self._places = gpu_kernels, shape, places
        self._blocks = columns // COLUMN_MULTIPLE
        self._count = len(places.positions)

    def through(
        self,
        layer: DeviceLayer,
        stored: Stored,
        stream: torch.Tensor,
        pending: _Pending | None,
        turning: tuple[torch.Tensor, torch.Tensor],
    ) -> _Pending:
        """One decoder layer; changes `stream` (T, d), and returns what is left to add to it."""
        attended = self.attended(stored, *self.store(layer, stored, stream, pending, turning))
        rounded, scales = self._rounded(attended, layer.attention_output)
        pending = _Pending(layer.attention_output, layer.attention_output(rounded), scales)
        rounded, scales = self.normed(stream, pending, layer.feed_forward_balance)
        hidden, scales = self._gated(layer, layer.gate_and_up(rounded), scales)
        return _Pending(layer.down, layer.down(hidden), scales)

    def normed(
        self, stream: torch.Tensor, pending: _Pending | None, balance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds what is pending to the stream; rounds the normalised rows: (T', d'), (T,)."""
        width = self._shape.width
        padded = _whole(width, _CHANNELS)
        out, scales = self._room(padded, stream)
        product, sums, given = pending or (None, stream, scales)
        self._kernels.add_norm_round[(self._count,)](
            stream, sums, balance if product is None else product.scale, given, balance, out,
            scales, self._shape.norm_epsilon * width,
            WIDTH=width, PADDED=padded, ADDS=pending is not None, **_block(padded),
        )  # fmt: skip
        return out, scales

    def store(
        self,
        layer: DeviceLayer,
        stored: Stored,
        stream: torch.Tensor,
        pending: _Pending | None,
        turning: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores keys and values; returns queries (T, H, 2, D) int8 and their scales (T, H)."""
        shape, product = self._shape, layer.query_key_value
        rounded, scales = self.normed(stream, pending, layer.attention_balance)
        size = (self._count, shape.heads)
        queries = torch.empty((*size, 2, shape.depth), dtype=torch.int8, device=stream.device)
        query_scales = stream.new_empty(size)
        self._kernels.turn_round_store[(self._count, shape.heads + 2 * shape.groups)](
            product(rounded), product.scale, scales, *turning, layer.head_limits,
            layer.head_scales, layer.scale_limits, self._places.positions, self._places.rows,
            queries, query_scales, *stored, self._blocks,
            HEADS=shape.heads, GROUPS=shape.groups, DEPTH=shape.depth, STRIDE=product.stride,
            BLOCK=_power(shape.depth), num_warps=1, **self._kernels.OPTIONS,
        )  # fmt: skip
        return queries, query_scales

    def attended(self, stored: Stored, queries: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Attention of every token's queries, (T, H * D) float32."""
        shape, places = self._shape, self._places
        out = scales.new_empty((self._count, shape.heads * shape.depth))
        self._kernels.attend[(len(places.starts), shape.groups)](
            queries, scales, *stored, places.positions, places.starts, places.counts,
            places.owners, out, self._blocks,
            HEADS=shape.heads, GROUPS=shape.groups, DEPTH=shape.depth,
            DEEP=max(32, _power(shape.depth)), TOKENS=places.tokens, SHARED=places.shared,
            num_warps=4, **self._kernels.OPTIONS,
        )  # fmt: skip
        return out

    def logits(
        self,
        stream: torch.Tensor,
        balance: torch.Tensor,
        vocabulary: DeviceProduct,
    ) -> torch.Tensor:
        """Logits (T, V) float32."""
        rounded, scales = self.normed(stream, None, balance)
        out = stream.new_empty((self._count, vocabulary.outputs))
        self._kernels.scale_sums[(self._count, -(-vocabulary.outputs // _LOGITS))](
            vocabulary(rounded), vocabulary.scale, scales, out,
            N=vocabulary.outputs, STRIDE=vocabulary.stride, BLOCK=_LOGITS, **self._kernels.OPTIONS,
        )  # fmt: skip
        return out

    def _rounded(
        self, rows: torch.Tensor, product: DeviceProduct
    ) -> tuple[torch.Tensor, torch.Tensor]:
        padded = product.integers.shape[1]
        out, scales = self._room(padded, rows)
        self._kernels.round_rows[(self._count,)](
            rows, out, scales, WIDTH=product.inputs, PADDED=padded, **_block(padded)
        )
        return out, scales

    def _gated(
        self, layer: DeviceLayer, sums: torch.Tensor, scales: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        padded = layer.down.integers.shape[1]
        out, out_scales = self._room(padded, scales)
        self._kernels.gate_round[(self._count,)](
            sums, layer.gate_and_up.scale, scales, out, out_scales, HIDDEN=layer.down.inputs,
            STRIDE=layer.gate_and_up.stride, PADDED=padded, **_block(padded),
        )  # fmt: skip
        return out, out_scales

    def _room(self, width: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rounded rows (T', width), and their scales (T,)."""
        tokens = _whole(self._count, _TOKENS)
        rows = torch.empty((tokens, width), dtype=torch.int8, device=like.device)
        return rows, like.new_empty(self._count, dtype=torch.float32)


def added(stream: torch.Tensor, pending: _Pending) -> torch.Tensor:
    """The stream with what is pending, as the next norm would add it."""
    sums = pending.sums[: len(stream), : stream.shape[1]].float()
    return (
        sums.mul_(pending.product.scale[: stream.shape[1]])
        .mul_(pending.scales[:, None])
        .add_(stream)
    )


def _block(width: int) -> dict[str, int]:
    """Lanes and warps of a program for a row: functions of the model."""
    from dpsynth_assets.models.exact_decoder.gpu_kernels import OPTIONS

    lanes = _power(width)
    return {"BLOCK": lanes, "num_warps": min(16, max(1, lanes // 256)), **OPTIONS}
