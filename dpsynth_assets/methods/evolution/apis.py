"""Opens the writer that the settings name, and checks prompt files before anything is charged."""

from typing import Any

from dpsynth_assets.datasets import LABEL_SEPARATOR
from dpsynth_assets.datasets.engine import DEFAULT_DECODER
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.engine_api import EngineApi
from dpsynth_assets.methods.evolution.prompts import (
    MASKED_SAMPLE,
    SAMPLE,
    WORD_COUNT,
    PromptError,
    PromptFile,
    read_prompt,
)
from dpsynth_assets.methods.evolution.public_model_api import PublicModelApi
from dpsynth_assets.methods.evolution.text_api import TextApi
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.text_form import FREE, TextForm


def open_api(
    config: EvolutionConfig, terms: CohortTerms, public: PublicInputs, form: TextForm = FREE
) -> TextApi:
    """Opens what the settings name; it writes texts of a form.

    Raises:
        ValueError: A model, an engine or a prompt file is missing.
    """
    if config.api == "public_model":
        if public.language_model is None:
            raise ValueError("Expected the public language model, got none. Materialise it first.")
        texts = dict(zip(terms.labels, terms.label_texts, strict=True))
        kind = terms.language_model.writes_by if terms.language_model else DEFAULT_DECODER
        return PublicModelApi(public.language_model, texts, config, kind=kind, form=form)
    if public.engine is None:
        raise ValueError("Expected the engine of the dataset file, got none. Declare engine.")
    random_prompt, variation_prompt = read_prompts(config, terms)
    variables = label_variables(config, terms)
    return EngineApi(public.engine, random_prompt, variation_prompt, variables, config, form)


def label_variables(config: EvolutionConfig, terms: CohortTerms) -> dict[str, dict[str, str]]:
    """Lists what prompt files may say about each label.

    Raises:
        PromptError: There are more or fewer `prompt_variables` than label columns.
    """
    names = config.prompt_variables
    variables: dict[str, dict[str, str]] = {}
    for label, text in zip(terms.labels, terms.label_texts, strict=True):
        values = label.split(LABEL_SEPARATOR)
        if names and len(names) != len(values):
            raise PromptError(
                f"Expected one name in prompt_variables for each of {len(values)} label columns, "
                f"got {len(names)}. Name them in the order of columns.labels."
            )
        variables[label] = {"label": text, **dict(zip(names, values, strict=False))}
    return variables


def read_prompts(config: EvolutionConfig, terms: CohortTerms) -> tuple[PromptFile, PromptFile]:
    """Reads both prompt files and checks every variable they name against every label.

    Raises:
        PromptError: A file is missing or wrong, or names a variable that a label does not have.
    """
    known = list(label_variables(config, terms).values())
    texts: dict[str, Any] = dict.fromkeys((SAMPLE, MASKED_SAMPLE, WORD_COUNT), "")
    found = []
    for name, source, given in (
        ("random_prompt", config.random_prompt, {}),
        ("variation_prompt", config.variation_prompt, texts),
    ):
        if source is None:
            raise PromptError(f"Expected {name}, got none. Give a prompt file.")
        prompt = read_prompt(source)
        if absent := prompt.missing([{**label, **given} for label in known]):
            raise PromptError(
                f"{name}: expected only variables that every label has "
                f"({', '.join(sorted({*known[0], *given}))}, or set by a rule that applies), got "
                f"{', '.join(sorted(absent))}. Set prompt_variables, or correct the file."
            )
        found.append(prompt)
    return found[0], found[1]
