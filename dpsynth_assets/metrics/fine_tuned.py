"""Accuracy of an encoder that is fine-tuned on a corpus, as the papers measure it; and its inverse.

Trained on a corpus and tested on real records, it says what the corpus teaches, in the papers' own
way; `downstream.py` does the same by a linear classifier in seconds. Trained on real records and
tested on the corpus, it says how plainly rows show their labels: a share above that of real data
means rows simpler than real ones, and is no merit.

**Privacy** Real text is read without noise: scores are internal, for the steward.

**Source** Amin et al. 2024, section 5.2, three runs; Amin et al. 2025, appendix E.1;
Banayeeanzade et al. 2026 (EPSVec), appendix D.1, both directions.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.metrics.metric import (
    LEAST_ROWS,
    Estimate,
    Metric,
    Need,
    ScoredSide,
    Tables,
    stratified_rows,
)
from dpsynth_assets.models.classifiers import EncoderClassifier, fine_tuned
from dpsynth_assets.models.engines.protocol import opened_once

if TYPE_CHECKING:
    from dpsynth_assets.metrics.evaluation import EvaluationSettings

_NEEDS = frozenset({Need.LABELS, Need.ENCODER})


def runs_estimate(correct: np.ndarray, counts: np.ndarray) -> Estimate:
    """Mean accuracy of the runs; each resample takes one of them and its own test rows.

    Args:
        correct: bool (R, M), which test rows each run names rightly.
        counts: (B, M), how often each test row stands in each resample.
    """
    of_run = correct[np.arange(len(counts)) % len(correct)]
    draws = (counts * of_run).sum(axis=1) / counts.sum(axis=1)
    return Estimate.around(float(correct.mean()), draws)


def _accuracy(
    settings: "EvaluationSettings", taught: ScoredSide, tested: ScoredSide, *, kept: bool
) -> Estimate | None:
    """Of encoders taught by as many rows as a corpus has; kept ones read all corpora of a table.

    None where there are not more rows than labels to learn, or no label that the other side has.
    """
    encoder, seed = settings.encoder, settings.seed
    rows = stratified_rows(taught.labels, settings.max_rows, seed)
    texts, labels = (tuple(side[row] for row in rows) for side in (taught.texts, taught.labels))
    known = set(labels)
    if encoder is None or len(texts) <= len(known) or known.isdisjoint(tested.labels):
        return None
    given = texts, labels, encoder, seed
    trained = opened_once(_trained, *given) if kept else _trained(*given)
    truth = np.asarray(tested.labels)
    named = [each.classify(tested.texts) for each in trained]
    return runs_estimate(np.stack(named) == truth, tested.counts)


def _trained(
    texts: Sequence[str], labels: Sequence[str], encoder: EncoderSpec, seed: int
) -> list[EncoderClassifier]:
    return [fine_tuned(texts, labels, encoder, seed + run) for run in range(encoder.runs)]


ENCODER_ACCURACY = Metric(
    "encoder_accuracy",
    "accuracy of a fine-tuned encoder",
    lambda sides: _accuracy(sides.settings, sides.corpus, sides.held_out, kept=False),
    needs=_NEEDS,
    least_rows=LEAST_ROWS,
    compared=True,
    gap_title="encoder",
    narrow_title="encoder",
    picture="Accuracy of an encoder fine-tuned on each corpus",
    axis="Accuracy of a fine-tuned encoder",
    meaning="Share of real records whose label an encoder trained on the corpus predicts "
    "correctly; more is better. ± covers the runs and the real records; rows of the "
    "corpus are not resampled.",
)

ENCODER_ON_CORPUS = Metric(
    "encoder_on_corpus",
    "encoder of real records, on the corpus",
    lambda sides: _accuracy(sides.settings, sides.held_out, sides.corpus, kept=True),
    needs=_NEEDS,
    least_rows=LEAST_ROWS,
    tables=Tables("scores", "file"),
    meaning="Share of the corpus's rows whose label an encoder trained on real records predicts. "
    "Best near that of real data: more means rows that are easier to classify.",
)
