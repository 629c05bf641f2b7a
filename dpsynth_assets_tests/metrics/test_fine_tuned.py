"""Laws of the fine-tuned encoder: it learns what a corpus teaches; tested rows decide nothing."""

import numpy as np
import pytest

from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.metrics.evaluation import (
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.models.classifiers import fine_tuned
from dpsynth_assets.records.checking import _check_models
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.tiny_models import write_language_model

WORDS = {"ferry": "the ferry to the harbour was late", "cake": "fold the eggs into the sweet dough"}
OTHER = {"ferry": "cake", "cake": "ferry"}


def _rows(count, seed):
    draw = np.random.default_rng(seed)
    labels = [("ferry", "cake")[row % 2] for row in range(count)]
    return [f"{WORDS[label]} {draw.integers(9)}" for label in labels], labels


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    texts, _ = _rows(60, 0)
    folder = write_language_model(tmp_path_factory.mktemp("encoder"), texts)
    return EncoderSpec(model=str(folder), epochs=6, learning_rates=(1e-3,), runs=2, batch=8)


def _scores(encoder, labels, held_out_labels=None):
    """Of a corpus with these labels, and of real data."""
    settings = EvaluationSettings(max_rows=40, resamples=50, encoder=encoder)
    (source, held_out), blank = (_rows(60, 1), _rows(60, 2)), np.zeros((60, 2), np.float32)
    known = held_out_labels or held_out[1]
    reference = PrivateReference(
        source=ScoredSide(texts=source[0], labels=source[1], features=blank),
        held_out=ScoredSide(texts=held_out[0], labels=known, features=blank),
    )
    corpus = ScoredSide(name="corpus", texts=_rows(40, 3)[0], labels=labels, features=blank[:40])
    evaluation = Evaluation(reference=reference, settings=settings)
    return evaluation.scores(corpus), evaluation.real_scores()


def test_a_separable_corpus_scores_near_one(encoder):
    for scores in _scores(encoder, _rows(40, 3)[1]):
        assert min(scores["encoder_accuracy"], scores["encoder_on_corpus"]) > 0.95


def test_drawn_labels_score_at_chance_and_real_rows_decide_nothing(encoder):
    """Rows with turned labels are missed as often as they are hit with their own."""
    drawn = np.random.default_rng(0).permutation(_rows(40, 3)[1]).tolist()
    scores, _ = _scores(encoder, drawn)
    assert scores["encoder_accuracy"] == pytest.approx(0.5, abs=0.3)
    assert scores["encoder_on_corpus"] == pytest.approx(0.5, abs=0.2)
    turned, _ = _scores(encoder, drawn, [OTHER[label] for label in _rows(60, 2)[1]])
    assert turned["encoder_accuracy"] == 1 - scores["encoder_accuracy"]


def test_a_label_with_one_row_is_learned_and_too_few_rows_are_refused(encoder):
    few = encoder.model_copy(update={"epochs": 1})
    texts, labels = _rows(12, 0)
    assert "tram" in fine_tuned([*texts, "a tram"], [*labels, "tram"], few, 0).labels
    with pytest.raises(ValueError, match="more rows than labels, got 2 texts"):
        fine_tuned(texts[:2], labels[:2], few, 0)
    every_row_its_own = [str(row) for row in range(60)]
    scores, _ = _scores(few, every_row_its_own[:40], every_row_its_own)
    assert (scores.values["encoder_accuracy"], scores.values["encoder_on_corpus"]) == (None, None)


def test_an_encoder_without_a_tokenizer_is_named_in_one_line(encoder, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')  # One is made for it, empty.
    broken = encoder.model_copy(update={"model": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match=r"^evaluation.encoder: expected an encoder[^\n]*$"):
        fine_tuned(*_rows(12, 0), broken, 0)
    spec = private(evaluation={"encoder": {"model": str(tmp_path)}})
    (problem,) = _check_models(spec)
    assert (problem.field, problem.got) == (
        "evaluation.encoder.model", f"no tokenizer of {str(tmp_path)!r}",
    )  # fmt: skip
    assert not list(_check_models(private(evaluation={"encoder": {"model": encoder.model}})))
