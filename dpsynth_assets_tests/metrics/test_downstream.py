import numpy as np
import pytest

from dpsynth_assets.metrics.downstream import (
    REFITS,
    accuracy_estimate,
    correct_predictions,
)
from dpsynth_assets.metrics.metric import resampled_counts


def accuracy(*sides):
    """Of a classifier trained on the corpus as it is."""
    return correct_predictions(*sides)[0].mean()


def _two_classes(rows, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    features = generator.normal(size=(rows, 8)) + labels[:, None] * 4
    return features.astype(np.float32), [f"class {label}" for label in labels]


def test_separable_classes_are_learned():
    assert accuracy(*_two_classes(100, 0), *_two_classes(100, 1)) > 0.95


def test_a_label_never_trained_on_counts_as_missed():
    features, labels = _two_classes(60, 0)
    assert accuracy(features, labels, features, ["other"] * 60) == 0.0


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_tiny_corpora_are_scored(rows):
    features, _ = _two_classes(rows, 0)
    labels = ["a", *["b"] * (rows - 1)]
    assert 0.0 <= accuracy(features, labels, features, labels) <= 1.0


def test_the_test_side_selects_nothing():
    """Scoring rows one by one gives the score of all: no setting saw the test labels."""
    train, test = _two_classes(80, 0), _two_classes(5, 1)
    alone = [accuracy(*train, test[0][[i]], [test[1][i]]) for i in range(5)]
    assert np.mean(alone) == pytest.approx(accuracy(*train, *test))


def test_resampled_accuracies_stand_around_the_accuracy():
    generator = np.random.default_rng(8)
    features, labels = _two_classes(60, 0)
    features = features + generator.normal(scale=4, size=features.shape).astype(np.float32)
    test, test_labels = _two_classes(80, 1)
    test = test + generator.normal(scale=4, size=test.shape).astype(np.float32)
    correct = correct_predictions(features, labels, test, test_labels)
    estimate = accuracy_estimate(correct, resampled_counts(80, 200, 0))
    assert correct.shape == (1 + REFITS, 80)
    assert estimate.value == accuracy(features, labels, test, test_labels)
    assert estimate.draws.mean() == pytest.approx(estimate.value)
    of_rows_alone = np.sqrt(estimate.value * (1 - estimate.value) / 80)
    assert of_rows_alone / 2 < estimate.std < 5 * of_rows_alone


def test_a_corpus_of_one_label_predicts_it_and_is_resampled_too():
    features, labels = _two_classes(20, 0)
    correct = correct_predictions(features, ["class 0"] * 20, features, labels)
    assert (correct == (np.asarray(labels) == "class 0")).all()
