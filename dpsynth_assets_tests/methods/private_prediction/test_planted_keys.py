"""Planted keys are read by the decoder that a model has."""

from types import SimpleNamespace

from dpsynth_assets.attacks.worst_case_models import CopyingModel
from dpsynth_assets.datasets import LanguageModelSpec
from dpsynth_assets.methods.private_prediction.planted_keys import batches_task
from dpsynth_assets.methods.registry import bound_method

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
