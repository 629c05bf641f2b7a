"""`dpsynth plan --prompts`: what the language model is asked, in the words that it reads."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from dpsynth_assets.datasets import PrivateDatasetSpec

if TYPE_CHECKING:
    from dpsynth_assets.models.prompt_templates import PromptTemplates

PRIVATE_TEXT = "<a record>"
"""Stands where a private text does."""


def show_prompts(spec: PrivateDatasetSpec, *, as_json: bool) -> None:
    """Prints the prompts of every label, with and without a private text.

    **Privacy** Declarations alone: no record is read, and no model is opened.
    """
    from dpsynth_assets.methods.declared_terms import cohort_terms

    terms = cohort_terms(spec)
    own = terms.prompts
    if own is None:
        typer.echo(
            f"Prompts of {spec.name} are the model's document format: the label on a line, then "
            "the text. Say in the public base's domain what the texts are."
        )
        return
    rows = [_of_label(own, *each) for each in zip(terms.labels, terms.label_texts, strict=True)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for row in rows:
        console.print(row["label"] or "(no labels)", style="bold")
        for name in ("instruction", "public_prompt", "private_prompt"):
            if row[name]:
                console.print(f"{name.replace('_', ' ')}:", style="dim")
                console.print(row[name] + "\n")
    console.print(
        "An instruction stands in a user's turn of the model's chat template, and the prompt "
        "begins the answer; a model without one reads the prompt alone."
    )


def _of_label(own: "PromptTemplates", label: str, text: str) -> Mapping[str, str]:
    from dpsynth_assets.models.prompt_templates import GAP

    private = own.private_text(text, 1).replace(GAP, PRIVATE_TEXT) if own.private else ""
    return {
        "label": label,
        "instruction": own.asked(text),
        "public_prompt": own.public_frame(text),
        "private_prompt": private and private + own.opening(text),
    }
