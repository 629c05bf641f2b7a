"""Aspects asked of an engine: public text only, greedy, in the model's own chat form."""

from types import SimpleNamespace

from dpsynth_assets.models.conditional_generator import aspects
from dpsynth_assets.models.conditional_generator.aspects import aspects_by_engine
from dpsynth_assets.models.engines import Generation, Provenance


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


def test_no_documents_ask_nobody():
    engine = Describer()
    assert aspects_by_engine([], engine) == []
    assert engine.calls == []
