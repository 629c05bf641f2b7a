"""Probabilities of given answers as the next token of prompts, many prompts per pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.decoding.protocol import shared_start
from dpsynth_assets.models.engines.protocol import DEFAULT
from dpsynth_assets.models.language_model import in_parts

_ROWS = 64


def first_tokens(language_model: Any, words: Sequence[str]) -> list[int]:
    """Tokens that words begin with, each with and without a space before it."""
    written = [f"{space}{word}" for word in words for space in ("", " ")]
    return sorted({ids[0] for ids in language_model.encode_all(written) if ids})


def answer_log_shares(
    language_model: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> np.ndarray:
    """Computes log-probabilities of answers after prompts; what prompts begin with is read once.

    Args:
        language_model: An opened `LanguageModel`; its float weights are read.
        prompts: N public or released prompts of at least one token each.
        answers: A answers, each the tokens it may begin with.

    Returns:
        float64 (N, A), in nats: of any token of an answer.

    Raises:
        ValueError: A prompt is longer than the model's attention, or the decoder cannot be opened.
    """
    import torch

    decoder = open_decoder(DEFAULT, language_model)
    found = np.zeros((len(prompts), len(answers)))
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    size = decoder.rows_at_once(_ROWS, 1 + max(map(len, prompts), default=0))
    for rows in in_parts(order, size):
        own = [prompts[row] for row in rows]
        contexts = decoder.open(
            own,
            prompt_columns=len(own[-1]),
            max_new_tokens=1,
            public_prefixes=[shared_start(own)],
            public=True,
        )
        begun = torch.zeros(len(own), dtype=torch.long)
        log_shares = contexts.next_logits(begun, begun).double().log_softmax(1).cpu()
        each = [log_shares[:, list(answer)].logsumexp(1) for answer in answers]
        found[rows] = torch.stack(each, 1).numpy()
    return found
