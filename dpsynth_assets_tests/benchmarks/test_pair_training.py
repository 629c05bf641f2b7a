"""Training on public pairs: equal by seed, learns, steers by keywords; aspects that models name."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from pair_training import aspects
from pair_training.aspects import aspects_by_engine, aspects_from_language_model, parse_aspects
from pair_training.pairs import ConditionSource
from pair_training.training import (
    PairTrainingSettings,
    encoded_pairs,
    public_perplexity,
    train_on_pairs,
)

from dpsynth_assets.models.conditional_generator.encoding import aspects_text, condition_text
from dpsynth_assets.models.conditional_generator.generator import (
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.engines import Generation, Provenance
from dpsynth_assets_tests.tiny_models import write_generator

TOPICS = {
    "heating": ("boiler", "radiator", "thermostat", "chimney", "plumber", "kettle"),
    "music": ("violin", "orchestra", "trumpet", "melody", "concert", "drummer"),
}


def two_topic_documents(count):
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        topic = ("heating", "music")[number % 2]
        first, second, third = random.choice(TOPICS[topic], 3, replace=False)
        rows.append({
            "text": f"The {first} and the {second} are here, with a {third} today.",
            "label": "Note" if number % 4 < 2 else "Report",
            "topic": topic,
        })  # fmt: skip
    return pl.DataFrame(rows)


FAST = {"token_budget": 1500}
SETTINGS = PairTrainingSettings(token_budget=26_000, batch_tokens=512, topic_share=0.7, threads=1)


@pytest.fixture(scope="session")
def two_topics():
    return two_topic_documents(160)


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
    batch = encoded_pairs(toy_generator, *zip(*pairs, strict=True))
    counts = (batch.labels >= 0).sum(1)
    mean = (per_example_loss(toy_generator.model, batch) * counts).sum() / counts.sum()
    assert public_perplexity(toy_generator, pairs) == pytest.approx(float(mean.exp()), rel=1e-4)


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


def test_aspects_of_a_language_model_keep_their_keywords():
    named = {"Document Type": "Letter", "Tone": "warm", "Keywords": "k"}
    random = np.random.default_rng(0)
    drawn = [source(aspects=(named,)).draw(0, random) for _ in range(200)]
    with_tone = [text for text in drawn if "Tone" in text]
    assert with_tone
    assert all("Keywords: k" in text for text in with_tone)
    assert aspects_text(named) in drawn


@pytest.mark.parametrize(
    "answer",
    [
        "Document Type: News article\nKeywords: golf, college\nTone: formal",
        "**Document Type:** News article\n\n* **Keywords:** golf, college.\n* **Tone**: formal",
        '1. document type: `News article`\n2. Key Words: ["golf", "college"]\n3. Tone: formal',
        "Sure, here is a description\n- Type: News article\n- Keywords:\n  - golf\n  - college\n"
        "- Tone: formal",
    ],
)
def test_aspects_are_read_however_a_model_decorates_them(answer):
    expected = {"Document Type": "News article", "Keywords": "golf, college", "Tone": "formal"}
    assert parse_aspects(answer) == expected


def test_a_language_models_aspects_fall_back_to_the_documents_own_words():
    documents = ["The boiler and the radiator.", "A violin concert."]

    def ask(prompts):
        assert all(text in prompt for text, prompt in zip(documents, prompts, strict=True))
        return [" Letter\nKeywords: cold rooms", "I cannot help with that."]

    first, second = aspects_from_language_model(documents, ask)
    assert first == {"Document Type": "Letter", "Keywords": "cold rooms"}
    assert set(second["Keywords"].split(", ")) == {"violin", "concert"}


class Describer:
    """An engine that names the last word of a document as its type."""

    def __init__(self, language_model=None):
        self.calls = []
        self.language_model = language_model

    def generate(self, prompts, sampling, *, provenance=Provenance.PRIVATE, progress=None):
        self.calls.append((list(prompts), sampling, provenance))
        return [Generation(f" {self._kind(each)}\nKeywords: any", (), True) for each in prompts]

    def _kind(self, prompt):
        if isinstance(prompt, str):
            return prompt.split("Document:\n")[1].split("\n")[0].split()[-1]
        return "tokens"


class ChatTokenizer:
    chat_template = "<{content}>"

    def apply_chat_template(self, messages, *, add_generation_prompt, return_dict):
        assert add_generation_prompt
        assert not return_dict
        (message,) = messages
        assert message["role"] == "user"
        return [1, 2, 3]


def test_every_document_gets_what_the_model_said_of_it(monkeypatch):
    monkeypatch.setattr(aspects, "DOCUMENTS_AT_ONCE", 2)
    engine, told = Describer(), []
    documents = ["a short letter", "some news", "one more poem"]
    found = aspects_by_engine(documents, engine, lambda share, _: told.append(share))
    assert [each["Document Type"] for each in found] == ["letter", "news", "poem"]
    assert [len(prompts) for prompts, _, _ in engine.calls] == [2, 1]
    assert told == [0.0, 2 / 3]


def test_prompts_are_declared_public_and_answers_are_greedy():
    engine = Describer()
    aspects_by_engine(["a letter"], engine)
    ((_, sampling, provenance),) = engine.calls
    assert provenance is Provenance.PUBLIC
    assert sampling.temperature == 0.0


def test_a_model_that_runs_here_is_asked_in_its_chat_template():
    engine = Describer(SimpleNamespace(tokenizer=ChatTokenizer()))
    (found,) = aspects_by_engine(["a letter"], engine)
    ((prompts, _, _),) = engine.calls
    assert prompts == [[1, 2, 3]]
    assert found["Document Type"] == "tokens"
