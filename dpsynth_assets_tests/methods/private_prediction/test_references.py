"""Floor and ceiling are sampled as one would without privacy, with the methods' prompts."""

import pytest

from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.methods.registry import REGISTRY
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
    cases, language_model, monkeypatch
):
    private = cases.private(40)
    label_of = dict(private.records.select("text", "label").iter_rows())
    texts = cases.terms().label_texts
    shown = []

    def prompt_ids(label_text, examples, max_example_tokens):
        shown.append((label_text, examples))
        return type(language_model).prompt_ids(
            language_model, label_text, examples, max_example_tokens
        )

    monkeypatch.setattr(language_model, "prompt_ids", prompt_ids)
    generate_non_private(
        config_of(), cases.terms(), private, cases.public(language_model), 30, cases.silent, 3
    )
    of_documents = [examples for _, examples in shown if any(examples)][-30:]
    assert all(len(set(examples)) == 3 for examples in of_documents)
    for label_text, examples in shown[-30:]:
        assert {texts[cases.terms().labels.index(label_of[text])] for text in examples} == {
            label_text
        }


def test_the_ceiling_shows_what_a_label_has_where_it_has_fewer(cases, language_model):
    private = cases.private(4)
    made = generate_non_private(
        config_of(), cases.terms(), private, cases.public(language_model), 6, cases.silent, 50
    )
    assert made.value.facts["documents"] == 6
    assert (made.cost.guarantee, made.cost.event) == (GuaranteeType.NONE, None)
