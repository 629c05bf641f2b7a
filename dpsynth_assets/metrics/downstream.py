"""Train on synthetic, test on real: accuracy of a linear classifier on frozen embeddings.

The paper fine-tunes a 110M BERT; multinomial logistic regression on frozen sentence embeddings
takes seconds on a CPU and orders corpora in the same way, but its values are its own. A downstream
model that was trained on private records by DP, without a corpus, is scored likewise.

**Privacy** Real held-out text is read without noise: scores are internal, for the steward.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.metrics.metric import (
    LEAST_ROWS,
    Estimate,
    Metric,
    ScoredSide,
    Sides,
    Tables,
    stratified_rows,
)
from dpsynth_assets.models.classifiers import LABELS_FILE, EncoderClassifier, classify, fine_tuned
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.models.next_word_model import (
    NextWordScores,
    load_next_word_model,
    new_next_word_model,
    score_next_words,
    train_next_word_model,
)

if TYPE_CHECKING:
    from dpsynth_assets.metrics.evaluation import EvaluationSettings


INVERSE_REGULARIZATION = (1.0, 10.0, 100.0)
VALIDATION_SHARE = 0.1
ITERATIONS = 300
REFITS = 20
"""Classifiers trained on resampled rows: few, as each is trained again."""


def correct_predictions(
    train_features: np.ndarray,
    train_labels: Sequence[str],
    test_features: np.ndarray,
    test_labels: Sequence[str],
    seed: int = 0,
) -> np.ndarray:
    """Trains on a corpus and on `REFITS` resamples of its rows, and tests each.

    Args:
        train_features: (N, d) embeddings of the synthetic corpus, N >= 1.
        train_labels: N labels.
        test_features: (M, d) embeddings of real held-out text, M >= 1.
        test_labels: M labels; a label never seen in training counts as missed.
        seed: Seed of the validation split and of the resamples.

    Returns:
        bool (1 + REFITS, M): which test rows are classified correctly; the first line is of the
        corpus as it is. A corpus of one label predicts that label.

    **Source** Amin et al. 2025, Appendix E.1: a tenth of the training side selects the settings;
    real text never does.
    """
    train, test = np.asarray(train_labels), np.asarray(test_labels)
    strength = _select_strength(train_features, train, seed)
    generator, rows = np.random.default_rng(seed), len(train)
    choices = [np.arange(rows), *(generator.integers(rows, size=rows) for _ in range(REFITS))]
    return np.stack(
        [
            _predicted(train_features[chosen], train[chosen], test_features, strength) == test
            for chosen in choices
        ]
    )


def accuracy_estimate(correct: np.ndarray, test_counts: np.ndarray) -> Estimate:
    """Accuracy with its resamples: resample b takes refit b modulo `REFITS` and its own test rows.

    Args:
        correct: bool (1 + REFITS, M) of `correct_predictions`.
        test_counts: (B, M), how often each test row stands in each resample.
    """
    refits = 1 + np.arange(len(test_counts)) % (len(correct) - 1)
    draws = (test_counts * correct[refits]).sum(axis=1) / test_counts.sum(axis=1)
    return Estimate.around(float(correct[0].mean()), draws)


def _predicted(
    train_features: np.ndarray, train: np.ndarray, test_features: np.ndarray, strength: float
) -> np.ndarray:
    """Labels of the test rows by a classifier of the training rows; of one label, that label."""
    if len(np.unique(train)) == 1:
        return np.full(len(test_features), train[0])
    return np.asarray(_fit(train_features, train, strength).predict(test_features))


def _select_strength(features: np.ndarray, labels: np.ndarray, seed: int) -> float:
    """Chooses C on a validation split of the training side; ties go to more regularization."""
    if len(np.unique(labels)) == 1:
        return INVERSE_REGULARIZATION[1]
    order = np.random.default_rng(seed).permutation(len(labels))
    size = round(VALIDATION_SHARE * len(labels))
    validation, fitting = order[:size], order[size:]
    if size == 0 or len(np.unique(labels[fitting])) == 1:
        return INVERSE_REGULARIZATION[1]
    scores = [
        _fit(features[fitting], labels[fitting], strength).score(
            features[validation], labels[validation]
        )
        for strength in INVERSE_REGULARIZATION
    ]
    return INVERSE_REGULARIZATION[int(np.argmax(scores))]


def _fit(features: np.ndarray, labels: np.ndarray, strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=ITERATIONS).fit(features, labels)


def downstream_model_scores(folder: Path, held_out: ScoredSide) -> dict[str, float]:
    """Tests a released downstream model on real held-out records.

    Args:
        folder: Files of the stage `downstream_model`.
        held_out: The records.

    Returns:
        `accuracy` of a classifier, or `next_word_accuracy` and `next_word_perplexity`: as those
        that were trained on corpora, where shapes agree.
    """
    if (folder / LABELS_FILE).is_file():
        predicted = np.asarray(classify(folder, held_out.features))
        return {"accuracy": float(np.mean(predicted == np.asarray(held_out.labels)))}
    model, settings = load_next_word_model(folder)
    scores = score_next_words(model, held_out.texts, settings)
    return {"next_word_accuracy": scores.accuracy, "next_word_perplexity": scores.perplexity}


def _accuracy(sides: Sides) -> Estimate | None:
    """None where corpus and held-out records have no label in common."""
    corpus, held_out, seed = sides.corpus, sides.held_out, sides.settings.seed
    if set(corpus.labels).isdisjoint(held_out.labels):
        return None
    given = corpus.features, corpus.labels, held_out.features, held_out.labels
    return accuracy_estimate(correct_predictions(*given, seed), held_out.counts)


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    _accuracy,
    needs=("labelled",),
    least_rows=LEAST_ROWS,
    compared=True,
    picture="Accuracy of a classifier trained on each corpus",
    axis="Downstream accuracy",
)


# Next-word prediction: train a small causal model on a corpus, test it on real text.
#
# The generative counterpart of downstream accuracy: it asks for words in their order, where a
# classifier is content with which words go with which label.
#
# **Privacy** Real text is read without noise: scores are internal, for the steward.


def next_word_accuracy(
    train_texts: Sequence[str], test_texts: Sequence[str], settings: NextWordSettings
) -> NextWordScores:
    """Trains a small causal model on one corpus and tests it on real held-out text.

    Every corpus gets the same vocabulary, start, order seed and number of training tokens, however
    many rows it has: a smaller corpus is read more often. Equal arguments give equal scores on one
    machine.

    Args:
        train_texts: The corpus, at least one text with a word.
        test_texts: Real held-out texts; the first `settings.score_texts` are used.
        settings: Size, budget and seed.

    Returns:
        Accuracy and perplexity on the held-out texts. Scores of different settings do not compare.

    Raises:
        ValueError: If either side has no text with a word.

    **Source** CTCL, section 4.1.3 (Xie et al. 2024): 10M-class causal models trained on synthetic
    text; ours is smaller unless settings say otherwise.
    """
    model = new_next_word_model(settings)
    train_next_word_model(model, train_texts, settings)
    return score_next_words(model, test_texts, settings)


def _scores(sides: Sides) -> NextWordScores:
    return _scored(sides, sides.settings.next_word)


def _scored(sides: Sides, settings: NextWordSettings | None) -> NextWordScores:
    asked = settings or NextWordSettings()
    return next_word_accuracy(sides.corpus.texts, sides.held_out.texts, asked)


_NEXT_WORD = "settings.next_word", "has_words"

NEXT_WORD_ACCURACY = Metric(
    "next_word_accuracy",
    "next-word accuracy",
    lambda sides: sides.once(_scores).accuracy,
    needs=_NEXT_WORD,
    narrow_title="next word",
)
"""Share of tokens of held-out records that a model trained on the corpus gets right."""

NEXT_WORD_ACCURACY_LARGER = Metric(
    "next_word_accuracy_larger",
    "next-word accuracy of the larger model",
    lambda sides: _scored(sides, sides.settings.next_word_larger).accuracy,
    needs=(*_NEXT_WORD, "settings.next_word_larger"),
    tables=Tables("scores", None),
)
"""The same of a model of another size: the papers report two."""

NEXT_WORD_PERPLEXITY = Metric(
    "next_word_perplexity",
    "next-word perplexity",
    lambda sides: sides.once(_scores).perplexity,
    less_is_better=True,
    decimals=1,
    needs=_NEXT_WORD,
    tables=Tables("text", "file"),
)


# Accuracy of an encoder that is fine-tuned on a corpus, as the papers measure it; and its inverse.
#
# Trained on a corpus and tested on real records, it says what the corpus teaches, in the papers'
# own way; the linear classifier above does the same in seconds. Trained on real records and tested
# on the corpus, it says how plainly rows show their labels: a share above that of real data means
# rows simpler than real ones, and is no merit.
#
# **Privacy** Real text is read without noise: scores are internal, for the steward.
#
# **Source** Amin et al. 2024, section 5.2, three runs; Amin et al. 2025, appendix E.1;
# Banayeeanzade et al. 2026 (EPSVec), appendix D.1, both directions.


_NEEDS = "labelled", "settings.encoder"


def runs_estimate(correct: np.ndarray, counts: np.ndarray) -> Estimate:
    """Mean accuracy of the runs; each resample takes one of them and its own test rows.

    Args:
        correct: bool (R, M), which test rows each run names rightly.
        counts: (B, M), how often each test row stands in each resample.
    """
    of_run = correct[np.arange(len(counts)) % len(correct)]
    draws = (counts * of_run).sum(axis=1) / counts.sum(axis=1)
    return Estimate.around(float(correct.mean()), draws)


def _encoder_accuracy(
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
    lambda sides: _encoder_accuracy(sides.settings, sides.corpus, sides.held_out, kept=False),
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
    lambda sides: _encoder_accuracy(sides.settings, sides.held_out, sides.corpus, kept=True),
    needs=_NEEDS,
    least_rows=LEAST_ROWS,
    tables=Tables("scores", "file"),
    meaning="Share of the corpus's rows whose label an encoder trained on real records predicts. "
    "Best near that of real data: more means rows that are easier to classify.",
)
