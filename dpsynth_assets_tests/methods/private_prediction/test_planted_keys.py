"""Planted keys are read by the decoder that a model has."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpsynth_assets.attacks.reconstruction import CopyingModel
from dpsynth_assets.datasets import LanguageModelSpec
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.corpus import Drawing
from dpsynth_assets.methods.private_prediction.planted_keys import batches_task
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS

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
