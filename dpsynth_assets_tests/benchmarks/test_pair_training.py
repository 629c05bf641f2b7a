"""Public pairs for training: conditions of many kinds, and aspects that models name."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from pair_training import aspects
from pair_training.aspects import aspects_by_engine, aspects_from_language_model, parse_aspects
from pair_training.pairs import ConditionSource, write_pairs

from dpsynth_assets.models.conditional_generator.encoding import aspects_text
from dpsynth_assets.models.engines.protocol import Generation, Provenance


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


def test_every_document_is_written_under_several_conditions(tmp_path):
    two = source(own_keywords=(("a",), ("b",)), topic_keywords=((), ()), document_types=("", ""),
                 labels=("", ""), aspects=({}, {}))  # fmt: skip
    write_pairs(two, ["a text", "b text"], tmp_path / "pairs.parquet", draws=3)
    pairs = pl.read_parquet(tmp_path / "pairs.parquet")
    assert sorted(pairs["document"]) == ["a text"] * 3 + ["b text"] * 3
    assert set(pairs["condition"]) <= {"", "Keywords: a", "Keywords: b"}


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
    for _, sampling, provenance in engine.calls:
        assert (provenance, sampling.temperature) == (Provenance.PUBLIC, 0.0)
    assert told == [0.0, 2 / 3]


def test_a_model_that_runs_here_is_asked_in_its_chat_template():
    engine = Describer(SimpleNamespace(tokenizer=ChatTokenizer()))
    (found,) = aspects_by_engine(["a letter"], engine)
    ((prompts, _, _),) = engine.calls
    assert prompts == [[1, 2, 3]]
    assert found["Document Type"] == "tokens"
