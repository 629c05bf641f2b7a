"""Scores with resamples: MAUVE, energy distance and accuracy of one corpus against held-out rows.

**Privacy** Real held-out rows are read without noise: scores and draws are internal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.metrics.downstream import accuracy_estimate, correct_predictions
from dpsynth_assets.metrics.embedding_distances import (
    energy_distance,
    resampled_energy_distances,
)
from dpsynth_assets.metrics.mauve import (
    MINIMUM_ROWS,
    MauveSettings,
    mauve_is_installed,
    mauve_score,
)
from dpsynth_assets.metrics.resampling import RESAMPLES, Estimate, resampled_counts, seed_of

LEAST_ROWS = 10
"""Rows a side; resamples of fewer say little of what other rows would give."""


@dataclass(frozen=True, kw_only=True)
class ScoredSide:
    """Rows of one side: a corpus, or the held-out records.

    Attributes:
        features: (N, d) embeddings.
        labels: N labels; empty where there are none to tell apart.
        counts: (B, N), how often each row stands in each resample.
    """

    features: np.ndarray = field(repr=False)
    labels: Sequence[str] = field(repr=False, default=())
    counts: np.ndarray = field(repr=False)

    @classmethod
    def of(
        cls,
        features: np.ndarray,
        labels: Sequence[str] = (),
        *,
        name: str = "held out",
        seed: int = 0,
        resamples: int = RESAMPLES,
    ) -> "ScoredSide":
        """Draws resamples; the held-out side has one name for all corpora of a table."""
        rows = max(1, len(features))
        counts = resampled_counts(rows, resamples, seed_of(name, seed))[:, : len(features)]
        return cls(features=features, labels=labels, counts=counts)


def corpus_estimates(
    corpus: ScoredSide, held_out: ScoredSide, mauve: MauveSettings, seed: int
) -> dict[str, Estimate]:
    """Computes what can be computed: a score is missing where there are too few rows or no labels.

    Args:
        corpus: Rows of a corpus.
        held_out: Real rows, the same for all corpora of a table.
        mauve: Constants of MAUVE; it is left out under `MINIMUM_ROWS` rows a side.
        seed: Seed of the classifier's validation split and resamples.
    """
    found: dict[str, Estimate] = {}
    smaller = min(len(corpus.features), len(held_out.features))
    counts = held_out.counts, corpus.counts
    if min(smaller, mauve.max_rows) >= MINIMUM_ROWS and mauve_is_installed():
        score = mauve_score(held_out.features, corpus.features, mauve, *counts)
        found["mauve"] = Estimate.around(score.mean, score.draws)
    if smaller >= LEAST_ROWS:
        sides = held_out.features, corpus.features
        found["energy_distance"] = Estimate.around(
            energy_distance(*sides), resampled_energy_distances(*sides, *counts)
        )
    if smaller >= LEAST_ROWS and len(corpus.labels) > 0 and len(held_out.labels) > 0:
        correct = correct_predictions(
            corpus.features, corpus.labels, held_out.features, held_out.labels, seed
        )
        found["accuracy"] = accuracy_estimate(correct, held_out.counts)
    return found
