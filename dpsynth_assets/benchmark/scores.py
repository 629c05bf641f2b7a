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
from dpsynth_assets.benchmark.reading import near_duplicates, perplexity
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
