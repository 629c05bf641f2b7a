"""Laws of the downstream model: charged like a generator, tested like one trained on a corpus."""

import re
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.fine_tuning import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.config import CLASSIFIER_RATE, DownstreamConfig
from dpsynth_assets.methods.fine_tuning.downstream import NextWordInputs, next_word_settings
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.models.next_word_model import load_next_word_model, new_next_word_model

SMALL = {
    "steps": 12,
    "expected_batch_size": 40,
    "vocabulary": 3000,
    "width": 16,
    "feed_forward": 16,
    "max_document_tokens": 12,
}


def train(cases, public, checkpoint, private=None, epsilon=1e4, **settings):
    config = DownstreamConfig(**(SMALL | settings))
    method = DownstreamFineTuning(config, cases.terms(epsilon=epsilon, accountant="tight"))
    [stage] = method.plan(epsilon).stages
    release = stage.release(private or cases.private(), public, checkpoint, cases.silent)
    assert release.cost.event == stage.mechanism.event()
    return config, release.value


def test_a_causal_model_learns_words_and_is_scored_as_corpora_are(cases, public, checkpoint):
    texts = cases.records(40)["text"].to_list()
    config, made = train(cases, public, checkpoint, learning_rate=2e-2)
    found = downstream_model_scores(made.files, ScoredSide(texts=texts, features=np.empty((40, 0))))
    start = new_next_word_model(next_word_settings(config))
    model, settings = load_next_word_model(made.files)
    assert settings == next_word_settings(config)
    assert model.num_parameters() == start.num_parameters()
    assert found["next_word_perplexity"] < 1000 < settings.vocabulary
    assert 0.1 < found["next_word_accuracy"] <= 1


def test_the_default_rate_of_a_classifier_tells_apart_what_a_constant_cannot(
    cases, public, checkpoint
):
    # As sentence embeddings have, most of the length in common; and one label is rarer.
    labels = ["x"] * 36 + ["y"] * 24
    records = cases.records(60).with_columns(pl.Series("label", labels))
    side = np.where(np.array(labels) == "x", 0.3, -0.3).astype(np.float32)
    features = np.stack([side, np.sqrt(1 - side**2)], axis=1)
    _, made = train(
        cases,
        public,
        checkpoint,
        PrivateInputs(records=records, embeddings=features),
        task="classification",
        steps=DownstreamConfig().steps,
    )
    scores = downstream_model_scores(made.files, ScoredSide.of(records, features))
    assert scores["accuracy"] == 1.0  # a constant: 0.6
    assert made.facts["learning_rate"] == CLASSIFIER_RATE


def test_a_rate_that_was_given_stands():
    classifier = {"task": "classification"}
    assert DownstreamConfig(**classifier).learning_rate == CLASSIFIER_RATE
    assert DownstreamConfig(**classifier, learning_rate=2e-3).learning_rate == 2e-3
    assert DownstreamConfig().learning_rate != CLASSIFIER_RATE
    again = DownstreamConfig.model_validate(DownstreamConfig(**classifier).model_dump())
    assert again == DownstreamConfig(**classifier)


def test_null_records_contribute_nothing(cases):
    method = DownstreamFineTuning(DownstreamConfig(**SMALL), cases.terms())
    whole, without = cases.private(8), cases.private(8, null={2, 5})
    words = NextWordInputs(method.config)
    start = words.open()
    for examples in (partial(words.examples, start), method._labelled):
        assert len(examples(whole)) == 8
        assert len(examples(without)) == 6


@pytest.mark.parametrize(
    ("settings", "terms", "told"),
    [
        ({}, {"labels": ("",), "label_texts": ("",)}, "at least two declared labels .*, got 0"),
        ({}, {"labels": ("x",), "label_texts": ("ex",)}, "at least two declared labels .*, got 1"),
        ({"lora_rank": 2}, {}, "Expected no lora_rank .* got 2"),
    ],
    ids=["no label", "one label", "adapters"],
)
def test_a_classifier_that_could_not_be_trained_is_refused_by_its_plan(
    cases, settings, terms, told
):
    config = DownstreamConfig(task="classification", **settings)
    refused = priced(DownstreamFineTuning(config, cases.terms(**terms)), 4.0)
    assert re.search(told, refused.refusal)
    assert refused.event is None
    assert not refused.charges
    causal = DownstreamConfig(**settings)
    assert DownstreamFineTuning(causal, cases.terms(**terms)).plan(4.0).refusal is None


def test_models_are_tried_before_anything_is_charged(cases, public, monkeypatch):
    from dpsynth_assets.methods.fine_tuning import downstream

    [stage] = DownstreamFineTuning(DownstreamConfig(**SMALL), cases.terms()).stages()
    stage.check(public)

    def untrainable(settings):
        model = new_next_word_model(settings)
        model.slope = torch.nn.BatchNorm1d(4)
        return model

    monkeypatch.setattr(downstream, "new_next_word_model", untrainable)
    with pytest.raises(TypeError, match="batch normalisation at slope"):
        stage.check(public)


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="multiple of 2 x heads"):
        DownstreamConfig(width=18, heads=2)


def test_the_public_start_is_the_same_for_everyone():
    settings = next_word_settings(DownstreamConfig(**SMALL))
    one, two = (new_next_word_model(settings).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
