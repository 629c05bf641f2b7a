"""The exact decoder on a CUDA device: the same quantized weights, and logits with the same law.

Sums of products are of 32 bits on int8 tensor cores, and so exact. Every other operation is on one
number at a time, or over one row in an order that no other row moves. Logits are not, bit for bit,
those of a processor: a device has its own exponential and root.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache as computed_once, partial
from typing import Any

import torch

from dpsynth_assets.models.decoding.protocol import COUNTS, Contexts, Reading
from dpsynth_assets.models.exact_decoder.attention import (
    COLUMN_MULTIPLE,
    WEIGHT_TOTAL,
    KeyValueCache,
)
from dpsynth_assets.models.exact_decoder.contexts import ExactContexts
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, Pack, StreamCallback
from dpsynth_assets.models.exact_decoder.gpu_passes import (
    DeviceCache,
    DevicePass,
    DeviceProduct,
    DeviceStored,
    Places,
    added,
)
from dpsynth_assets.models.exact_decoder.integer_products import LIMIT, ExactDecoderError
from dpsynth_assets.models.exact_decoder.weights import LlamaShape, Table, laid_out
from dpsynth_assets.models.transformers_decoder.decoder import CapturedPasses

_TOKENS_PER_PACK = 8192
"""Tokens of one prefill pass: enough for every core of a large device."""
_ROW_MULTIPLE = 32
"""Steps have a multiple of this many rows, so that few graphs are captured."""
_TRIED_ROWS, _TRIED_QUERIES = 32, 7


class DeviceDecoder(ExactDecoder):
    """A Llama-shaped model in integers on a CUDA device."""

    engine_name = "exact integers on tensor cores"

    def __init__(
        self,
        shape: LlamaShape,
        embeddings: torch.Tensor,
        quantized: Table,
        device: torch.device | str,
    ) -> None:
        """Copies quantized weights to a device, and tries it.

        Args:
            shape: Numbers of the model.
            embeddings: (V, d).
            quantized: What `quantized_table` returned.
            device: A CUDA device; the processor where Triton interprets its kernels.

        Raises:
            ExactDecoderError: The device computes no exact sums.
        """
        place = torch.device(device)
        product = partial(DeviceProduct, device=place)
        weights: Any = laid_out(shape, embeddings, quantized, product, place, shape.vocabulary)
        super().__init__(shape, weights)
        self.device, self.device_weights = place, weights
        self._cosines, self._sines = self._cosines.to(place), self._sines.to(place)
        sizes = {each.shape for name, each in quantized.items() if name.endswith(".integers")}
        with self.chosen():
            _require_exact(str(place), shape, tuple(sorted(map(tuple, sizes))))

    def new_cache(self, *, rows: int, columns: int) -> DeviceCache:
        """Makes room for keys and values on the device."""
        return DeviceCache(self.shape, rows=rows, columns=columns, device=self.device)

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> Contexts:
        return DeviceContexts(self, prompts, reading)

    def forward(
        self,
        cache: KeyValueCache,
        pack: Pack,
        *,
        on_layer: StreamCallback | None = None,
        layers: int | None = None,
        fill: bool = False,
        observe: Any = None,
    ) -> torch.Tensor:
        """See `ExactDecoder.forward`; activations are not observed."""
        del observe
        lengths = torch.tensor(list(pack.lengths))
        places = Places.of_rows(self.shape, pack.positions, pack.rows, lengths).to(self.device)
        tokens = pack.tokens.to(self.device)
        return self.run(cache, tokens, places, on_layer=on_layer, layers=layers, fill=fill)

    def logits(self, stream: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `ExactDecoder.logits`."""
        nowhere = torch.empty(len(stream), dtype=torch.long, device=self.device)
        places = Places(nowhere, nowhere, nowhere, nowhere, nowhere, 1, 1)
        own = self.device_weights
        with self.chosen():
            passed = DevicePass(self.shape, 0, places)
            logits = passed.logits(stream, own.final_norm, own.vocabulary[0])
        return logits if out is None else out.copy_(logits)

    def run(
        self,
        cache: KeyValueCache,
        tokens: torch.Tensor,
        places: Places,
        *,
        on_layer: StreamCallback | None = None,
        layers: int | None = None,
        fill: bool = False,
    ) -> torch.Tensor:
        """Computes the residual stream (T, d) of tokens (T,) on the device.

        Args:
            cache: Keys and values of all rows, on the device.
            tokens: (T,) int64, on the device.
            places: Where they lie.
            on_layer: Called with the stream as it leaves each layer.
            layers: Layers that are computed; None for all.
            fill: Whether nothing beyond keys and values is wanted.
        """
        own, turning = self.device_weights, (self._cosines, self._sines)
        with self.chosen():
            passed = DevicePass(self.shape, cache.columns, places)
            stream, pending = own.embeddings[tokens], None
            for index, layer in enumerate(own.layers[:layers]):
                state = (layer, cache.layers[index], stream, pending, turning)
                if fill and index == self.shape.layers - 1:
                    passed.store(*state)
                    return stream
                pending = passed.through(*state)
                if on_layer is not None:
                    stream, pending = added(stream, pending), None
                    on_layer(index, stream)
            return stream if pending is None else added(stream, pending)

    def chosen(self) -> Any:
        """Makes the device the current one, where there are several."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()


class DeviceContexts(ExactContexts):
    """R prompts on a device, with their documents; see `ExactContexts`.

    A step is captured as a graph once for each multiple of 32 rows. Rows that fill it up are in
    a spare row of the cache. Dropped contexts leave their row of the cache unread.
    """

    _decoder: DeviceDecoder

    def __init__(
        self,
        decoder: DeviceDecoder,
        prompts: Sequence[Sequence[int]],
        reading: Reading,
        *,
        tokens_per_pack: int = _TOKENS_PER_PACK,
    ) -> None:
        """See `ExactContexts`."""
        self._device, self._columns = decoder.device, reading.columns
        self._rows = torch.arange(len(prompts), device=self._device)
        self._captured = CapturedPasses() if self._device.type == "cuda" else None
        super().__init__(decoder, prompts, reading, threads=1, tokens_per_pack=tokens_per_pack)
        self._added = {layer: each.to(self._device) for layer, each in self._added.items()}

    def next_logits(self, tokens: torch.Tensor, generated: torch.Tensor) -> torch.Tensor:
        """Advances every row by one token; logits last until the next step."""
        from torch.nn.functional import pad

        rows = len(self)
        if not rows:
            return torch.zeros((0, self._decoder.shape.vocabulary), device=self._device)
        COUNTS["written"] += rows
        tokens, generated = tokens.to(self._device), generated.to(self._device)
        tokens = torch.where(generated == 0, self._last_tokens, tokens)
        spare = (0, -rows % _ROW_MULTIPLE)
        nobody = self._cache.rows - 1
        columns = pad(self._lengths - 1 + generated, spare)
        places = torch.stack([columns, pad(self._rows, spare, value=nobody)])
        with torch.no_grad(), self._decoder.chosen():
            inputs = (pad(tokens, spare), places, 0)
            if self._captured is None:
                return self._step(*inputs)[:rows]
            return self._captured(self._step, *inputs)[:rows]

    def _step(self, tokens: torch.Tensor, places: torch.Tensor, _visible: int) -> torch.Tensor:
        where = Places.of_step(self._decoder.shape, *places.unbind())
        stream = self._decoder.run(self._cache, tokens, where, on_layer=self._adding())
        return self._decoder.logits(stream)

    def _room(self, rows: int) -> KeyValueCache:
        return self._decoder.new_cache(rows=rows + 1, columns=self._columns)

    def _take(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._lengths = self._lengths.to(self._device)[index]
        self._last_tokens = self._last_tokens.to(self._device)[index]
        self._rows = self._rows[index]
        if len(set(rows)) < len(rows):  # Documents of one prompt each need a row.
            self._cache.keep([*self._rows.tolist(), self._cache.rows - 1])
            self._rows = torch.arange(len(rows), device=self._device)
            if self._captured is not None:
                self._captured.forget()


@computed_once
def _require_exact(device: str, shape: LlamaShape, sizes: tuple[tuple[int, int], ...]) -> None:
    """Tries products at their largest and at random, and attention; once a process.

    Raises:
        ExactDecoderError: A sum is wrong, or there is none.
    """
    place = torch.device(device)
    try:
        right = all(_multiplies(place, size) for size in sizes) and _attends(place, shape)
    except RuntimeError as error:  # No such product, or no Triton for this device.
        raise _refusal(type(error).__name__) from None
    if not right:
        raise _refusal("wrong sums")


def _refusal(got: str) -> ExactDecoderError:
    return ExactDecoderError(
        f"Expected a CUDA device with exact int8 products, got {got}; write device: cpu, or "
        "decoder: transformers."
    )


def _multiplies(device: torch.device, shape: tuple[int, int]) -> bool:
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> torch.Tensor:
        return torch.randint(-LIMIT, LIMIT + 1, size, generator=generator, dtype=torch.int8)

    weight, rows = drawn(*shape), drawn(_TRIED_ROWS, shape[1])
    weight[0], rows[0], rows[1] = LIMIT, LIMIT, -LIMIT  # the largest sums there are
    product = DeviceProduct(weight, torch.ones(shape[0]), device)
    padded = torch.zeros((_TRIED_ROWS, product.integers.shape[1]), dtype=torch.int8)
    padded[:, : shape[1]] = rows
    got = product(padded.to(device))[:, : shape[0]].cpu()
    return torch.equal(got.double(), rows.double() @ weight.double().t())


def _attends(device: torch.device, shape: LlamaShape) -> bool:
    """Whether queries together and one by one give the same bits, near those of float64."""
    generator = torch.Generator().manual_seed(0)
    drawn = partial(torch.randint, generator=generator, dtype=torch.int8)
    heads, groups, depth = shape.heads, shape.groups, shape.depth
    positions = torch.arange(_TRIED_QUERIES) + COLUMN_MULTIPLE - 3  # two blocks of columns
    queries = drawn(-31, 32, (_TRIED_QUERIES, heads, 2, depth))
    keys = drawn(-LIMIT, LIMIT + 1, (1, groups, 2 * COLUMN_MULTIPLE, depth))
    values = drawn(-LIMIT, LIMIT + 1, (1, groups, depth, 2 * COLUMN_MULTIPLE))
    values[:, :, 0] = LIMIT
    scales = torch.full((1, 2, groups, keys.shape[2]), 1e-3)
    scales[:, 1] = WEIGHT_TOTAL
    stored = DeviceStored(*(each.to(device) for each in (keys, values, scales)))
    rows, own = torch.zeros_like(positions), torch.full((_TRIED_QUERIES, heads), 1e-3)
    together = Places.of_rows(shape, positions, rows, torch.tensor([_TRIED_QUERIES])).to(device)
    apart = Places.of_step(shape, positions.to(device), rows.to(device))
    got, other = (
        DevicePass(shape, keys.shape[2], places)
        .attended(stored, queries.to(device), own.to(device))
        .cpu()
        for places in (together, apart)
    )
    whole = (queries[:, :, 0] * 64.0 + queries[:, :, 1]).double().unflatten(1, (groups, -1))
    scores = torch.einsum("tghd,gcd->tghc", whole, keys[0].double()) * 1e-6
    hidden = torch.arange(keys.shape[2]) > positions[:, None]
    shares = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
    expected = torch.einsum("tghc,gdc->tghd", shares, values[0].double()).flatten(1) * WEIGHT_TOTAL
    near = (got - expected).abs().max() < 1e-4 * LIMIT * WEIGHT_TOTAL
    return bool(near) and torch.equal(got.view(torch.int32), other.view(torch.int32))
