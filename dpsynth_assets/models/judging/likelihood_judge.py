"""What a judge is, and a judge by likelihood under a public language model.

The latter needs no instruction-tuned model: texts that the model finds less likely than nearly all
public text are broken sentences; texts it finds more likely than any are loops and clichés.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.models.language_model import IGNORED, padded, token_losses
from dpsynth_assets.models.prompt_templates import PromptedModel

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel

ShareCallback = Callable[[float], None]


class JudgeError(ValueError):
    """A judge cannot judge: one line, expected, got, remedy."""


@dataclass(frozen=True)
class Verdict:
    """Judgement of one text.

    Attributes:
        accepted: Whether the text is kept.
        score: The judge's measure of it; None where it gave none.
    """

    accepted: bool
    score: float | None


class Judge(Protocol):
    """Accepts or rejects texts, each by itself: a verdict depends on no other text.

    **Privacy** Judges see public text and rows sampled from what was released. Choosing among such
    rows is post-processing, whatever the judge does. No judge may be given a private record.
    """

    @property
    def facts(self) -> Mapping[str, Any]:
        """Public settings and thresholds (JSON values), for metadata and card."""

    def judge(self, texts: Sequence[str], progress: ShareCallback | None = None) -> list[Verdict]:
        """Judges N texts, in order.

        Args:
            texts: N public or released texts.
            progress: Called with the share of texts done, in [0, 1].

        Raises:
            JudgeError: The judge gives no usable answer at all.
        """


_LOGITS_BYTES = 2**28
_TOKENS_PER_FORWARD = 4096
_ROWS_PER_FORWARD = 64
"""Bounds of one pass: its logits' memory, its padded tokens, its texts. One text always passes."""


class LikelihoodJudge:
    """Keeps texts whose mean log-likelihood per token lies between two quantiles of public text.

    Args:
        language_model: Public language model; a text is read as a document without label.
        public_texts: Public documents, at least ten, that thresholds are taken from.
        lowest_quantile: Share of public text that is less likely than any text kept, in [0, 1).
        highest_quantile: Share of public text that is at most as likely, in (0, 1].
        max_text_tokens: Texts are cut to this length before they are judged (tokens).

    Attributes:
        lowest: Least mean log-likelihood per token of a text that is kept, in nats.
        highest: Greatest one.

    Raises:
        JudgeError: Too few public texts, or quantiles that leave nothing between them.

    **Privacy** Model and thresholds come from public text.
    """

    def __init__(
        self,
        language_model: "LanguageModel",
        public_texts: Sequence[str],
        *,
        lowest_quantile: float = 0.05,
        highest_quantile: float = 1.0,
        max_text_tokens: int = 1024,
    ) -> None:
        if not 0 <= lowest_quantile < highest_quantile <= 1 or max_text_tokens < 1:
            raise JudgeError(
                "Expected 0 <= lowest_quantile < highest_quantile <= 1 and max_text_tokens >= 1, "
                f"got {lowest_quantile}, {highest_quantile} and {max_text_tokens}."
            )
        self._language_model, self._max_text_tokens = language_model, max_text_tokens
        self._quantiles = (lowest_quantile, highest_quantile)
        public = self.log_likelihoods(public_texts)
        public = public[np.isfinite(public)]
        if len(public) < 10:
            raise JudgeError(
                f"Expected at least 10 public texts to take a threshold from, got {len(public)}; "
                "give the public base more text."
            )
        self.lowest, self.highest = map(float, np.quantile(public, self._quantiles))
        self._public_texts = len(public)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Name of the judge, its quantiles and the thresholds they gave, in nats per token."""
        return {
            "judge": "likelihood",
            "judge_model": self._language_model.name,
            "quantile_lowest": self._quantiles[0],
            "quantile_highest": self._quantiles[1],
            "threshold_lowest": round(self.lowest, 4),
            "threshold_highest": round(self.highest, 4),
            "threshold_texts": self._public_texts,
        }

    def judge(self, texts: Sequence[str], progress: ShareCallback | None = None) -> list[Verdict]:
        """Scores every text; one without tokens is rejected."""
        scores = self.log_likelihoods(texts, progress)
        kept = (scores >= self.lowest) & (scores <= self.highest)
        return [
            Verdict(bool(keep), float(score) if np.isfinite(score) else None)
            for keep, score in zip(kept, scores, strict=True)
        ]

    def log_likelihoods(
        self, texts: Sequence[str], progress: ShareCallback | None = None
    ) -> np.ndarray:
        """Mean log-probability of each text's own tokens, in nats: (N,) float64, <= 0.

        A text without tokens gets minus infinity.
        """
        ids = [self._language_model.encode(text)[: self._max_text_tokens] for text in texts]
        scores = np.full(len(texts), -np.inf)
        order = sorted((row for row in range(len(ids)) if ids[row]), key=lambda row: len(ids[row]))
        done = 0
        for rows in _batches(order, ids, self._language_model.vocabulary_size):
            scores[rows] = self._forward([ids[row] for row in rows])
            done += len(rows)
            if progress is not None:
                progress(done / len(order))
        return scores

    def _forward(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """One pass over texts of about one length: (B,) mean log-probabilities."""
        import torch

        language_model = self._language_model
        start = PromptedModel(language_model).prompt_ids("", (), 1)
        rows = padded([[*start, *text] for text in texts], language_model.pad_token_id)
        targets = padded(texts, IGNORED)  # padding follows: causal, unseen
        with torch.inference_mode():
            logits = language_model.model(
                input_ids=rows[:, :-1].to(language_model.device), use_cache=False
            ).logits[:, len(start) - 1 :]
            losses = token_losses(logits, targets.to(logits.device)).double().cpu()
        return (-losses.sum(1) / (targets != IGNORED).sum(1)).numpy()


def _batches(
    order: Sequence[int], ids: Sequence[Sequence[int]], vocabulary: int
) -> list[list[int]]:
    """Cuts rows, shortest first, into passes of bounded rows and padded tokens."""
    tokens = min(_TOKENS_PER_FORWARD, _LOGITS_BYTES // (4 * vocabulary))
    batches: list[list[int]] = []
    for row in order:
        last = batches[-1] if batches else None
        full = last is None or len(last) == _ROWS_PER_FORWARD
        if full or (len(last or ()) + 1) * len(ids[row]) > tokens:
            batches.append([])
        batches[-1].append(row)
    return batches
