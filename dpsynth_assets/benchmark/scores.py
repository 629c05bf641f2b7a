"""How near a corpus is to held-out records, and what models that were trained on it get right.

Every corpus of a benchmark is scored on the same number of rows: a corpus with fewer has no scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.benchmark.cohorts import SEPARATOR, Cohort
from dpsynth_assets.metrics.downstream import (
    accuracy_estimate,
    correct_predictions,
    downstream_model_scores,
)
from dpsynth_assets.metrics.embedding_distances import Moments, frechet_distance
from dpsynth_assets.metrics.estimates import ScoredSide, corpus_estimates
from dpsynth_assets.metrics.mauve import MauveSettings
from dpsynth_assets.metrics.next_word import NextWordSettings, next_word_accuracy
from dpsynth_assets.metrics.resampling import Estimate
from dpsynth_assets.metrics.structured import structure_scores
from dpsynth_assets.metrics.text import length_distance
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.text_embedder import TextEmbedder

DIGITS = 6
"""Of a kept draw."""

FLUENCY_ROWS = 100
"""Rows whose perplexity is computed."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Scores corpora of one cohort.

    Attributes:
        cohort: Its held-out records are what corpora are compared with.
        held_out: (M, d) embeddings of the held-out texts.
        embedder: Embeds rows.
        rows: Rows that every corpus is scored on.
        next_word: Size and training of the next-word model; None: none is trained.
        language_model: Says how fluent rows are; None: nothing does.
    """

    cohort: Cohort
    held_out: np.ndarray = field(repr=False)
    embedder: TextEmbedder
    rows: int
    next_word: NextWordSettings | None = None
    language_model: LanguageModel | None = field(default=None, repr=False)

    @cached_property
    def held_out_side(self) -> ScoredSide:
        """The held-out rows, resampled alike for all corpora."""
        return ScoredSide.of(self.held_out)

    def of_rows(self, rows: pl.DataFrame, seed: int, name: str) -> dict[str, Any]:
        """Scores a corpus; if it is too small, `scored_rows` is 0 and structure alone is scored.

        `draws` holds the resamples of each score that has them.
        """
        structure = self._structure(rows["text"].to_list())
        if rows.height < self.rows:
            return {"scored_rows": 0, **structure}
        sample = rows.sample(self.rows, shuffle=True, seed=seed)
        texts = sample["text"].to_list()
        features = self.embedder.embed(texts, public=True)
        side = ScoredSide.of(features, name=name)
        settings = replace(MauveSettings(), max_rows=self.rows)
        resampled = {
            **corpus_estimates(side, self.held_out_side, settings, seed),
            **self._accuracies(features, sample["label"].to_list(), seed),
        }
        return {
            "scored_rows": sample.height,
            **{score: estimate.value for score, estimate in resampled.items()},
            **self._next_word(texts, seed),
            **self._distances(features, texts),
            **self._own(features, texts),
            **structure,
            "draws": {k: e.draws.round(DIGITS).tolist() for k, e in resampled.items()},
        }

    def _structure(self, texts: Sequence[str]) -> dict[str, Any]:
        """Shares of all rows that are records, where a schema is declared."""
        if "structured" not in self.cohort.declared:  # Shares need no equal number of rows.
            return {}
        schema = self.cohort.declared["structured"]["json_schema"]
        return structure_scores(texts, schema).to_json()

    def _own(self, features: np.ndarray, texts: Sequence[str]) -> dict[str, float]:
        """What rows are like without any record beside them."""
        own = {"near_duplicates": near_duplicates(features)}
        if self.language_model is not None:
            own["perplexity"] = perplexity(self.language_model, texts[:FLUENCY_ROWS])
        return own

    def of_model(self, folder: Path) -> dict[str, float]:
        """Scores a downstream model that was trained on the records themselves."""
        held_out = self.cohort.held_out
        texts, labels = held_out["text"].to_list(), held_out["label"].to_list()
        return downstream_model_scores(folder, texts, labels, self.held_out)

    def _accuracies(
        self, features: np.ndarray, labels: Sequence[str], seed: int
    ) -> dict[str, Estimate]:
        """Accuracy of a classifier trained on the rows, for each part of the label."""
        if not self.cohort.labels:
            return {}
        scores, real = {}, self.cohort.held_out["label"].to_list()
        counts = self.held_out_side.counts
        for place, name in enumerate(self.cohort.label_names):
            given = [label.split(SEPARATOR)[place] for label in labels]
            truth = [label.split(SEPARATOR)[place] for label in real]
            of = f"_{name}" if name else ""
            sides = features, given, self.held_out, truth
            plain = correct_predictions(*sides, seed)
            scores[f"accuracy{of}"] = accuracy_estimate(plain, counts)
            balanced = correct_predictions(*sides, seed, strength=10.0)
            scores[f"balanced_accuracy{of}"] = balanced_estimate(balanced, truth, counts)
        return scores

    def _next_word(self, texts: Sequence[str], seed: int) -> dict[str, float]:
        if self.next_word is None:
            return {}
        settings = self.next_word.model_copy(update={"seed": seed})
        found = next_word_accuracy(texts, self.cohort.held_out["text"].to_list(), settings)
        return {"next_word_accuracy": found.accuracy, "next_word_perplexity": found.perplexity}

    def _distances(self, features: np.ndarray, texts: Sequence[str]) -> dict[str, float]:
        moments = Moments.of(features), Moments.of(self.held_out)
        return {
            "frechet_distance": frechet_distance(*moments),
            "length_distance": length_distance(texts, self.cohort.held_out["text"].to_list()),
        }


def balanced_estimate(correct: np.ndarray, truth: Sequence[str], counts: np.ndarray) -> Estimate:
    """Mean over labels of the share recognised: who names the largest label alone gets 1/L.

    Six in ten reviews are of restaurants: plain accuracy rewards a classifier that knows no other.
    A label that no row of a resample has is left out of its mean.
    """
    of_label = [np.asarray(truth) == label for label in dict.fromkeys(truth)]
    value = float(np.mean([correct[0][rows].mean() for rows in of_label]))
    refits = correct[1 + np.arange(len(counts)) % (len(correct) - 1)]
    recalls = []
    for rows in of_label:
        drawn = counts[:, rows].sum(axis=1)
        hits = (counts[:, rows] * refits[:, rows]).sum(axis=1)
        recalls.append(np.divide(hits, drawn, out=np.full(len(drawn), np.nan), where=drawn > 0))
    return Estimate.around(value, np.nanmean(recalls, axis=0))


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
