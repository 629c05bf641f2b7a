"""Floor and ceiling are sampled as one would without privacy, with the methods' prompts."""

import pytest

from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.methods.registry import REGISTRY

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
