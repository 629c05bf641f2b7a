"""Laws of scores that the public language model gives: its answers, its control, calibration."""

import numpy as np
import pytest

from dpsynth_assets.metrics import read_rows
from dpsynth_assets.metrics.evaluation import EvaluationSettings
from dpsynth_assets.metrics.metric import ScoredSide, Sides
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets_tests.tiny_models import letters, write_language_model

TEXTS = [f"{text} {row}" for row, text in enumerate(letters()[:40])]
SETTINGS = EvaluationSettings(judged=True, in_context=True)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return load_language_model(str(write_language_model(tmp_path_factory.mktemp("model"))))


def _sides(language_model, labels=()):
    rows = ScoredSide(features=np.zeros((40, 2)), texts=TEXTS, labels=labels, resamples=20)
    known = {"labelled": True, "language_model": language_model}
    return Sides(corpus=rows, held_out=rows, settings=SETTINGS, **known)


def test_answers_are_those_of_each_prompt_alone(language_model):
    """Neither the beginning that prompts share nor the rows of a pass change an answer."""
    prompts = [language_model.encode(f"{TEXTS[0]}{end}") for end in (" a", " the other b", " c c")]
    answers = [[3, 4], [5], list(range(6, language_model.vocabulary_size)), [0, 1, 2]]
    together = read_rows.answer_log_shares(language_model, prompts, answers)
    alone = [
        read_rows.answer_log_shares(language_model, [prompt], answers)[0] for prompt in prompts
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.exp(together).sum(axis=1), 1.0)


def test_a_judge_that_guesses_gives_no_verdict_and_one_that_sees_order_does(
    language_model, monkeypatch
):
    """The tiny model was never trained: it is as likely to prefer shuffled words."""
    sides = _sides(language_model)
    assert 0.0 <= read_rows.QUALITY_CONTROL.of(sides) < read_rows.LEAST_RIGHT
    assert read_rows.QUALITY.of(sides) is None
    known = dict.fromkeys(TEXTS, 0.75)
    told = lambda _model, texts: np.array([known.get(text, 0.25) for text in texts])  # noqa: E731
    monkeypatch.setattr(read_rows, "yes_shares", told)
    other = _sides(object())
    assert read_rows.QUALITY_CONTROL.of(other) == 1.0
    assert read_rows.QUALITY.of(other).value == 0.75


def test_calibration_takes_away_what_a_model_prefers_without_a_text(language_model):
    """A label that stands in every shot is likelier after any text, and is not named for that."""
    labels = ["north", "south"]
    shots = [(text, "north") for text in TEXTS[:3]]
    named = read_rows.named_labels(language_model, shots, TEXTS[3:], labels)
    assert set(named) == set(labels)
    blank = read_rows.named_labels(language_model, shots, ["N/A"], labels)
    assert blank is not None
    assert read_rows.named_labels(language_model, shots, TEXTS[:2], ["1 a", "1 b", "2 a"]) is None


def test_in_context_accuracy_is_of_real_rows(language_model):
    labels = [("north", "south")[row % 2] for row in range(40)]
    estimate = read_rows.IN_CONTEXT_ACCURACY.of(_sides(language_model, labels))
    assert 0.2 < estimate.value < 0.8
    assert len(estimate.draws) == 20
