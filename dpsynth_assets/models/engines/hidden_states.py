"""Pooled hidden states of many texts: one pass a text, in passes of a few fixed shapes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines.protocol import Pooling, ShareCallback
from dpsynth_assets.models.engines.residual_stream import LastLayerReachedError, reading_stream

if TYPE_CHECKING:
    import torch

_COLUMN_MULTIPLE = 32
"""Texts are padded to a multiple of this many tokens."""


def pooled_states(
    model: Any,
    texts: Sequence[Sequence[int]],
    layers: Sequence[int],
    *,
    begin_token_id: int | None,
    pad_token_id: int,
    pooling: Pooling,
    tokens_per_pass: int,
    progress: ShareCallback | None = None,
) -> dict[int, np.ndarray]:
    """Pools each text's hidden states at chosen layers; later layers are not computed.

    Memory beyond the model's own pass: one layer's states of one pass in float32, and the result.

    **Privacy** Shapes of a pass depend on the length of its own texts alone: texts are padded to
    the next multiple of 32, texts of one padded length share passes of a fixed number of rows, and
    short passes are filled up. So one record moves another's states by no more than where its row
    stands in the pass, which is nothing but float rounding.

    Args:
        model: transformers causal language model, in eval mode.
        texts: N sequences of the texts' own tokens; may be empty.
        layers: Layers in [0, L).
        begin_token_id: Precedes every text, is not pooled.
        pad_token_id: Filler; stands behind the text, where causal attention never looks.
        pooling: `mean` over own tokens or the `last` one.
        tokens_per_pass: Rows times columns of a pass at most, but one row at least.
        progress: Told the share of texts done.

    Returns:
        {layer: (N, d) float32}; zeros for a text without tokens.
    """
    import torch

    width = model.config.get_text_config().hidden_size
    result = {layer: np.zeros((len(texts), width), dtype=np.float32) for layer in layers}
    begin = [] if begin_token_id is None else [begin_token_id]
    done = 0
    for columns, rows, chosen in _passes(texts, len(begin), tokens_per_pass):
        tokens = torch.full((rows, columns), pad_token_id)
        weights = torch.zeros((rows, columns))
        for row, index in enumerate(chosen):
            ids = [*begin, *texts[index]]
            tokens[row, : len(ids)] = torch.tensor(ids)
            weights[row] = _weights(len(begin), len(ids), columns, pooling)
        for layer, pooled in _pool(model, tokens, weights, tuple(layers)).items():
            result[layer][chosen] = pooled[: len(chosen)]
        done += len(chosen)
        if progress is not None:
            progress(done / len(texts))
    return result


def _passes(
    texts: Sequence[Sequence[int]], begin: int, tokens_per_pass: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yields columns, rows and the texts of each pass; texts without tokens are in none."""
    of_columns: defaultdict[int, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        if len(text):
            columns = -(-(begin + len(text)) // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
            of_columns[columns].append(index)
    for columns in sorted(of_columns):
        rows = max(1, tokens_per_pass // columns)
        for start in range(0, len(of_columns[columns]), rows):
            yield columns, rows, of_columns[columns][start : start + rows]


def _weights(begin: int, end: int, columns: int, pooling: Pooling) -> "torch.Tensor":
    """What each column counts in the pooled state, (columns,): sums to 1 over [begin, end)."""
    import torch

    weights = torch.zeros(columns)
    first = begin if pooling == "mean" else end - 1
    weights[first:end] = 1 / (end - first)
    return weights


def _pool(
    model: Any, tokens: "torch.Tensor", weights: "torch.Tensor", layers: tuple[int, ...]
) -> dict[int, np.ndarray]:
    import torch

    device = next(model.parameters()).device
    on_device = weights[:, None, :].to(device)
    pooled: dict[int, np.ndarray] = {}

    def receive(layer: int, stream: "torch.Tensor") -> None:
        pooled[layer] = torch.bmm(on_device, stream.float())[:, 0].cpu().numpy()

    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    with torch.no_grad(), reading_stream(model, layers, receive), suppress(LastLayerReachedError):
        model.base_model(input_ids=tokens.to(device), position_ids=positions, use_cache=False)
    return pooled
