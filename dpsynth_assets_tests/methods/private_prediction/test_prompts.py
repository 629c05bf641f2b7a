"""Prompts of a method: by default the model's own; declared templates are public terms of a run."""

from functools import partial

from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.private_prediction.decoding import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets_tests.declared import private

# A base with a domain would give default prompts.
declare = partial(private, public_data="elsewhere")


def test_terms_carry_the_declared_templates_and_none_by_default():
    assert cohort_terms(declare()).prompts is None
    prompt = {"private": "{examples}", "text_start": "{"}
    expected = PromptTemplates(private="{examples}", text_start="{")
    assert cohort_terms(declare(prompt=prompt)).prompts == expected


def test_default_prompts_are_what_the_model_writes(language_model):
    columns = prompt_columns(language_model, ("ex", "why"), 2, 5)
    frame = len(language_model.prompt_ids("why", ["", ""], 5))
    assert columns == frame + 2 * 5
    contexts = [["abc", "de"], ["a" * 50, "b" * 50]]
    written = context_prompts(
        language_model, "why", contexts, max_example_tokens=5, columns=columns
    )
    assert written == [language_model.prompt_ids("why", texts, 5) for texts in contexts]
    assert len(written[1]) == columns
    assert public_prompt(language_model, "why") == language_model.prompt_ids("why", [], 1)
