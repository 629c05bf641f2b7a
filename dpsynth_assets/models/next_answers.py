"""Probabilities of given answers as the next token of prompts, many prompts per pass."""

import copy
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.language_model import in_parts

if TYPE_CHECKING:
    import torch

_ROWS = 16


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
        prompts: N prompts of at least one token each.
        answers: A answers, each the tokens it may begin with.

    Returns:
        float64 (N, A), in nats: of any token of an answer.
    """
    import torch

    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    start = [token for token, *_ in takewhile(lambda each: len(set(each)) == 1, columns)]
    found = np.zeros((len(prompts), len(answers)))
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    with torch.inference_mode():
        kept = _read(language_model, start)
        for rows in in_parts(order, _ROWS):
            rest = [list(prompts[row][len(start) :]) for row in rows]
            log_shares = _next(language_model, kept, len(start), rest).log_softmax(1).cpu()
            found[rows] = torch.stack(
                [log_shares[:, list(answer)].logsumexp(1) for answer in answers], 1
            ).numpy()
    return found


def _read(language_model: Any, start: Sequence[int]) -> Any:
    """The cache of what all prompts begin with; None where they begin differently."""
    if not start:
        return None
    import torch

    ids = torch.tensor([list(start)], device=language_model.device)
    return language_model.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values


def _next(
    language_model: Any, kept: Any, begun: int, rest: Sequence[Sequence[int]]
) -> "torch.Tensor":
    """Logits of the next token, (B, V) float64; rows are filled on the left, and that is masked."""
    import torch

    most = max(map(len, rest))
    ids = [[language_model.pad_token_id] * (most - len(own)) + list(own) for own in rest]
    mask = torch.tensor([[0] * (most - len(own)) + [1] * len(own) for own in rest])
    places = (mask.cumsum(1) - 1).clamp(min=0) + begun
    seen = torch.cat([torch.ones(len(rest), begun, dtype=mask.dtype), mask], 1)
    if kept is not None:
        kept = copy.deepcopy(kept)
        kept.batch_repeat_interleave(len(rest))
    device = language_model.device
    logits: torch.Tensor = language_model.model(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=seen.to(device),
        position_ids=places.to(device),
        past_key_values=kept,
        use_cache=kept is not None,
        logits_to_keep=1,
    ).logits
    return logits[:, -1].double()
