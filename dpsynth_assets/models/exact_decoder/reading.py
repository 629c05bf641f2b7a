"""Residual streams of whole texts, pooled text by text; nothing of a text reaches another."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.exact_decoder.cache import KeyValueCache
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, Pack
from dpsynth_assets.models.token_counts import COUNTS
from dpsynth_assets.privacy.cpu_threads import run_alone

if TYPE_CHECKING:
    import torch

_TOKENS_PER_PACK = 384


def pooled_streams(
    decoder: ExactDecoder,
    texts: Sequence[Sequence[int]],
    layers: Sequence[int],
    *,
    begin: Sequence[int] = (),
    last_only: bool = False,
    progress: Callable[[float], None] | None = None,
) -> dict[int, np.ndarray]:
    """Pools each text's residual stream at chosen layers; later layers are not computed.

    **Privacy** A text's states are a function of the text alone, bit for bit.

    Args:
        decoder: The model.
        texts: N sequences of the texts' own tokens; may be empty.
        layers: Layers in [0, L).
        begin: Tokens that precede every text and are not pooled; read once for all.
        last_only: The last token instead of the mean over all.
        progress: Called with the share of texts done.

    Returns:
        {layer: (N, d) float32}; zeros for a text without tokens.
    """
    import torch

    COUNTS.read += len(begin) + sum(map(len, texts))
    width = decoder.shape.width
    result = {layer: np.zeros((len(texts), width), dtype=np.float32) for layer in layers}
    threads, done = torch.get_num_threads(), sum(not len(text) for text in texts)
    packs = list(_packs(texts))
    if not packs:
        return result
    (prefix,) = run_alone([partial(_read_prefix, decoder, list(begin), max(layers) + 1)], 1)
    for start in range(0, len(packs), threads):
        own = packs[start : start + threads]
        chosen = [[list(texts[index]) for index in pack] for pack in own]
        read = partial(_read, decoder, tuple(layers), prefix, len(begin), last_only)
        for pack, pooled in zip(
            own, run_alone([partial(read, each) for each in chosen], threads), strict=True
        ):
            for layer, states in pooled.items():
                result[layer][pack] = states
            done += len(pack)
        if progress is not None:
            progress(done / len(texts))
    return result


def _read_prefix(decoder: ExactDecoder, begin: list[int], layers: int) -> KeyValueCache:
    """Keys and values of the tokens that precede every text: those of texts build on them."""
    import torch

    cache = KeyValueCache(decoder.shape, rows=1, columns=len(begin))
    if begin:
        pack = Pack(0, [len(begin)], torch.tensor(begin), torch.arange(len(begin)))
        decoder.forward(cache, pack, layers=layers)
    return cache


def _packs(texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields texts of similar length, of so many tokens together or one text."""
    pack: list[int] = []
    total = 0
    for index in sorted(range(len(texts)), key=lambda index: len(texts[index])):
        length = len(texts[index])
        if pack and total + length > _TOKENS_PER_PACK:
            yield pack
            pack, total = [], 0
        if length:
            pack.append(index)
            total += length
    if pack:
        yield pack


def _read(
    decoder: ExactDecoder,
    layers: tuple[int, ...],
    prefix: KeyValueCache,
    begin: int,
    last_only: bool,
    texts: list[list[int]],
) -> dict[int, np.ndarray]:
    """{layer: (texts, d)} of one pass."""
    import torch

    lengths = [len(text) for text in texts]
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.long)
    places = [torch.arange(begin, begin + length) for length in lengths]
    pack = Pack(0, lengths, tokens, torch.cat(places))
    cache = KeyValueCache(decoder.shape, rows=len(texts), columns=begin + max(lengths))
    cache.begin_with(prefix, begin)
    pooled: dict[int, np.ndarray] = {}

    def receive(layer: int, stream: "torch.Tensor") -> None:
        if layer in layers:
            parts = stream.split(lengths)
            means = [part[-1] if last_only else part.mean(0) for part in parts]
            pooled[layer] = torch.stack(means).numpy()

    decoder.forward(cache, pack, on_layer=receive, layers=max(layers) + 1)
    return pooled
