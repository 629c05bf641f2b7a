"""Contexts of the exact decoder: prompts read once, documents continued, restarted and dropped."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from dpsynth_assets.models.decoding.protocol import (
    COUNTS,
    Reading,
    StateReading,
    prefix_groups,
)
from dpsynth_assets.models.exact_decoder.attention import KeyValueCache
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, Pack
from dpsynth_assets.models.exact_decoder.integer_products import token_packs
from dpsynth_assets.privacy.cpu import run_alone

_TOKENS_PER_PACK = 384
"""Tokens of one prefill pass: products are near their best and activations stay in the cache."""
_LEAST_ROWS = 16
"""Rows a thread should have before another thread is worth its own pass over the weights.

Two threads took 1.7 times as long as one for 8 rows of SmolLM2, as long for 28, .7 times for 64.
"""


class ExactContexts:
    """R prompts, each with its own growing document, decoded one token a row at a time.

    Prompts lie end to end without padding; a prompt's last token is read by the first step, as
    document tokens are.

    **Privacy** A row's logits are a function of its own prompt and document, bit for bit: they stay
    the same when other rows are changed, added, dropped or put into another order, and however
    prompts are cut into passes. Callers may charge `logit_slack` 0.
    """

    def __init__(
        self,
        decoder: ExactDecoder,
        prompts: Sequence[Sequence[int]],
        reading: Reading,
        *,
        threads: int | None = None,
        tokens_per_pack: int = _TOKENS_PER_PACK,
    ) -> None:
        """Reads the prompts into the cache.

        Args:
            decoder: The model.
            prompts: R token sequences of 1..P ids.
            reading: How they are read; how many share a pass is this decoder's matter.
            threads: Threads that share the rows; None for as many as PyTorch uses here, fewer for
                steps of few rows.
            tokens_per_pack: Tokens of one prefill pass, but one prompt at least.
        """
        added = reading.added.items()
        self._decoder = decoder
        self._added = {layer: torch.from_numpy(vector) for layer, vector in added}
        self._threads = threads or torch.get_num_threads()
        self._least_rows = _LEAST_ROWS if threads is None else 1
        self._prompt_columns, self._tokens_per_pack = reading.prompt_columns, tokens_per_pack
        self._cache = self._room(len(prompts))
        prefixes = [prefix[: self._prompt_columns - 1] for prefix in reading.public_prefixes]
        prefixes += [prefix[:-1] for prefix in reading.public_prefixes]  # of prompts that are one
        groups = prefix_groups([prompt[:-1] for prompt in prompts], prefixes)
        for own in groups.values():  # Rows of equal length attend together.
            own.sort(key=lambda index: len(prompts[index]))
        order = [index for own in groups.values() for index in own]
        self._lengths = torch.tensor([len(prompts[index]) for index in order], dtype=torch.long)
        last = [prompts[index][-1] for index in order]
        self._last_tokens = torch.tensor(last, dtype=torch.long)
        first = 0
        for prefix, members in groups.items():
            self._prefill([list(prompts[index][:-1]) for index in members], list(prefix), first)
            first += len(members)
        row_of = {index: row for row, index in enumerate(order)}
        self._take([row_of[index] for index in range(len(prompts))])

    def __len__(self) -> int:
        """Number of contexts R."""
        return len(self._lengths)

    def next_logits(self, tokens: torch.Tensor, generated: torch.Tensor) -> torch.Tensor:
        """Advances every row by one token; see `Contexts`."""
        rows = len(self)
        if not rows:
            return torch.zeros((0, self._decoder.shape.vocabulary))
        COUNTS["written"] += rows
        # public: lengths of drawn texts
        self._cache.widen(self._prompt_columns + int(generated.max()))
        tokens = torch.where(generated == 0, self._last_tokens, tokens)
        positions = self._lengths - 1 + generated
        workers = max(1, min(self._threads, rows // self._least_rows))
        logits = torch.empty((rows, self._decoder.shape.vocabulary))

        def step(own: slice) -> None:
            pack = Pack(own.start, [1] * (own.stop - own.start), tokens[own], positions[own])
            stream = self._decoder.forward(self._cache, pack, on_layer=self._adding())
            self._decoder.logits(stream, logits[own])

        run_alone([partial(step, own) for own in _shares(rows, workers)], workers)
        return logits

    def keep(self, contexts: torch.Tensor) -> None:
        """Drops all contexts but these ((R',), int64, in this order); later passes are smaller."""
        self._take(contexts.tolist())

    def _room(self, rows: int) -> KeyValueCache:
        return self._decoder.new_cache(rows=rows, columns=self._prompt_columns)

    def _take(self, rows: list[int]) -> None:
        if rows != list(range(len(self))):
            self._cache.keep(rows)
            self._lengths, self._last_tokens = self._lengths[rows], self._last_tokens[rows]

    def _adding(self) -> Callable[[int, torch.Tensor], None] | None:
        if not self._added:
            return None

        def add(layer: int, stream: torch.Tensor) -> None:
            if layer in self._added:
                stream.add_(self._added[layer])

        return add

    def _prefill(self, prompts: list[list[int]], prefix: list[int], first_row: int) -> None:
        """Reads prompts that share a prefix: that once, then what follows it, packed."""
        shared = len(prefix)
        if shared:
            self._read([prefix], first_row, 0)
            rows = slice(first_row, first_row + len(prompts))
            self._cache.copy_prefix(self._cache, first_row, rows, shared)
        self._read([prompt[shared:] for prompt in prompts], first_row, shared)

    def _read(self, texts: list[list[int]], first_row: int, first_column: int) -> None:
        """Reads tokens into rows from `first_row`, columns from `first_column`."""
        packs = []
        for rows in token_packs([len(text) for text in texts], self._tokens_per_pack):
            pack = Pack.of([texts[row] for row in rows], first_row + rows[0], first_column)
            packs.append(partial(self._decoder.forward, self._cache, pack, fill=True))
        if packs:
            run_alone(packs, max(1, min(self._threads, len(packs))))


def _shares(rows: int, workers: int) -> list[slice]:
    """Cuts rows into as many shares as there are workers, of equal size within one."""
    bounds = [rows * worker // workers for worker in range(workers + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def pooled_streams(
    decoder: ExactDecoder, texts: Sequence[Sequence[int]], reading: StateReading
) -> dict[int, np.ndarray]:
    """Pools each text's residual stream at chosen layers; later layers are not computed.

    What precedes every text is read once for all.

    **Privacy** A text's states are a function of the text alone, bit for bit.

    Returns:
        {layer: (N, d) float32}; zeros for a text without tokens.
    """
    begin = list(reading.begin)
    COUNTS["read"] += len(begin) + sum(map(len, texts))
    width = decoder.shape.width
    result = {layer: np.zeros((len(texts), width), dtype=np.float32) for layer in reading.layers}
    threads = torch.get_num_threads() if decoder.device.type == "cpu" else 1
    done = sum(not len(text) for text in texts)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    lengths = [len(texts[index]) for index in order]
    packs = [[order[place] for place in pack] for pack in token_packs(lengths, _TOKENS_PER_PACK)]
    if not packs:
        return result
    (prefix,) = run_alone([partial(_prefix_of, decoder, begin, max(reading.layers) + 1)], 1)
    for start in range(0, len(packs), threads):
        own = packs[start : start + threads]
        chosen = [[list(texts[index]) for index in pack] for pack in own]
        read = [partial(_streams, decoder, reading, prefix, each) for each in chosen]
        for pack, pooled in zip(own, run_alone(read, threads), strict=True):
            for layer, states in pooled.items():
                result[layer][pack] = states
            done += len(pack)
        reading.told(done / len(texts))
    return result


def _prefix_of(decoder: ExactDecoder, begin: list[int], layers: int) -> KeyValueCache:
    """Keys and values of the tokens that precede every text: those of texts build on them."""
    cache = decoder.new_cache(rows=1, columns=len(begin))
    if begin:
        decoder.forward(cache, Pack.of([begin]), layers=layers)
    return cache


def _streams(
    decoder: ExactDecoder, reading: StateReading, prefix: KeyValueCache, texts: list[list[int]]
) -> dict[int, np.ndarray]:
    """{layer: (texts, d)} of one pass."""
    begin, lengths = len(reading.begin), [len(text) for text in texts]
    cache = decoder.new_cache(rows=len(texts), columns=begin + max(lengths))
    cache.copy_prefix(prefix, 0, slice(None), begin)
    pooled: dict[int, np.ndarray] = {}

    def receive(layer: int, stream: torch.Tensor) -> None:
        if layer in reading.layers:
            means = [part.mean(0) for part in stream.cpu().split(lengths)]
            pooled[layer] = torch.stack(means).numpy()

    pack = Pack.of(texts, first_column=begin)
    decoder.forward(cache, pack, on_layer=receive, layers=max(reading.layers) + 1)
    return pooled
