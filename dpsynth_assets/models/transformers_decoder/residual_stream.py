"""The residual stream of a transformers decoder: read, added to, and pooled over many texts.

Private texts are alone in their pass, public ones share passes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.language_model import in_parts, padded
from dpsynth_assets.privacy.cpu import one_thread_each, shares_weights


class LastLayerReachedError(Exception):
    """Ends a forward pass of which no later layer is wanted; caught where it was started."""


def decoder_layers(model: Any) -> Any:
    """The list of decoder layers, under any name.

    Raises:
        ValueError: The model has no list of as many modules as its configuration has layers.
    """
    from torch.nn import ModuleList

    count = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().modules():
        if isinstance(module, ModuleList) and len(module) == count:
            return module
    raise ValueError(f"Expected a decoder with {count} layers in a row, found none in the model.")


@contextmanager
def _hooked(model: Any, hooks: Mapping[int, Callable[..., Any]]) -> Iterator[None]:
    """Calls a hook after each chosen layer."""
    layers = decoder_layers(model) if hooks else ()
    placed = [layers[layer].register_forward_hook(hook) for layer, hook in hooks.items()]
    try:
        yield
    finally:
        for each in placed:
            each.remove()


def adding_to_stream(
    model: Any, vectors: Mapping[int, torch.Tensor]
) -> AbstractContextManager[None]:
    """Adds vectors[layer] (d,) at every position of every pass to what leaves that layer."""

    def adds(vector: torch.Tensor) -> Callable[..., Any]:
        return lambda _module, _inputs, output: _with_stream(output, _stream(output) + vector)

    return _hooked(model, {layer: adds(vector) for layer, vector in vectors.items()})


def reading_stream(
    model: Any, chosen: "tuple[int, ...]", receive: Callable[[int, torch.Tensor], None]
) -> AbstractContextManager[None]:
    """Hands over what leaves each chosen layer, and ends passes after the last of them."""

    def reads(layer: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            receive(layer, _stream(output))
            if layer == max(chosen):
                raise LastLayerReachedError

        return hook

    return _hooked(model, {layer: reads(layer) for layer in chosen})


def _stream(output: Any) -> torch.Tensor:
    """Some decoder layers return the stream alone, others a tuple that begins with it."""
    return output[0] if isinstance(output, tuple) else output


def _with_stream(output: Any, stream: torch.Tensor) -> Any:
    return (stream, *output[1:]) if isinstance(output, tuple) else stream


_COLUMN_MULTIPLE = 32
"""Texts that share a pass are padded to a multiple of this many tokens."""

_TEXTS_PER_TASK = 8
"""Texts that a thread reads, one after another, before it says so."""


_Pooled = tuple[list[int], Mapping[int, np.ndarray]]
"""Indices of n texts, and {layer: their states}, (n, d) or more."""


def pooled_states(
    model: Any, texts: Sequence[Sequence[int]], reading: StateReading, tokens_per_pass: int
) -> dict[int, np.ndarray]:
    """Pools each text's hidden states at chosen layers; later layers are not computed.

    Memory beyond the model's own pass: one layer's states of a pass of each thread in float32, and
    the result.

    **Privacy** A private text is alone in its pass, without padding, and on a processor the pass
    has one thread, however many texts there are. So its states are a function of the text and of
    the model, bit for bit and in any type of float, as far as the machine computes the same from
    the same: kernels round a row by its place among others, and here there is no other. Texts that
    may be known share passes of a few fixed shapes, which is faster.

    Args:
        model: transformers causal language model, in eval mode.
        texts: N sequences of the texts' own tokens; may be empty.
        reading: How they are read.
        tokens_per_pass: Rows times columns of a shared pass at most, but one row at least.

    Returns:
        {layer: (N, d) float32}; zeros for a text without tokens.
    """
    width = model.config.get_text_config().hidden_size
    result = {layer: np.zeros((len(texts), width), dtype=np.float32) for layer in reading.layers}
    known = [row for row, text in enumerate(texts) if len(text)]
    if reading.shares_passes:
        found = _together(model, texts, known, reading, tokens_per_pass)
    else:
        found = _alone(model, texts, known, reading)
    done = len(texts) - len(known)
    for chosen, pooled in found:
        for layer, rows in pooled.items():
            result[layer][chosen] = rows[: len(chosen)]
        done += len(chosen)
        reading.told(done / len(texts))
    return result


def _alone(
    model: Any, texts: Sequence[Sequence[int]], known: list[int], reading: StateReading
) -> Iterator[_Pooled]:
    """Reads every text in a pass of its own; on a processor several threads, each with its own.

    A thread's copy of the modules shares their weights: hooks, and what some position embeddings
    keep from one pass to the next, are its own.
    """
    parts = in_parts(known, _TEXTS_PER_TASK)

    def read(part: list[int], model: Any) -> _Pooled:
        rows = [_pool(model, [texts[index]], reading) for index in part]
        pooled = {layer: np.concatenate([row[layer] for row in rows]) for layer in reading.layers}
        return part, pooled

    if next(model.parameters()).device.type != "cpu":
        yield from (read(part, model) for part in parts)
        return
    workers = max(1, min(torch.get_num_threads(), len(parts)))
    models: SimpleQueue[Any] = SimpleQueue()
    for copy in (model, *(shares_weights(model) for _ in range(1, workers))):
        models.put(copy)

    def read_with_a_free_model(part: list[int]) -> _Pooled:
        own = models.get()
        try:
            return read(part, own)
        finally:
            models.put(own)

    with one_thread_each(workers) as threads:
        yield from threads.map(read_with_a_free_model, parts)


def _together(
    model: Any,
    texts: Sequence[Sequence[int]],
    known: list[int],
    reading: StateReading,
    tokens_per_pass: int,
) -> Iterator[_Pooled]:
    """Reads texts of one padded length in passes of a fixed number of rows, filled up."""
    of_columns: defaultdict[int, list[int]] = defaultdict(list)
    for row in known:
        blocks = -(-(len(reading.begin) + len(texts[row])) // _COLUMN_MULTIPLE)
        of_columns[blocks * _COLUMN_MULTIPLE].append(row)
    for columns, rows in sorted(of_columns.items()):
        size = max(1, tokens_per_pass // columns)
        for own in in_parts(rows, size):
            filled = [*(texts[row] for row in own), *[()] * (size - len(own))]
            yield own, _pool(model, filled, reading, _COLUMN_MULTIPLE)


def _pool(
    model: Any, texts: Sequence[Sequence[int]], reading: StateReading, multiple: int = 1
) -> dict[int, np.ndarray]:
    """{layer: (n, d)} of n texts in one pass: means over a text's own tokens.

    Texts are padded to whole multiples of columns.
    """
    from torch.nn.functional import pad

    device, begin = next(model.parameters()).device, len(reading.begin)
    tokens = padded([[*reading.begin, *text] for text in texts], 0)  # filler stands behind texts
    tokens = pad(tokens, (0, -tokens.shape[1] % multiple))
    weights = torch.zeros((len(texts), 1, tokens.shape[1]))
    for row, text in enumerate(texts):
        weights[row, :, begin : begin + len(text)] = 1 / max(1, len(text))
    weights, pooled = weights.to(device), {}

    def receive(layer: int, stream: torch.Tensor) -> None:
        pooled[layer] = torch.bmm(weights, stream.float())[:, 0].cpu().numpy()

    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    reads = reading_stream(model, reading.layers, receive)
    with torch.no_grad(), reads, suppress(LastLayerReachedError):
        model.base_model(input_ids=tokens.to(device), position_ids=positions, use_cache=False)
    return pooled
