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
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.metrics.evaluation import EvaluationSettings
from dpsynth_assets.metrics.metric import Estimate, Need, ScoredSide, Sides
from dpsynth_assets.metrics.registry import benchmarked
from dpsynth_assets.metrics.text import structure_scores
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.next_word_model import NextWordSettings
from dpsynth_assets.models.text_embedder import TextEmbedder

DIGITS = 6
"""Of a kept draw."""


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
        return ScoredSide.of(self.held_out, self.cohort.held_out["text"].to_list())

    def of_rows(self, rows: pl.DataFrame, seed: int, name: str) -> dict[str, Any]:
        """Scores a corpus; if it is too small, `scored_rows` is 0 and structure alone is scored.

        `draws` holds the resamples of each score that has them.
        """
        structure = self._structure(rows["text"].to_list())
        if rows.height < self.rows:
            return {"scored_rows": 0, **structure}
        sample = rows.sample(self.rows, shuffle=True, seed=seed)
        found = self._measured(sample, seed, name)
        return {
            "scored_rows": sample.height,
            **{key: e.value if isinstance(e, Estimate) else e for key, e in found.items()},
            **structure,
            "draws": {
                key: estimate.draws.round(DIGITS).tolist()
                for key, estimate in found.items()
                if isinstance(estimate, Estimate)
            },
        }

    def _measured(self, rows: pl.DataFrame, seed: int, name: str) -> dict[str, Estimate | float]:
        """Scores that there are; one that needs labels once for each part of the label."""
        texts = rows["text"].to_list()
        features = self.embedder.embed(texts, public=True)
        corpus = ScoredSide.of(features, texts, name=name)
        next_word = None if self.next_word is None else self.next_word.model_dump()
        sides = Sides(
            corpus=corpus,
            held_out=self.held_out_side,
            settings=EvaluationSettings(
                max_rows=self.rows, seed=seed, next_word=next_word and next_word | {"seed": seed}
            ),
            labelled=False,
            language_model=self.language_model,
        )
        found: dict[str, Estimate | float] = {}
        for metric in benchmarked():
            parts = {"": sides} if Need.LABELS not in metric.needs else self._parts(sides, rows)
            scores = {f"{metric.name}{of}": metric.of(part) for of, part in parts.items()}
            found |= {key: score for key, score in scores.items() if score is not None}
        return found

    def _parts(self, sides: Sides, rows: pl.DataFrame) -> dict[str, Sides]:
        """Both sides with each part of the label in turn, by the ending of a score's name."""
        parts: dict[str, Sides] = {}
        for place, name in enumerate(self.cohort.label_names if self.cohort.labels else ()):
            given, truth = (
                [label.split(SEPARATOR)[place] for label in table["label"]]
                for table in (rows, self.cohort.held_out)
            )
            parts[f"_{name}" if name else ""] = replace(
                sides,
                corpus=replace(sides.corpus, labels=given),
                held_out=replace(sides.held_out, labels=truth),
                labelled=True,
            )
        return parts

    def _structure(self, texts: Sequence[str]) -> dict[str, Any]:
        """Shares of all rows that are records, where a schema is declared."""
        if "structured" not in self.cohort.declared:  # Shares need no equal number of rows.
            return {}
        return structure_scores(texts, self.cohort.declared["structured"]["json_schema"])

    def of_model(self, folder: Path) -> dict[str, float]:
        """Scores a downstream model that was trained on the records themselves."""
        held_out = self.cohort.held_out
        texts, labels = held_out["text"].to_list(), held_out["label"].to_list()
        return downstream_model_scores(folder, texts, labels, self.held_out)
