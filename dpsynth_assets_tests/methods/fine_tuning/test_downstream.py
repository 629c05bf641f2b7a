"""Laws of the downstream model: charged like a generator, tested like one trained on a corpus."""

import numpy as np
import pytest
import torch

from dpsynth_assets.methods.base import PrivateInputs
from dpsynth_assets.methods.fine_tuning import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.config import DownstreamConfig
from dpsynth_assets.methods.fine_tuning.downstream import STAGE, next_word_settings
from dpsynth_assets.metrics.downstream_model import downstream_model_scores
from dpsynth_assets.models.next_word_model import load_next_word_model, new_next_word_model

METHOD = DownstreamFineTuning()
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
    terms = cases.terms(epsilon=epsilon, accountant="tight")
    plan = METHOD.plan(config, terms, target_epsilon=epsilon)
    release = METHOD.release_stage(
        STAGE,
        plan,
        config,
        terms,
        private or cases.private(),
        public,
        checkpoint,
        cases.silent,
    )
    assert release.cost.event == plan.stages[STAGE]
    return config, release.value


def test_a_classifier_learns_labels_from_embeddings(cases, public, checkpoint):
    records = cases.records(40)
    signs = np.where(records["label"] == "x", 1.0, -1.0).astype(np.float32)
    features = np.stack([signs, np.ones(40, np.float32)], axis=1) / np.sqrt(2, dtype=np.float32)
    private = PrivateInputs(records=records, embeddings=features)
    _, made = train(
        cases, public, checkpoint, private, task="classification", learning_rate=0.1, steps=20
    )
    scores = downstream_model_scores(
        made.files, records["text"].to_list(), records["label"].to_list(), features
    )
    assert scores == {"accuracy": 1.0}
    assert made.facts["task"] == "classification"


def test_a_causal_model_learns_words_and_is_scored_as_corpora_are(cases, public, checkpoint):
    texts = cases.records(40)["text"].to_list()
    config, made = train(cases, public, checkpoint, learning_rate=2e-2)
    found = downstream_model_scores(made.files, texts, [], np.empty((40, 0)))
    start = new_next_word_model(next_word_settings(config))
    model, settings = load_next_word_model(made.files)
    assert settings == next_word_settings(config)
    assert model.num_parameters() == start.num_parameters()
    assert found["next_word_perplexity"] < 1000 < settings.vocabulary
    assert 0.1 < found["next_word_accuracy"] <= 1


def test_null_records_contribute_nothing(cases, public, tmp_path, checkpoint):
    from dpsynth_assets.methods.fine_tuning import downstream

    config = DownstreamConfig(**SMALL)
    for task in (downstream._next_word, downstream._classification):
        whole = task(config, cases.terms(), cases.private(8), public)
        without = task(config, cases.terms(), cases.private(8, null={2, 5}), public)
        assert len(whole.private_examples) == 8
        assert len(without.private_examples) == 6


def test_there_is_no_corpus(cases, public):
    assert not METHOD.writes_corpus
    with pytest.raises(ValueError, match="writes text"):
        METHOD.write(None, DownstreamConfig(), cases.terms(), public, 5, cases.silent)


def test_a_classifier_needs_labels_to_tell_apart(cases, public, checkpoint):
    config = DownstreamConfig(task="classification")
    terms = cases.terms(labels=("",), label_texts=("",))
    plan = METHOD.plan(config, terms, target_epsilon=4.0)
    with pytest.raises(ValueError, match="two declared labels"):
        METHOD.release_stage(
            STAGE, plan, config, terms, cases.private(), public, checkpoint, cases.silent
        )


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="multiple of 2 x heads"):
        DownstreamConfig(width=18, heads=2)


def test_the_public_start_is_the_same_for_everyone():
    settings = next_word_settings(DownstreamConfig(**SMALL))
    one, two = (new_next_word_model(settings).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
