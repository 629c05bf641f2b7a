"""Floor and ceiling are sampled as one would without privacy, with the methods' prompts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpsynth_assets.attacks.reconstruction import CopyingModel
from dpsynth_assets.datasets import LanguageModelSpec
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.corpus import Drawing
from dpsynth_assets.methods.private_prediction.planted_keys import batches_task
from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.methods.registry import REGISTRY, bound_method
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.privacy.guarantees import GuaranteeType

SMALL = {"max_document_tokens": 12, "max_example_tokens": 10, "min_tokens_for_new_document": 2}


def config_of(**changes):
    return REGISTRY["mean_uniform"].config_type(**(SMALL | changes))


def floor(cases, model, **changes):
    public = cases.public(model)
    made = generate_public_only(config_of(**changes), cases.terms(), public, 40, cases.silent)
    return made.rows


def ceiling(cases, model, **changes):
    made = generate_non_private(
        config_of(**changes),
        cases.terms(),
        cases.private(40),
        cases.public(model),
        40,
        cases.silent,
    )
    return made.value.rows


@pytest.mark.parametrize("reference", [floor, ceiling])
def test_a_methods_temperature_changes_no_reference(reference, cases, language_model):
    cold, wild = (reference(cases, language_model, temperature=tau) for tau in (0.1, 9.0))
    assert cold.equals(wild)
    assert cold["text"].n_unique() > 5


def test_a_reference_draws_among_the_likeliest_tokens_that_the_method_declares(
    cases, language_model
):
    greedy = floor(cases, language_model, public_top_k=1)
    assert all(greedy.group_by("label").n_unique()["text"] == 1)
    assert floor(cases, language_model)["text"].n_unique() > 5


def test_the_ceiling_shows_as_many_different_records_of_one_label_as_it_is_asked_for(
    cases, language_model
):
    private = cases.private(40)
    label_of = dict(private.records.select("text", "label").iter_rows())
    generate_non_private(
        config_of(), cases.terms(), private, cases.public(language_model), 30, cases.silent, 3
    )
    shown = language_model.prompts[-30:]
    assert all(len(set(examples)) == 3 for examples in shown)
    assert all(len({label_of[text] for text in examples}) == 1 for examples in shown)
    assert len({label_of[examples[0]] for examples in shown}) == 2


def test_the_ceiling_shows_what_a_label_has_where_it_has_fewer(cases, language_model):
    private = cases.private(4)
    made = generate_non_private(
        config_of(), cases.terms(), private, cases.public(language_model), 6, cases.silent, 50
    )
    assert made.value.facts["documents"] == 6
    assert (made.cost.guarantee, made.cost.event) == (GuaranteeType.NONE, None)


# Planted keys are read by the decoder that a model has.

CHANGES = {"max_document_tokens": 12, "min_tokens_for_new_document": 2, "public_top_k": 100}


def test_a_model_without_a_folder_is_decoded_and_priced_by_transformers(cases):
    terms = cases.terms(language_model=LanguageModelSpec(kind="smollm2"))
    method = bound_method("mean_uniform", CHANGES, terms)
    copying = CopyingModel()
    in_folder = SimpleNamespace(encode=copying.encode, source="folder")
    assert method.terms.decodes_exactly
    assert batches_task(method, 9.0, in_folder).method.terms.decodes_exactly
    assert not batches_task(method, 9.0, copying).method.terms.decodes_exactly
    assert batches_task(method, 9.0, in_folder).method.config.logit_slack == 0.0
    assert batches_task(method, 9.0, copying).method.config.logit_slack > 0.0


def test_a_run_refuses_rounding_that_is_not_charged_whoever_calls_it(cases):
    terms = replace(cases.terms(), language_model=None)
    method = bound_method("mean_uniform", {"logit_slack": 0.0}, terms)
    public = PublicInputs(language_model=CopyingModel())
    stage = method.plan(3.0).stage(CANDIDATE_CORPUS)
    with pytest.raises(ValueError, match="Expected logit_slack > 0"):
        _ = Drawing(method=method, stage=stage, batches=None, public=public).decoder
