"""Prompts: those of the dataset file, the model's own format, and text for an endpoint."""

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.epsvec.states import scaffold_of
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import OpenAiEndpoint
from dpsynth_assets.models.engines.protocol import Generation
from dpsynth_assets.models.prompt_templates import default_templates

TEMPLATES = default_templates("reviews", labelled=True, asks=False)


def scaffold(cases, engine, prompts=TEMPLATES, **changes):
    return scaffold_of(cases.config(**changes), cases.terms(prompts=prompts), engine)


@pytest.fixture(scope="module")
def endpoint():
    return OpenAiEndpoint(EngineSpec(kind="openai", base_url="https://host/v1", model="m"))


def test_a_model_here_and_an_endpoint_read_the_same_words(cases, endpoint, toy_model):
    engine = DecoderEngine(toy_model)
    for shots in ((), ("a warm hall", "the sea")):
        made = scaffold(cases, engine, max_document_tokens=50)
        ids = made.prompt(0, shots)
        words = toy_model.tokenizer.decode(ids[1:], skip_special_tokens=False)
        assert words == scaffold(cases, endpoint).prompt(0, shots)
        assert all(shot in words for shot in shots)
        assert [toy_model.begin_token_id, *made.prefix(0, shots)] == ids


def test_shots_are_cut_where_records_are(cases, toy_model):
    engine = DecoderEngine(toy_model)
    made = scaffold(cases, engine, max_document_tokens=4)
    whole = scaffold(cases, engine, max_document_tokens=400)
    long = "sea " * 200
    cut = len(made.prompt(0, (long,)))
    assert cut == len(made.prompt(0, (long + long,))) < len(whole.prompt(0, (long,)))
    assert len(made.text_ids(long, 4)) == 4
    assert made.text_ids("  ", 4) == []


def test_without_templates_it_is_the_documents_own_format(cases, toy_model, endpoint):
    made = scaffold(cases, DecoderEngine(toy_model), prompts=None)
    assert made.prompt(1, ("the sea",)) == toy_model.prompt_ids("why", ["the sea"], 6)
    assert made.stop == ()
    with pytest.raises(ValueError, match="Declare prompt in the dataset file"):
        scaffold(cases, endpoint, prompts=None).prompt(0, ())


def test_what_closes_a_document_is_no_part_of_the_text(cases, endpoint):
    made = scaffold(cases, endpoint)
    assert made.stop == ("\n",)
    assert made.read(Generation(" calm sea\n", (), True)) == "calm sea"
