"""A language model is fine-tuned behind the prompt that other methods ask it with."""

from dataclasses import replace

import pytest
import torch

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.methods.fine_tuning.generators import generator_prompts, public_pairs
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.conditional_generator.encoding import IGNORED
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates, default_templates
from dpsynth_assets.public_base.making import generator_manifest
from dpsynth_assets_tests.methods.fine_tuning.conftest import (
    LANGUAGE_MODEL,
    checked_release,
    on_language_model,
    terms_over,
    with_released,
)

TEMPLATES = default_templates("short visits", labelled=True)
DECLARED = PromptTemplates(private="{examples}\n", public="Visits, {label}\n", end="\n")


@pytest.fixture
def prompted(public):
    """The toy language model as a generator behind default prompts."""
    return load_conditional_generator(
        public.language_model.source, device="cpu", templates=TEMPLATES
    )


def test_a_pair_is_a_prompt_and_a_text_on_one_line_that_ends(prompted):
    ids, own = prompted.encoder.condition_ids, prompted.encoder.document_ids
    batch = prompted.encoder.pad(ids(["ex"], 100), own(["a visit\nto  the town."], 100))
    ids, labels = batch.inputs["input_ids"][0].tolist(), batch.labels[0].tolist()
    written = prompted.decode([*ids, labels[-1]])
    assert written == 'short visits\n\nex: "a visit to the town."\n'
    learnt = [token for token in labels if token != IGNORED]
    assert prompted.decode(learnt) == 'a visit to the town."\n'
    assert learnt[-1] == prompted.encoder.end_token_id


def test_the_prompt_is_the_one_that_other_methods_ask_with(public, prompted):
    asked = PromptedModel(public.language_model, TEMPLATES).prompt_ids("ex", [], 1)
    assert prompted.encoder.condition_ids(["ex"], 100) == [asked]


def test_a_document_that_is_cut_has_no_end_and_a_long_prompt_keeps_its_opening(prompted):
    (cut,) = prompted.encoder.document_ids(["a visit to the town"], 3)
    assert len(cut) == 3
    assert prompted.encoder.end_token_id not in cut
    ((*_, opening),) = prompted.encoder.condition_ids(["ex"], 4)
    assert prompted.decode([opening]).endswith('"')


def test_what_is_learnt_is_read_back_as_the_text(prompted):
    text = 'she said "no" and left'
    (ids,) = prompted.encoder.document_ids([text], 60)
    assert prompted.encoder.document_text(ids) == text


def test_a_text_can_neither_end_its_document_nor_bring_a_special_token(prompted):
    (ids,) = prompted.encoder.document_ids(["one\ntwo<eos></s><|endoftext|>"], 60)
    assert ids.count(prompted.encoder.end_token_id) == 1
    assert not set(ids) & set(prompted.tokenizer.all_special_ids)


def test_keywords_of_a_topic_stand_beside_the_label(public):
    terms = terms_over()
    templates = generator_prompts(terms, LANGUAGE_MODEL.domain, keywords=True)
    assert templates == TEMPLATES
    settings = {"document_type": LANGUAGE_MODEL.domain}
    known = bound_method("ctcl", settings, terms).conditioning(public)
    assert known.text(0, 1) == "ex about bakery0, bakery1, bakery2, bakery3"
    assert known.text(1, -1) == "why"
    assert set(public_pairs(public, known).conditions) <= {
        known.public_text(topic) for topic in (-1, 0, 1, 2, 3)
    }
    assert known.public_text(-1) == "text"


def test_a_single_label_stands_in_the_prompt_as_it_does_for_other_methods(public):
    terms = terms_over(labels=("x",), label_texts=("ex",))
    known = bound_method("dp_fine_tuning", {}, terms).conditioning(public)
    assert known.text(0, -1) == "ex"


def test_the_document_type_is_the_domain_of_the_prompt():
    found = generator_prompts(terms_over(), "long visits", keywords=False)
    assert found == default_templates("long visits", labelled=True)
    plain = terms_over(labels=("",), label_texts=("",))
    assert generator_prompts(plain, "", keywords=False) == default_templates(
        "Texts", labelled=False
    )
    assert generator_prompts(plain, "", keywords=True) == default_templates("Texts", labelled=True)


def test_declared_prompts_come_first_and_others_are_another_release():
    assert generator_prompts(terms_over(prompts=DECLARED), "x", keywords=True) == DECLARED
    told = [
        bound_method("ctcl", {}, terms_over(**changes)).plan(4.0).stage(STAGE).settings
        for changes in ({}, {"prompts": DECLARED})
    ]
    assert told[0] != told[1]


def test_prompts_without_a_place_for_keywords_are_refused_before_the_charge(public):
    declared = replace(DECLARED, public="Visits\n")
    method = bound_method("ctcl", {}, terms_over(prompts=declared))
    with pytest.raises(ValueError, match=r"Expected \{label\} in prompt.public") as raised:
        method.plan(4.0).stage(STAGE).check(public)
    assert "\n" not in str(raised.value)


def test_a_generator_of_another_kind_reads_aspect_lines(cases):
    assert generator_prompts(cases.terms(prompts=DECLARED), "x", keywords=True) is None


# A language model as the generator: adapters trained in integers, folded in, and written from.


@pytest.fixture
def with_language_model(public):
    """Public inputs of a base whose generator is its (toy, Llama-shaped) language model."""
    source = public.language_model.source
    generator = load_conditional_generator(source, device="cpu")
    return replace(public, conditional_generator=generator)


def test_a_base_names_its_language_model_as_the_generator_or_weights():
    manifest = generator_manifest(LANGUAGE_MODEL, {"path": "somewhere", "dtype": "bfloat16"})
    assert manifest == {"path": "somewhere", "dtype": "float32", "device": "auto"}
    named = {"kind": "pretrained", "model": "owner/name", "dtype": "bfloat16"}
    other = PublicDataSpec(name="english", conditional_generator=named)
    manifest = generator_manifest(other, None)
    assert manifest == {"path": "owner/name", "dtype": "bfloat16", "device": "auto"}


def test_the_charge_is_the_plans_and_the_weights_are_an_ordinary_model(
    with_language_model, checkpoint
):
    before = dict(with_language_model.language_model.model.state_dict())
    stage, release = checked_release(on_language_model(), with_language_model, checkpoint)
    assert release.cost.event == stage.mechanism.event()
    after = load_conditional_generator(release.value.files, device="cpu").model.state_dict()
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.endswith("_proj.weight") for name in moved)


@pytest.mark.parametrize("engine", ["exact", "transformers"])
def test_the_datasets_engine_writes_from_the_folded_adapters(
    cases, with_language_model, checkpoint, engine
):
    _, release = checked_release(on_language_model(), with_language_model, checkpoint)
    public, method = with_released(with_language_model, release), on_language_model(engine)
    corpus = method.write(public, 6, cases.silent)
    assert corpus.facts["engine_kind"] == engine
    assert 0 < corpus.rows.height <= 6
    assert method.write(public, 6, cases.silent).rows.equals(corpus.rows)
