"""The public language model fills gaps: it proposes, and what follows the gap decides.

A left-to-right model cannot see what stands after a gap, but it can say how likely that is after
each of several fillings. Proposals f_1 .. f_K come from p(f | before); one of them is kept with
probability in proportion to p(after | before, f). As K grows this is a draw from
p(f | before, after), by Bayes' rule.

**Source** Rubin 1987, sampling–importance resampling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.text_api import ShareCallback
from dpsynth_assets.models.engines import Provenance

if TYPE_CHECKING:
    from dpsynth_assets.methods.evolution.public_model_api import PublicModelApi
    from dpsynth_assets.models.language_model import LanguageModel

_LOGITS_AT_A_TIME = 1 << 24
"""Entries of the logits of one pass: 64 MB."""


@dataclass(frozen=True)
class Gap:
    """One text with a contiguous part taken out, in tokens.

    Attributes:
        before: What precedes the gap.
        after: What follows it; may be empty.
        limit: Tokens of a filling at most, at least 1.
    """

    before: list[int] = field(repr=False)
    after: list[int] = field(repr=False)
    limit: int


class CausalInfiller:
    """Rewrites one contiguous part of a text: K proposals, one of them kept.

    Args:
        writer: The public language model as a writer.
        config: Number of proposals, lengths and sampling.
    """

    def __init__(self, writer: "PublicModelApi", config: EvolutionConfig) -> None:
        self._writer, self._config = writer, config

    def fill(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        shares: np.ndarray,
        *,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `Infiller.fill`."""
        model, count = self._writer.language_model, self._config.infilling_proposals
        gaps = [
            open_gap(
                model.text_ids(text)[: self._config.max_new_tokens],
                share,
                np.random.default_rng([seed, row]),
                self._config.max_new_tokens,
            )
            for row, (text, share) in enumerate(zip(texts, shares.tolist(), strict=True))
        ]
        repeated = [gap for gap in gaps for _ in range(count)]
        prompts = [
            self._writer.prompt(label) + gap.before
            for gap, label in zip(gaps, labels, strict=True)
            for _ in range(count)
        ]
        sampling = self._config.sampling(seed, tuple(gap.limit for gap in repeated))
        proposals = self._writer.engine.generate(
            prompts, sampling, provenance=Provenance.RELEASED, progress=progress
        )
        filled = [list(proposal.token_ids) for proposal in proposals]
        scores = after_scores(
            model,
            [prompt + filling for prompt, filling in zip(prompts, filled, strict=True)],
            [gap.after for gap in repeated],
        )
        kept = drawn_by_score(scores.reshape(len(gaps), count), seed)
        return [
            model.read_text([*gap.before, *filled[row * count + place], *gap.after])[0]
            for row, (gap, place) in enumerate(zip(gaps, kept.tolist(), strict=True))
        ]


def open_gap(ids: list[int], share: float, rng: np.random.Generator, longest: int) -> Gap:
    """Takes a contiguous part out of a text, anywhere in it.

    Args:
        ids: n tokens.
        share: Share of the tokens to take, at least one token where there is one.
        rng: Public randomness: where the gap is, and how much longer or shorter its filling may be.
        longest: Tokens of the whole variation at most.
    """
    length = min(len(ids), max(1, round(share * len(ids))))
    start = int(rng.integers(len(ids) - length + 1))
    before, after = ids[:start], ids[start + length :]
    wanted = int(rng.integers((length + 1) // 2, length + length // 2 + 1)) if length else longest
    return Gap(before, after, max(1, min(wanted, longest - len(before) - len(after))))


def after_scores(
    model: "LanguageModel", contexts: Sequence[list[int]], after: Sequence[list[int]]
) -> np.ndarray:
    """Log p(after | context) of each row, in nats: float64 (N,), 0 where nothing follows."""
    import torch

    scores = np.zeros(len(contexts))
    rows = [row for row, ids in enumerate(after) if ids]
    for part in _passes(rows, contexts, after, model.vocabulary_size):
        whole = [[*contexts[row], *after[row]] for row in part]
        width = max(map(len, whole))
        padded = torch.tensor([ids + [model.pad_token_id] * (width - len(ids)) for ids in whole])
        lengths = torch.tensor([len(ids) for ids in whole])
        first = torch.tensor([len(contexts[row]) for row in part])
        scores[part] = _tail_scores(model.model, padded, first, lengths).cpu().numpy()
    return scores


def _tail_scores(model: Any, padded: Any, first: Any, lengths: Any) -> Any:
    """Sums log p of tokens first .. length - 1 of each row: float64 (R,)."""
    import torch

    device = model.device
    places = torch.arange(padded.shape[1])
    with torch.inference_mode():
        logits = model(
            input_ids=padded.to(device),
            attention_mask=(places < lengths[:, None]).long().to(device),
            use_cache=False,
        ).logits
        logs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        of_tokens = logs.gather(-1, padded[:, 1:, None].to(device))[..., 0]
    counted = (places[1:] >= first[:, None]) & (places[1:] < lengths[:, None])
    return (of_tokens.double() * counted.to(device)).sum(dim=1)


def _passes(
    rows: list[int], contexts: Sequence[list[int]], after: Sequence[list[int]], vocabulary: int
) -> Iterator[list[int]]:
    """Rows of similar length, as many at a time as their logits have room."""
    ordered = sorted(rows, key=lambda row: len(contexts[row]) + len(after[row]), reverse=True)
    while ordered:
        longest = len(contexts[ordered[0]]) + len(after[ordered[0]])
        count = max(1, _LOGITS_AT_A_TIME // (longest * vocabulary))
        yield ordered[:count]
        ordered = ordered[count:]


def drawn_by_score(scores: np.ndarray, seed: int) -> np.ndarray:
    """Draws a column of each row with probability in proportion to e^score: int64 (N,).

    Args:
        scores: (N, K) log weights.
        seed: Public; row i draws from the stream (seed, i, 1).
    """
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    uniform = np.array(
        [np.random.default_rng([seed, row, 1]).random() for row in range(len(scores))]
    )
    cumulative = weights.cumsum(axis=1)
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
