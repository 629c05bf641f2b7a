"""Training: equal by seed, learns, steers by keywords, and its folder loads anywhere."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from dpsynth_assets.models.conditional_generator import (
    aspects_text,
    condition_text,
    load_conditional_generator,
)
from dpsynth_assets.models.conditional_generator.pairs import (
    ConditionSource,
    length_sorted_batches,
)
from dpsynth_assets.models.conditional_generator.training import (
    PairTrainingSettings,
    public_perplexity,
    train_on_pairs,
)
from dpsynth_assets.models.language_model import LanguageModelError
from dpsynth_assets_tests.models.conditional_generator.conftest import TOPICS
from dpsynth_assets_tests.tiny_models import write_generator

FAST = {"token_budget": 1500}


SETTINGS = PairTrainingSettings(token_budget=26_000, batch_tokens=512, topic_share=0.7, threads=1)


@pytest.fixture(scope="session")
def named(two_topics, tmp_path_factory):
    """Opens a model that looks at its condition, as a pretrained one does, each time anew."""
    folder = tmp_path_factory.mktemp("models") / "named"
    write_generator(folder, two_topics["text"].to_list(), vocabulary=420)
    generator = load_conditional_generator(folder, device="cpu")
    stack = generator.model.model
    attention = stack.decoder.layers[-1].encoder_attn
    with torch.no_grad():
        for layer in (*stack.encoder.layers, *stack.decoder.layers):
            layer.self_attn.out_proj.weight.zero_()
            layer.fc2.weight.zero_()
        for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            part.weight.copy_(torch.eye(attention.embed_dim))
    generator.save(folder)
    return lambda: load_conditional_generator(folder, device="cpu")


@pytest.fixture(scope="session")
def trained_folder(named, two_topics, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "generator"
    keywords = [TOPICS[topic] for topic in two_topics["topic"]]
    train_on_pairs(named(), two_topics, keywords, folder, SETTINGS)
    return folder


@pytest.fixture(scope="session")
def trained_generator(trained_folder):
    return load_conditional_generator(trained_folder, device="cpu")


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_equal_seeds_give_equal_weights_and_others_do_not(named, two_topics, tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        settings = SETTINGS.model_copy(update={**FAST, "seed": seed})
        train_on_pairs(named(), two_topics, None, tmp_path / name, settings)
    assert weights(tmp_path / "one") == weights(tmp_path / "same")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


def test_documents_of_a_topic_hold_its_words(trained_generator):
    for topic, other in (("heating", "music"), ("music", "heating")):
        text = " ".join(trained_generator.generate([condition_text(TOPICS[topic])] * 40, seed=1))
        own, foreign = (sum(text.count(word) for word in TOPICS[name]) for name in (topic, other))
        assert own > 2 * foreign + 10


def test_another_documents_condition_explains_a_document_less(trained_folder):
    facts = json.loads((trained_folder / "training_facts.json").read_text())
    assert facts["perplexity_other_condition"] > 1.15 * facts["perplexity"]
    assert facts["perplexity"] < 12


def test_public_perplexity_is_the_exponential_of_the_mean_token_loss(toy_generator):
    pairs = [("Keywords: violin", "A melody."), ("", "The boiler and the kettle are here.")]
    batch = toy_generator.encode_pairs(*zip(*pairs, strict=True))
    counts = (batch.labels >= 0).sum(1)
    mean = (toy_generator.per_example_loss(batch) * counts).sum() / counts.sum()
    assert public_perplexity(toy_generator, pairs) == pytest.approx(float(mean.exp()), rel=1e-4)


def test_a_saved_generator_loads_back_and_writes_the_same(toy_generator, tmp_path):
    toy_generator.save(tmp_path / "copy")
    copy = load_conditional_generator(tmp_path / "copy", device="cpu")
    assert copy.max_document_tokens == 64
    conditions = ["Keywords: violin, concert"] * 3
    assert copy.generate(conditions) == toy_generator.generate(conditions)


def test_training_restores_the_global_generator_and_threads(named, two_topics, tmp_path):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    settings = SETTINGS.model_copy(update=FAST)
    seen = []
    train_on_pairs(
        named(), two_topics.select("text"), None, tmp_path, settings, lambda *it: seen.append(it)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert seen[-1][0] == 1.0
    assert not any(text[:12] in message for _, message in seen for text in two_topics["text"])


def source(**given):
    nothing = ("",)
    fields = {
        "own_keywords": (("a", "b", "c", "d", "e"),), "topic_keywords": (("t", "u"),),
        "document_types": nothing, "labels": nothing, "aspects": ({},),
    }  # fmt: skip
    return ConditionSource(**{**fields, **given})


def test_conditions_vary_in_kind_number_and_order_of_keywords():
    random = np.random.default_rng(0)
    drawn = [source().draw(0, random) for _ in range(400)]
    assert drawn.count("Keywords: t, u") == pytest.approx(190, abs=40)
    assert 5 <= drawn.count("") <= 40
    own = {line for line in drawn if line not in ("", "Keywords: t, u")}
    assert {len(line.split(", ")) for line in own} == {3, 4, 5}
    assert len(own) > 50


def test_type_and_label_are_shown_about_half_the_time():
    random = np.random.default_rng(0)
    both = source(document_types=("news",), labels=("Sport",))
    drawn = [both.draw(0, random) for _ in range(400)]
    for line in ("Document Type: news", "Label: Sport"):
        assert sum(line in text for text in drawn) == pytest.approx(200, abs=45)


def test_aspects_of_a_language_model_keep_their_keywords():
    named = {"Document Type": "Letter", "Tone": "warm", "Keywords": "k"}
    random = np.random.default_rng(0)
    drawn = [source(aspects=(named,)).draw(0, random) for _ in range(200)]
    with_tone = [text for text in drawn if "Tone" in text]
    assert with_tone
    assert all("Keywords: k" in text for text in with_tone)
    assert aspects_text(named) in drawn


def test_an_epoch_of_batches_holds_every_document_once_within_the_bound():
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    seen, batches = [], length_sorted_batches(lengths, 200, np.random.default_rng(1))
    while len(seen) < 300:
        batch = next(batches)
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= 200
        seen += batch.tolist()
    assert sorted(seen) == list(range(300))


def test_too_few_documents_are_refused(toy_generator, tmp_path):
    with pytest.raises(ValueError, match="at least 20 public documents to train on, got 1"):
        train_on_pairs(toy_generator, pl.DataFrame({"text": ["a"]}), None, tmp_path)


def test_keywords_for_other_rows_are_refused(toy_generator, two_topics, tmp_path):
    with pytest.raises(ValueError, match="topic_keywords for each of 160 documents, got 3"):
        train_on_pairs(toy_generator, two_topics, [(), (), ()], tmp_path)


@pytest.mark.parametrize("name", ["t5", "gpt2", "llama"])
def test_models_of_other_architectures_are_trained_further(
    random_models, two_topics, name, tmp_path
):
    named = load_conditional_generator(random_models[name], device="cpu")
    before = (random_models[name] / "model.safetensors").read_bytes()
    settings = SETTINGS.model_copy(update={"token_budget": 6_000})
    facts = train_on_pairs(named, two_topics, None, tmp_path, settings)
    assert facts["perplexity"] < 0.25 * named.config.vocab_size
    assert weights(tmp_path) != before


def test_a_missing_folder_is_one_line_with_a_remedy(tmp_path):
    with pytest.raises(LanguageModelError, match="materialise public/conditional_gen") as error:
        load_conditional_generator(tmp_path / "nowhere")
    assert "\n" not in str(error.value)


def test_a_folder_without_weights_is_one_line(toy_generator, tmp_path):
    toy_generator.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LanguageModelError, match="encoder-decoder weights") as error:
        _ = load_conditional_generator(tmp_path, device="cpu").model
    assert "\n" not in str(error.value)
