"""How near a corpus is to held-out records, and what models that were trained on it get right.

Every corpus of a table is scored on the same number of rows: a corpus with fewer has no scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from cohorts import SEPARATOR, Cohort

from dpsynth_assets.metrics.downstream import downstream_accuracy, downstream_model_scores
from dpsynth_assets.metrics.embedding_distances import Moments, energy_distance, frechet_distance
from dpsynth_assets.metrics.mauve import MauveSettings, mauve_is_installed, mauve_score
from dpsynth_assets.metrics.next_word import NextWordSettings, next_word_accuracy
from dpsynth_assets.metrics.structured import structure_scores
from dpsynth_assets.metrics.text import length_distance
from dpsynth_assets.models.text_embedder import TextEmbedder

MAUVE_ROWS = 100
"""With fewer rows on either side MAUVE orders nothing, and is left out."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Scores corpora of one cohort.

    Attributes:
        cohort: Its held-out records are what corpora are compared with.
        held_out: (M, d) embeddings of the held-out texts.
        embedder: Embeds rows.
        rows: Rows that every corpus is scored on.
        next_word: Size and training of the next-word model.
    """

    cohort: Cohort
    held_out: np.ndarray = field(repr=False)
    embedder: TextEmbedder
    rows: int
    next_word: NextWordSettings

    def of_rows(self, rows: pl.DataFrame, seed: int) -> dict[str, Any]:
        """Scores a corpus; `scored_rows` is 0, and nothing else is there, if it is too small."""
        if "structured" in self.cohort.declared:  # Counts and shares need no equal number.
            schema = self.cohort.declared["structured"]["json_schema"]
            return structure_scores(rows["text"].to_list(), schema).to_json()
        if rows.height < self.rows:
            return {"scored_rows": 0}
        sample = rows.sample(self.rows, shuffle=True, seed=seed)
        texts = sample["text"].to_list()
        features = self.embedder.embed(texts, public=True)
        return {
            "scored_rows": sample.height,
            **self._label_scores(features, sample["label"].to_list(), seed),
            **self._next_word(texts, seed),
            **self._distances(features, texts, seed),
        }

    def of_model(self, folder: Path) -> dict[str, float]:
        """Scores a downstream model that was trained on the records themselves."""
        held_out = self.cohort.held_out
        texts, labels = held_out["text"].to_list(), held_out["label"].to_list()
        return downstream_model_scores(folder, texts, labels, self.held_out)

    def _label_scores(
        self, features: np.ndarray, labels: Sequence[str], seed: int
    ) -> dict[str, float]:
        """Accuracy of a classifier trained on the rows, for each part of the label."""
        if not self.cohort.labels:
            return {}
        scores, real = {}, self.cohort.held_out["label"].to_list()
        for place, name in enumerate(self.cohort.label_names):
            given = [label.split(SEPARATOR)[place] for label in labels]
            truth = [label.split(SEPARATOR)[place] for label in real]
            of = f"_{name}" if name else ""
            accuracy = downstream_accuracy(features, given, self.held_out, truth, seed=seed)
            scores[f"accuracy{of}"] = accuracy
            scores[f"balanced_accuracy{of}"] = balanced_accuracy(
                features, given, self.held_out, truth
            )
        return scores

    def _next_word(self, texts: Sequence[str], seed: int) -> dict[str, float]:
        settings = self.next_word.model_copy(update={"seed": seed})
        found = next_word_accuracy(texts, self.cohort.held_out["text"].to_list(), settings)
        return {"next_word_accuracy": found.accuracy, "next_word_perplexity": found.perplexity}

    def _distances(self, features: np.ndarray, texts: Sequence[str], seed: int) -> dict[str, float]:
        real = self.held_out
        found = {
            "frechet_distance": frechet_distance(Moments.of(features), Moments.of(real)),
            "energy_distance": float(energy_distance(features, real)),
            "length_distance": length_distance(texts, self.cohort.held_out["text"].to_list()),
        }
        both = min(len(features), len(real))
        if both >= MAUVE_ROWS and mauve_is_installed():
            settings = replace(MauveSettings(), max_rows=both, seed=seed)
            found["mauve"] = mauve_score(real, features, settings).mean
        return found


def balanced_accuracy(
    features: np.ndarray, labels: Sequence[str], real: np.ndarray, real_labels: Sequence[str]
) -> float:
    """Mean over labels of the share recognised: who names the largest label alone gets 1/L.

    Six in ten reviews are of restaurants: plain accuracy rewards a classifier that knows no other.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    if len(set(labels)) == 1:
        return 1.0 / len(set(real_labels))
    model = LogisticRegression(C=10.0, max_iter=300).fit(features, labels)
    return float(balanced_accuracy_score(real_labels, model.predict(real)))
