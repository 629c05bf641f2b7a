"""Laws of invented documents: different, long enough, of each label as many, the same every time.

The engine is a double that writes sentences by its seed; the tokenizer is real.
"""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets import PublicBase
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.models.engines.protocol import Generation, Provenance
from dpsynth_assets.models.language_model import LanguageModel, LanguageModelError
from dpsynth_assets.models.prompt_templates import default_templates
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.public_base.invented import LEAST_WORDS, invent_documents
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets_tests.tiny_models import write_tokenizer

DOMAIN, LABELS = "Letters to a clinic", ["complaint", "thanks", "question"]
WORDS = ("pain", "nurse", "bill", "ward", "sleep", "doctor", "kind", "wait", "lost", "form", "bed")


class Writer:
    """Writes about a dozen words; some texts are fragments, some repeat others."""

    name = "writer"

    def __init__(self, model, sentences=10**9, shortest=4):
        self.model, self.sentences, self.shortest = model, sentences, shortest
        self.calls = []

    def generate(self, prompts, sampling, *, provenance, progress=None):
        assert provenance is Provenance.PUBLIC
        self.calls.append((prompts, sampling))
        draw = np.random.default_rng(sampling.seed)
        made = []
        for _ in prompts:
            own = np.random.default_rng(draw.integers(self.sentences))
            length = int(own.integers(self.shortest, 16))
            text = " ".join(own.choice(WORDS, length)) + '."\n'
            made.append(Generation(text, tuple(self.model.encode(text)), True))
        progress(1.0)
        return made


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, [" ".join(WORDS), DOMAIN, *LABELS] * 20)
    return LanguageModel(source=str(folder))


def invent(model, writer=None, *, documents=50, labels=LABELS, seed=0):
    told = []
    found = invent_documents(
        writer or Writer(model),
        model,
        templates=default_templates(DOMAIN, labelled=bool(labels)),
        labels=labels,
        documents=documents,
        max_tokens=40,
        seed=seed,
        report=lambda share, _message: told.append(share),
    )
    assert told == sorted(told)
    return found


def test_documents_are_shared_over_the_labels_in_turn(model):
    found = invent(model)
    assert found["label"].to_list() == (LABELS * 17)[:50]
    assert found.schema == {"text": pl.String, "label": pl.String}


def test_documents_differ_and_none_is_a_fragment_or_keeps_its_closing_mark(model):
    found = invent(model, Writer(model, sentences=200))["text"]
    assert len({" ".join(text.casefold().split()) for text in found}) == len(found) == 50
    assert found.str.split(" ").list.len().min() >= LEAST_WORDS
    assert not found.str.ends_with('"').any()


def test_the_same_words_give_the_same_documents_and_another_seed_others(model):
    assert invent(model).equals(invent(model))
    assert not invent(model).equals(invent(model, seed=1))


def test_prompts_say_the_domain_and_the_label_and_texts_are_drawn_among_the_likeliest(model):
    writer = Writer(model)
    invent(model, writer)
    prompts, sampling = writer.calls[0]
    shown = model.tokenizer.decode(prompts[0], clean_up_tokenization_spaces=False)
    assert shown == '<begin>Letters to a clinic\n\ncomplaint: "'
    assert (sampling.temperature, sampling.top_k, sampling.stop) == (1.0, 100, ("\n",))


def test_without_labels_the_domain_alone_is_asked_for(model):
    assert set(invent(model, labels=())["label"]) == {""}


def test_a_model_that_repeats_itself_writes_fewer_and_the_rounds_end(model):
    writer = Writer(model, sentences=30)
    assert 3 <= invent(model, writer).height <= 30
    assert len(writer.calls) == 5


def test_a_model_that_writes_nothing_is_refused_in_one_line(model):
    blank = Generation("", (), True)
    silent = SimpleNamespace(name="mute", generate=lambda prompts, *_, **__: [blank] * len(prompts))
    with pytest.raises(LanguageModelError, match="Expected mute to write") as caught:
        invent(model, silent)
    assert "\n" not in str(caught.value)


DECLARED = {
    "domain": DOMAIN,
    "language_model": {"kind": "pretrained", "model": "owner/tiny"},
    "invented": {"documents": 30, "labels": LABELS},
}


@pytest.fixture
def engine(model, monkeypatch):
    writer = Writer(model)
    monkeypatch.setattr(OpenedModels, "language_model", lambda *_: model)
    monkeypatch.setattr(OpenedModels, "engine", lambda *_: writer)
    return writer


def test_a_base_writes_its_documents_once(engine, own_home):
    first = PublicBase(name="clinic", **DECLARED).documents
    assert first.height == 30
    assert PublicBase(name="clinic", **DECLARED).documents.equals(first)
    assert len(engine.calls) <= 3
    calls = len(engine.calls)
    other = PublicBase(name="clinic", **DECLARED | {"domain": "Letters to a school"})
    assert other.documents.height == 30
    assert len(engine.calls) > calls


def test_a_base_reads_the_documents_it_is_given(engine):
    given = pl.DataFrame({"text": ["one", "two"]})
    base = PublicBase(given, name="clinic", **DECLARED)
    assert base.documents["text"].to_list() == ["one", "two"]
    assert not engine.calls


def test_a_base_without_documents_and_domain_is_refused():
    with pytest.raises(ValueError, match="Expected public documents, or a domain"):
        PublicBase()


def upstream(**declared):
    spec = PublicDataSpec.model_validate({"name": "clinic", **declared})
    made = {asset.key.path[-1]: asset for asset in public_definitions(spec).assets}
    return {
        name: {key.path[-1] for key in made[name].dependency_keys}
        for name in ("public_corpus", "public_language_model")
    }


def test_the_model_writes_the_corpus_where_there_is_no_other():
    assert upstream(**DECLARED) == {
        "public_corpus": {"public_language_model"},
        "public_language_model": set(),
    }
    for given in ({}, {"source": {"path": "a.csv"}}):
        assert upstream(**given) == {"public_corpus": set(), "public_language_model": set()}
