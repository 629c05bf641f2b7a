import numpy as np
import pytest

from dpsynth_assets.metrics.evaluation import (
    EvaluationSettings,
    PrivateReference,
    ScoredCorpus,
    evaluate_corpora,
    gap_closed,
)
from dpsynth_assets.metrics.mauve import MauveSettings

SECRET = "my brother sold the green van to a dentist from Odderby last winter for cash"
QUICK = EvaluationSettings(
    mauve=MauveSettings(repeats=1, kmeans_initializations=1, kmeans_iterations=10)
)


@pytest.fixture(scope="module")
def scores():
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = ["left" if value > 0 else "right" for value in features[:, 0]]
    texts = [f"ordinary row {n}" for n in range(40)]
    reference = PrivateReference(
        source_texts=[*texts[1:], SECRET],
        source_labels=labels,
        source_features=features,
        held_out_texts=texts,
        held_out_labels=labels,
        held_out_features=features,
        canaries=["ODDERBY-LAST", "NEVER-SEEN-00"],
    )
    far = -features
    corpora = [
        ScoredCorpus(name="clean", texts=texts, labels=labels, features=features),
        ScoredCorpus(name="leaking", texts=[SECRET] * 40, labels=labels, features=far),
    ]
    return {s.name: s for s in evaluate_corpora(corpora, reference, [], QUICK, lambda *_: None)}


def test_planted_leak_is_seen_in_the_leaking_corpus_only(scores):
    assert (scores["leaking"].verbatim_share, scores["clean"].verbatim_share) == (1.0, 0.0)
    assert (scores["leaking"].canaries_found, scores["clean"].canaries_found) == (1, 0)


def test_corpus_like_the_held_out_records_outscores_its_opposite(scores):
    assert scores["clean"].mauve > scores["leaking"].mauve
    assert scores["clean"].accuracy > scores["leaking"].accuracy


def test_scores_hold_no_text(scores):
    assert not any("Odderby" in str(score.to_json()) for score in scores.values())


def test_gap_closed_runs_from_floor_to_ceiling():
    assert gap_closed(0.2, 0.2, 0.6) == 0.0
    assert gap_closed(0.5, 0.2, 0.6) == pytest.approx(0.75)
    assert gap_closed(0.5, 0.6, 0.2) is None
    assert gap_closed(None, 0.2, 0.6) is None
