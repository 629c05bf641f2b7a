import dataclasses
import json
import sys

import numpy as np
import pytest

from dpsynth_assets.metrics.embedding_distances import MauveSettings
from dpsynth_assets.metrics.evaluation import (
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import ScoredSide, stratified_rows

SETTINGS = EvaluationSettings(
    max_rows=120,
    resamples=40,
    mauve=MauveSettings(repeats=1, kmeans_initializations=1, kmeans_iterations=20),
)
SECRET = (
    "Marta took the blue kayak past the northern lighthouse on Thursday and lost a silver compass"
)
CANARY = "X7QK-4Z9W-K2V8"


def _rows(prefix, count, seed):
    generator = np.random.default_rng(seed)
    labels = ["calm" if row % 2 else "angry" for row in range(count)]
    features = generator.normal(size=(count, 8)) + (np.arange(count) % 2 * 4)[:, None]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    texts = [f"{prefix} {row}" for row in range(count)]
    return ScoredSide(texts=texts, labels=labels, features=features.astype(np.float32))


@pytest.fixture(scope="module")
def reference():
    source, held_out = _rows("source", 160, 0), _rows("held out", 120, 1)
    source.texts[3] = f"{SECRET} {CANARY}"
    return PrivateReference(source=source, held_out=held_out, canaries=[CANARY])


def _corpus(seed=2, count=120, **changes):
    return dataclasses.replace(_rows("made up", count, seed), **({"name": "corpus"} | changes))


def _score(corpus, reference):
    return Evaluation(reference=reference, settings=SETTINGS).scores(corpus)


def test_a_corpus_of_the_same_distribution_scores_like_real_data(reference):
    scores = _score(_corpus(), reference)
    real = Evaluation(reference=reference, settings=SETTINGS).real_scores()
    assert scores["accuracy"] > 0.9
    assert real["accuracy"] > 0.9
    assert abs(scores["mauve"] - real["mauve"]) < 0.3
    assert (scores.rows, real.rows) == (120, 120)


def test_a_corpus_of_the_wrong_labels_scores_below(reference):
    labels = _rows("made up", 120, 2).labels
    scores = _score(_corpus(labels=labels[::-1]), reference)
    assert scores["accuracy"] < 0.1
    assert scores["label_distance"] == 0


def test_copies_are_counted_against_the_source(reference):
    corpus = _corpus()
    copied = [*corpus.texts[:117], SECRET, SECRET, f"code {CANARY.lower()}"]
    features = np.concatenate([corpus.features[:119], reference.source.features[:1]])
    clean = _score(corpus, reference)
    scores = _score(_corpus(texts=copied, features=features), reference)
    assert (clean["verbatim_share"], clean["canaries_found"]) == (0.0, 0)
    assert scores["verbatim_share"] == pytest.approx(2 / 120)
    assert scores["canaries_found"] == 1
    assert scores["near_duplicate_share"] >= 1 / 120


def test_at_most_max_rows_are_scored(reference):
    first = _corpus(count=150)
    rows = stratified_rows(first.labels, 120, SETTINGS.seed)
    assert _score(first, reference) == _score(first.rows(rows), reference)


@pytest.mark.parametrize("count", [0, 1, 99])
def test_a_small_corpus_has_no_mauve_and_raises_nothing(reference, count):
    scores = _score(_corpus(count=count), reference)
    assert scores.rows == count
    assert scores["mauve"] is None


def test_without_the_extra_all_but_mauve_is_scored(reference, monkeypatch):
    complete = _score(_corpus(), reference)
    monkeypatch.setitem(sys.modules, "mauve", None)
    scores = _score(_corpus(), reference)
    absent = {"mauve": None, "mauve_std": None}
    assert scores == dataclasses.replace(complete, values=complete.values | absent)
    assert SETTINGS.to_json()["mauve"] == "not computed; pip install 'dpsynth_assets[mauve]'"


def test_without_labels_there_is_no_accuracy(reference):
    source, held_out = (
        dataclasses.replace(side, labels=[""] * len(side.texts))
        for side in (reference.source, reference.held_out)
    )
    unlabelled = dataclasses.replace(reference, source=source, held_out=held_out)
    assert _score(_corpus(labels=[""] * 120), unlabelled)["accuracy"] is None
    assert Evaluation(reference=unlabelled, settings=SETTINGS).real_scores()["accuracy"] is None


def test_nothing_private_shows_in_a_repr(reference):
    shown = repr(reference) + repr(_corpus(texts=[SECRET] * 120)) + repr(SETTINGS)
    assert "kayak" not in shown
    assert CANARY not in shown
    assert "source 1" not in shown


def test_settings_print_the_constants_that_are_used():
    printed = SETTINGS.to_json()
    assert printed["mauve"]["max_rows"] == printed["max_rows"] == 120


def test_resampled_scores_stand_with_their_spread_and_leave_the_draws_behind(reference):
    scores = _score(_corpus(), reference)
    assert set(scores.estimates) == {"mauve", "energy_distance", "accuracy"}
    for name, estimate in scores.estimates.items():
        assert scores[name] == estimate.value
        assert scores[f"{name}_std"] == estimate.std > 0
    assert "estimates" not in scores.to_json()
    json.dumps(scores.to_json())


def test_held_out_rows_are_resampled_alike_for_every_corpus(reference):
    """Corpora that are the same but for their names differ by their own rows alone."""
    first, second = (_score(_corpus(name=name), reference).estimates for name in ("a", "b"))
    drawn = np.corrcoef(first["accuracy"].draws, second["accuracy"].draws)[0, 1]
    assert drawn > 0.9  # Classifiers of all resamples agree here: what is left is held-out rows.
    assert not np.array_equal(first["energy_distance"].draws, second["energy_distance"].draws)
