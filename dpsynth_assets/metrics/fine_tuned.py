"""Accuracy of an encoder that is fine-tuned on a corpus, as the papers measure it; and its inverse.

Trained on a corpus and tested on real records, it says what the corpus teaches, in the papers' own
way; `downstream.py` does the same by a linear classifier in seconds. Trained on real records and
tested on the corpus, it says how plainly rows show their labels: a share above that of real data
means rows simpler than real ones, and is no merit.

**Privacy** Real text is read without noise: scores are internal, for the steward.

**Source** Amin et al. 2024, section 5.2, three runs; Amin et al. 2025, appendix E.1;
Banayeeanzade et al. 2026 (EPSVec), appendix D.1, both directions.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.metrics.metric import (
    LEAST_ROWS,
    Estimate,
    Metric,
    Need,
    ScoredSide,
    Sides,
    Tables,
    stratified_rows,
)
from dpsynth_assets.models.encoder_classifier import EncoderClassifier, fine_tuned
from dpsynth_assets.models.engines.protocol import opened_once

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


def _of_corpus(sides: Sides) -> Estimate | None:
    """Trained on the corpus, tested on real records."""
    corpus, settings = sides.corpus, sides.settings
    if settings.encoder is None or not _teaches(corpus, sides.held_out):
        return None
    trained = (
        fine_tuned(corpus.texts, corpus.labels, settings.encoder, settings.seed + run)
        for run in range(settings.encoder.runs)
    )
    return _tested(trained, sides.held_out)


def _of_real(sides: Sides) -> Estimate | None:
    """Trained on held-out records, as many as a corpus has rows, tested on the corpus."""
    real, settings = sides.held_out, sides.settings
    if settings.encoder is None or not _teaches(real, sides.corpus):
        return None
    rows = stratified_rows(real.labels, settings.max_rows, settings.seed)
    texts, labels = (tuple(side[row] for row in rows) for side in (real.texts, real.labels))
    # All corpora of a table are read by the same classifiers.
    trained = opened_once(_trained_on_real, texts, labels, settings.encoder, settings.seed)
    return _tested(trained, sides.corpus)


def _trained_on_real(
    texts: Sequence[str], labels: Sequence[str], encoder: EncoderSpec, seed: int
) -> list[EncoderClassifier]:
    return [fine_tuned(texts, labels, encoder, seed + run) for run in range(encoder.runs)]


def _teaches(trained: ScoredSide, tested: ScoredSide) -> bool:
    """Whether there are more rows than labels to learn, and a label that the other side has."""
    known = set(trained.labels)
    return len(trained.texts) > len(known) and not known.isdisjoint(tested.labels)


def _tested(trained: Iterable[EncoderClassifier], side: ScoredSide) -> Estimate:
    truth = np.asarray(side.labels)
    return runs_estimate(
        np.stack([each.classify(side.texts) == truth for each in trained]), side.counts
    )


ENCODER_ACCURACY = Metric(
    "encoder_accuracy",
    "accuracy of a fine-tuned encoder",
    _of_corpus,
    needs=_NEEDS,
    least_rows=LEAST_ROWS,
    compared=True,
    gap_title="encoder",
    narrow_title="encoder",
    picture="Accuracy of an encoder fine-tuned on each corpus",
    axis="Accuracy of a fine-tuned encoder",
    meaning="Share of real records whose label an encoder names that was trained on the corpus; "
    "more is better. ± is over the runs and the real records; rows of the corpus are not drawn "
    "again.",
)

ENCODER_ON_CORPUS = Metric(
    "encoder_on_corpus",
    "encoder of real records, on the corpus",
    _of_real,
    needs=_NEEDS,
    least_rows=LEAST_ROWS,
    tables=Tables("scores", "file"),
    meaning="Share of the corpus's rows whose label an encoder names that was trained on real "
    "records. Best near that of real data: more means rows plainer than real ones.",
)
