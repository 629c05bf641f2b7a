"""Language models whose documents all begin with `PREFIX`, in prompts and in what they write.

Everything but the prompt is the wrapped model's own. What stands around a text is public, so the
prefix belongs to the frame, and a record of a reconstruction test is its key alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpsynth_assets.attacks.reconstruction import PREFIX
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates


def prefilled(language_model: Any, templates: PromptTemplates | None) -> Any:
    """Gives a model its declared prompts, if there are any, with `PREFIX` before every text."""
    if templates is None:
        return PrefilledModel(language_model)
    return PrefilledPrompts(language_model, templates)


class PrefilledModel:
    """A model that reads and writes in its document format, with `PREFIX` in the opening."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Looks all else up in the wrapped model."""
        return getattr(self._inner, name)

    def prompt_ids(
        self, label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Prompt of keys in the model's own format, ending where a key begins."""
        form = self._inner.document_format
        opened = replace(form, opening=form.opening + PREFIX)
        return opened.prompt_ids(self._inner, label_text, examples, max_example_tokens)


class PrefilledPrompts(PromptedModel):
    """A model that reads and writes in declared templates, with `PREFIX` before every text.

    A text's declared start, which precedes the prefix, is left out of what is read back: that
    begins with a key.
    """

    def _written_frame(self, label_text: str, examples: int) -> list[list[int]]:
        """The declared frame: each of its parts ends where a text begins."""
        prefix = self._public_ids(PREFIX)
        return [[*part, *prefix] for part in super()._written_frame(label_text, examples)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens: what follows `PREFIX`, without its end."""
        return super().decode(ids).removeprefix(self._templates.text_start)
