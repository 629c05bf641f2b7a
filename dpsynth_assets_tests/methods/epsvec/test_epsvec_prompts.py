"""Prompts: the paper's words, the model's own format, and text for an endpoint."""

import pytest

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.epsvec.prompts import appendix_templates, scaffold_of
from dpsynth_assets.models.engines import Generation
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import OpenAiEndpoint

ZERO_SHOT = """Below are several diverse examples of review with a ex sentiment. Each example is \
human-written and enclosed between <begin> and </end> tags. Within each example, the content is \
structured into two fields:

- "Label:" --- describes the category or type of the example
- "Text:" --- contains the corresponding text content

Here are the examples:

<begin>
Label: ex
Text:"""
EXAMPLE = "<begin>\nLabel: ex\nText: {}\n</end>\n\n"
SETTINGS = {"prompt": "base", "domain": "review with a {label} sentiment"}


def scaffold(cases, engine, **changes):
    return scaffold_of(cases.config(**(SETTINGS | changes)), cases.terms(), engine)


@pytest.fixture(scope="module")
def endpoint():
    return OpenAiEndpoint(EngineSpec(kind="openai", base_url="https://host/v1", model="m"))


def test_the_prompts_are_those_of_appendix_b(cases, endpoint):
    made = scaffold(cases, endpoint)
    assert made.prompt(0, ()) == ZERO_SHOT
    opened = ZERO_SHOT.removesuffix("<begin>\nLabel: ex\nText:")
    shots = EXAMPLE.format("one {label}") + EXAMPLE.format("two")
    assert made.prompt(0, ("one {label}", "two")) == opened + shots + "<begin>\nLabel: ex\nText:"


def test_a_model_here_reads_the_same_words(cases, endpoint, toy_model):
    engine = DecoderEngine(toy_model)
    for shots in ((), ("a warm hall", "the sea")):
        made = scaffold(cases, engine, max_document_tokens=50)
        ids = made.prompt(0, shots)
        words = toy_model.tokenizer.decode(ids[1:], skip_special_tokens=False)
        assert words == scaffold(cases, endpoint).prompt(0, shots)
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


def test_without_labels_the_field_is_left_out():
    templates = appendix_templates("text", labelled=False, chat=False)
    prompt = templates.public_prompt_text("") + templates.opening("")
    assert "Label" not in prompt
    assert "structured into one field" in prompt


def test_instruction_prompts_use_the_chat_template(cases, toy_model):
    made = scaffold(cases, DecoderEngine(toy_model), prompt="instruction")
    assert made.codec._templates.use_chat_template
    with pytest.raises(ValueError, match="chat template"):
        made.prompt(0, ())


def test_the_documents_own_format_is_the_default(cases, toy_model):
    made = scaffold(cases, DecoderEngine(toy_model), prompt="document")
    assert made.prompt(1, ("the sea",)) == toy_model.prompt_ids("why", ["the sea"], 6)
    assert made.stop == ()


def test_what_closes_a_document_is_no_part_of_the_text(cases, endpoint):
    made = scaffold(cases, endpoint)
    assert made.stop == ("</end>",)
    assert made.read(Generation(" calm sea\n", (), True)) == "calm sea"


def test_an_endpoint_needs_words(cases, endpoint):
    with pytest.raises(ValueError, match="base or instruction"):
        scaffold(cases, endpoint, prompt="document").prompt(0, ())
