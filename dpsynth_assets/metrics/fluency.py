"""What rows are like without any record beside them: repetition among them, and perplexity."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.metrics.metric import OF_BENCHMARK, Metric, Need

FLUENCY_ROWS = 100
"""Rows whose perplexity is computed."""

NEAR = 0.95
"""Cosine of two rows' embeddings from which on they say the same."""

_TOKENS, _ROWS = 96, 16


def near_duplicates(features: np.ndarray) -> float:
    """Share of rows that have another row at a cosine of `NEAR` or more.

    Args:
        features: (N, d) embeddings of unit length.
    """
    if len(features) < 2:
        return 0.0
    cosines = features @ features.T
    np.fill_diagonal(cosines, -1.0)
    return float((cosines.max(axis=1) >= NEAR).mean())


def perplexity(language_model: Any, texts: Sequence[str]) -> float:
    """Perplexity of texts under the public language model, by token; low where they are fluent.

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        texts: Cut to 96 tokens each; a text of one token is left out.

    Returns:
        exp of the mean loss in nats over all tokens but each text's first; NaN without any.
    """
    import torch

    read = [list(language_model.encode(text))[:_TOKENS] for text in texts]
    rows = [tokens for tokens in read if len(tokens) > 1]
    loss, count = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(rows), _ROWS):
            part = [torch.tensor(own) for own in rows[start : start + _ROWS]]
            pad = torch.nn.utils.rnn.pad_sequence
            ids = pad(part, batch_first=True)
            mask = pad([torch.ones_like(own) for own in part], batch_first=True)
            device = language_model.device
            logits = language_model.model(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
            ).logits[:, :-1]
            targets = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100).to(device)
            loss += float(
                torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"
                )
            )
            count += int(mask[:, 1:].sum())
    return float(np.exp(loss / count)) if count else float("nan")


NEAR_DUPLICATES = Metric(
    "near_duplicates",
    "near-duplicates",
    lambda sides: near_duplicates(sides.corpus.features),
    less_is_better=True,
    decimals=2,
    tables=OF_BENCHMARK,
)

PERPLEXITY = Metric(
    "perplexity",
    "perplexity",
    lambda sides: perplexity(sides.language_model, sides.corpus.texts[:FLUENCY_ROWS]),
    less_is_better=True,
    decimals=0,
    needs=frozenset({Need.LANGUAGE_MODEL}),
    tables=OF_BENCHMARK,
)
