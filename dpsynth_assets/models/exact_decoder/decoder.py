"""Forward pass of the exact decoder: tokens of some rows in, keys and values cached, logits out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from dpsynth_assets.models.decoding.protocol import Contexts, Decoder, Reading, StateReading
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.exact_decoder.attention import KeyValueCache, Window, attend
from dpsynth_assets.models.exact_decoder.integer_products import (
    ROUNDING,
    SMALLEST,
    IntegerProduct,
    quantized_rows,
)
from dpsynth_assets.models.exact_decoder.weights import (
    ATTENTION,
    DOWN,
    EMBEDDINGS,
    FEED_FORWARD,
    FINAL,
    Layer,
    LlamaShape,
    Weights,
    integer_weights,
    quantized_table,
)

StreamCallback = Callable[[int, torch.Tensor], None]
"""Called with a layer's number and the stream (T, d) as it leaves it; may change it in place."""


@dataclass(frozen=True)
class Pack:
    """Tokens of one pass: rows end to end, without padding.

    Attributes:
        first_row: Row of the cache that the first tokens belong to; the others follow.
        lengths: Tokens of each of the B rows, at least 1.
        tokens: (T,) int64.
        positions: (T,) int64, columns in the cache.
    """

    first_row: int
    lengths: Sequence[int]
    tokens: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(
        cls, texts: Sequence[Sequence[int]], first_row: int = 0, first_column: int = 0
    ) -> "Pack":
        """The tokens of texts, each from one column on."""
        lengths = [len(text) for text in texts]
        places = [torch.arange(first_column, first_column + length) for length in lengths]
        tokens = torch.tensor([token for text in texts for token in text], dtype=torch.long)
        return cls(first_row, lengths, tokens, torch.cat(places))

    @property
    def rows(self) -> torch.Tensor:
        """Row of the cache of each token, (T,) int64."""
        first = self.first_row
        rows = torch.arange(first, first + len(self.lengths))
        return rows.repeat_interleave(torch.tensor(list(self.lengths)))


class ExactDecoder(Decoder):
    """A Llama-shaped model in integers.

    Attributes:
        shape: Numbers of the model.
        weights: What it multiplies with.
    """

    is_exact = True
    engine_name = "exact integers"
    capabilities = frozenset(Capability)

    def __init__(self, shape: LlamaShape, weights: Weights[IntegerProduct]) -> None:
        """Takes weights that were quantized already; see `calibrated_table` and `opening`."""
        self.shape, self.weights = shape, weights
        self.device, self.dtype = torch.device("cpu"), torch.int8
        self.attention_limit = shape.positions
        self._epsilon = shape.norm_epsilon * shape.width
        half = torch.arange(0, shape.depth, 2, dtype=torch.float64) / shape.depth
        angles = torch.arange(shape.positions)[:, None] / shape.rotary_base**half
        self._cosines = torch.cat([angles.cos(), angles.cos()], 1).float()  # (positions, D)
        self._sines = torch.cat([-angles.sin(), angles.sin()], 1).float()

    def new_cache(self, *, rows: int, columns: int) -> KeyValueCache:
        """Makes room for keys and values of `rows` contexts of `columns` tokens."""
        return KeyValueCache(self.shape, rows=rows, columns=columns)

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> Contexts:
        """How prompts are cut into passes, and who shares them, moves no bit."""
        from dpsynth_assets.models.exact_decoder.contexts import ExactContexts

        return ExactContexts(self, prompts, reading)

    def hidden_states(
        self, texts: Sequence[Sequence[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """See `Decoder.hidden_states`; a text's states follow it alone, for any characters."""
        from dpsynth_assets.models.exact_decoder.contexts import pooled_streams

        return pooled_streams(self, texts, reading)

    def forward(
        self,
        cache: KeyValueCache,
        pack: Pack,
        *,
        on_layer: StreamCallback | None = None,
        layers: int | None = None,
        fill: bool = False,
        observe: Callable[[int, str, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Computes the residual stream of a pack's tokens; writes their keys and values.

        Must run where PyTorch uses one thread (`run_alone`).

        Args:
            cache: Keys and values of all rows; each row attends to its own.
            pack: The tokens.
            on_layer: Called with the stream as it leaves each layer.
            layers: Layers that are computed; None for all.
            fill: Whether nothing beyond keys and values of all layers is wanted.
            observe: Called with the activations before each product, for calibration.

        Returns:
            (T, d) float32, before the final norm.
        """
        passed = _Pass(self, cache, pack, observe)
        stream = self.weights.embeddings[pack.tokens]
        for index, layer in enumerate(self.weights.layers[:layers]):
            if fill and index == self.shape.layers - 1:
                passed.store(index, layer, stream)
                return stream
            passed.through(index, layer, stream)
            if on_layer is not None:
                on_layer(index, stream)
        return stream

    def logits(self, stream: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (T, V) float32 of a stream (T, d) that `forward` returned; into `out` if given."""
        activations, scales = self.normed(stream, self.weights.final_norm)
        logits = torch.empty((len(stream), self.shape.vocabulary)) if out is None else out
        first = 0
        for block in self.weights.vocabulary:
            part = block(activations)
            torch.mul(part, scales, out=logits[:, first : first + part.shape[1]])
            first += part.shape[1]
        return logits

    def normed(
        self, stream: torch.Tensor, balance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalises and rounds each row: bytes (T, d), and each row's scale but for sqrt(d)/127.

        The root mean square is taken of the row alone, in one thread; the rest is one operation on
        one number at a time.
        """
        length = torch.linalg.vector_norm(stream, 2, 1, keepdim=True)
        activations, largest = quantized_rows(stream * balance)
        return activations, largest.div_(length.mul_(length).add_(self._epsilon).sqrt_())


class _Pass:
    """State that all layers of one pass share."""

    def __init__(
        self,
        decoder: ExactDecoder,
        cache: KeyValueCache,
        pack: Pack,
        observe: Callable[[int, str, torch.Tensor], None] | None,
    ) -> None:
        self._decoder, self._cache, self._observe = decoder, cache, observe
        self._shape = decoder.shape
        self._rows, self._positions = pack.rows, pack.positions
        self._cosines = decoder._cosines[pack.positions][:, None]  # (T, 1, D)
        self._sines = decoder._sines[pack.positions][:, None]
        self._parts = _parts(self._shape, cache, pack)

    def through(self, index: int, layer: Layer[IntegerProduct], stream: torch.Tensor) -> None:
        """One decoder layer; changes `stream` (T, d)."""
        queries, scales = self.store(index, layer, stream)
        outputs = []
        for own, window in self._parts:  # (B, C, H, D) queries of rows that look at equal columns
            size = (-1, window.queries, self._shape.heads)
            part = queries[own].reshape(*size, self._shape.depth), scales[own].reshape(size)
            outputs.append(attend(self._shape, self._cache, index, window, *part).flatten(0, 1))
        attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        rounded, largest = quantized_rows(attended)
        stream.add_(layer.attention_output(rounded).mul_(largest))
        self._feed_forward(index, layer, stream)

    def store(
        self, index: int, layer: Layer[IntegerProduct], stream: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores keys and values of the tokens; returns queries (T, H, D) and scales (T, H)."""
        self._look(index, ATTENTION, stream)
        shape = self._shape
        activations, scales = self._decoder.normed(stream, layer.attention_balance)
        heads = layer.query_key_value(activations).mul_(scales)
        heads = heads.view(len(stream), -1, shape.depth)  # (T, H + 2G, D)
        rotated = heads[:, : shape.heads + shape.groups]
        turned = rotated.roll(shape.depth // 2, -1).mul_(self._sines)
        rotated.mul_(self._cosines).add_(turned)
        largest = heads.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST)
        heads.mul_(layer.head_limits[:, None] / largest).add_(ROUNDING)
        stored = heads[:, shape.heads :].view(torch.int32).to(torch.uint8)
        head_scales = largest[..., 0].mul_(layer.head_scales)  # (T, H + 2G)
        self._cache.write(
            index,
            self._rows,
            self._positions,
            stored,
            torch.minimum(head_scales, layer.scale_limits)[:, shape.heads :],
        )
        return heads[:, : shape.heads].sub_(ROUNDING), head_scales[:, : shape.heads]

    def _feed_forward(self, index: int, layer: Layer[IntegerProduct], stream: torch.Tensor) -> None:
        """Gated feed-forward; the scale of the ungated half joins that of its rounding."""
        self._look(index, FEED_FORWARD, stream)
        activations, scales = self._decoder.normed(stream, layer.feed_forward_balance)
        gate, up = layer.gate_and_up(activations).chunk(2, 1)
        hidden = torch.nn.functional.silu(gate.mul_(scales)).mul_(up)
        if self._observe is not None:
            self._observe(index, DOWN, hidden * scales)
        rounded, largest = quantized_rows(hidden)
        stream.add_(layer.down(rounded).mul_(largest.mul_(scales)))

    def _look(self, index: int, place: str, stream: torch.Tensor) -> None:
        if self._observe is not None:
            self._observe(index, place, _unit_rows(stream))


_SCORES = 2**14
"""Queries times columns of rows that attend together, where rows have more than one query."""
_QUERIES = 64
"""Queries of a row at a time: earlier ones do not read the columns that later ones alone see."""


def _parts(shape: LlamaShape, cache: KeyValueCache, pack: Pack) -> list[tuple[slice, Window]]:
    """Cuts the tokens of a pack into parts that attend together: all rows of a step.

    In a prefill rows of equal length do, as far as their scores fit the processor's cache, and
    longer rows some queries at a time.
    """
    parts, row, first = [], pack.first_row, 0
    for length, run in groupby(pack.lengths):
        left = len(list(run))
        fits = _SCORES // length**2 if length <= _QUERIES else 1
        most = left if length == 1 else max(1, fits)
        while left:
            rows = min(left, most)
            last, size = first + rows * length, rows * min(length, _QUERIES)
            for start in range(first, last, size):
                own = slice(start, min(start + size, last))
                positions = pack.positions[own].view(rows, -1)
                window = Window.of(shape, cache, slice(row, row + rows), positions)
                parts.append((own, window))
            row, first, left = row + rows, last, left - rows
    return parts


def _unit_rows(stream: torch.Tensor) -> torch.Tensor:
    """Rows divided by their root mean square."""
    return stream / stream.square().mean(1, keepdim=True).sqrt().clamp_min(1e-30)


def calibrated_table(
    shape: LlamaShape,
    table: Mapping[str, torch.Tensor],
    calibration: Sequence[Sequence[int]],
) -> dict[str, torch.Tensor]:
    """Quantizes a checkpoint.

    Args:
        shape: Numbers of the model.
        table: Weights by transformers' names.
        calibration: Public texts as token ids. What their activations reach decides how channels
            share precision with their weights; none: the checkpoint as it is.
    """
    quantized = quantized_table(shape, table, {})
    if not calibration:
        return quantized
    first = ExactDecoder(shape, integer_weights(shape, table[EMBEDDINGS].float(), quantized))
    return quantized_table(shape, table, _observed(first, calibration))


def _observed(
    decoder: ExactDecoder, texts: Sequence[Sequence[int]]
) -> dict[tuple[int, str], torch.Tensor]:
    """Largest magnitudes of activations over public texts, by layer and place."""
    from dpsynth_assets.privacy.cpu import run_alone

    seen: dict[tuple[int, str], torch.Tensor] = {}

    def observe(layer: int, place: str, activations: torch.Tensor) -> None:
        largest = activations.abs().amax(0)
        known = seen.get((layer, place))
        seen[layer, place] = largest if known is None else torch.maximum(known, largest)

    def read() -> None:
        cache = KeyValueCache(decoder.shape, rows=len(texts), columns=max(map(len, texts)))
        stream = decoder.forward(cache, Pack.of(texts), observe=observe)
        observe(decoder.shape.layers, FINAL, _unit_rows(stream))

    run_alone([read], workers=1)
    return seen
