"""Texts of a declared schema that a language model writes and varies."""

from dataclasses import replace

import pytest

from dpsynth_assets.methods.evolution.apis import PublicModelApi
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.prompt_templates import PromptTemplates, prompted
from dpsynth_assets_tests.methods.evolution.conftest import make_config, make_public, make_terms
from dpsynth_assets_tests.methods.test_text_form import DECLARED, FORM, RECORD

TEMPLATES = PromptTemplates(text_start=FORM.text_start)


@pytest.fixture
def api(model):
    writer = prompted(model, TEMPLATES)
    config = make_config(max_new_tokens=80)
    return PublicModelApi(writer, {"a": "letter"}, config, form=FORM)


def test_random_texts_and_variations_are_records(api):
    texts = api.random(["a"] * 8, seed=1)
    assert len(list(filter(FORM.read, texts))) >= 6
    varied = api.vary([RECORD] * 8, ["a"] * 8, degree=0.3, seed=2)
    assert all(map(FORM.read, varied))
    assert all(text.startswith('{"kind":"loan",') for text in varied)
    assert len(set(varied)) > 2


def test_a_variation_of_what_is_no_record_begins_where_it_leaves_the_form(api):
    (varied,) = api.vary(['{"kind":"loan","stars":9,"note":"late"}'], ["a"], degree=0.1, seed=2)
    assert FORM.read(varied) == varied
    assert varied.startswith('{"kind":"loan","stars":')


def test_a_bound_that_no_record_fits_in_is_told_before_the_charge(model):
    terms = make_terms(prompts=TEMPLATES, json_schema=DECLARED)
    method = bound_method("aug_pe", {"max_new_tokens": 4}, terms)
    (stage,) = method.stages()
    public = replace(make_public(), language_model=prompted(model, TEMPLATES))
    with pytest.raises(ValueError, match="no trial text was complete"):
        stage.check(public)


def test_prompts_that_leave_no_room_for_a_text_are_told_before_the_charge(model):
    terms = make_terms(label_texts=("words " * 5_000, "b"))
    method = bound_method("aug_pe", {}, terms)
    public = replace(make_public(), language_model=model)
    with pytest.raises(ValueError, match="Shorten the domain, description or label words"):
        method.stages()[-1].check(public)
