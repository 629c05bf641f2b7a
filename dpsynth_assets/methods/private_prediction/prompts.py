"""From contexts to token prompts of a public greatest length."""

from collections.abc import Sequence
from typing import Any


def prompt_columns(
    language_model: Any,
    label_texts: Sequence[str],
    examples_per_context: int,
    max_example_tokens: int,
) -> int:
    """Computes the pad length P of private prompts from public facts alone.

    Args:
        language_model: `models.language_model.LanguageModel`, or one with declared templates
            (`models.prompt_templates.prompted`).
        label_texts: How labels are written.
        examples_per_context: k.
        max_example_tokens: Cut of each example (tokens).

    Returns:
        Length of the longest label's prompt with k examples of full length (tokens). A declared
        public prompt may be longer: it is padded apart from private ones.

    **Privacy** The longest prompt at hand would be private, and padding to it lets one long record
    move every other record's logits (errata C-3).
    """
    empty = [""] * examples_per_context
    frames = [
        len(language_model.prompt_ids(label_text, empty, max_example_tokens))
        for label_text in label_texts
    ]
    return max(frames) + examples_per_context * max_example_tokens


def context_prompts(
    language_model: Any,
    label_text: str,
    contexts: Sequence[Sequence[str]],
    *,
    max_example_tokens: int,
    columns: int,
) -> list[list[int]]:
    """Writes one prompt for each context of k texts; a prompt beyond P keeps its last P tokens."""
    return [
        language_model.prompt_ids(label_text, list(texts), max_example_tokens)[-columns:]
        for texts in contexts
    ]


def public_prompt(language_model: Any, label_text: str) -> list[int]:
    """Writes the public prompt: the label alone, or what a declared template says."""
    ids: list[int] = language_model.prompt_ids(label_text, [], 1)
    return ids
