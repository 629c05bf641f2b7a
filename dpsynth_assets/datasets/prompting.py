"""Prompt templates that a dataset file declares, and the placeholders they take.

Only `{word}` of a known placeholder is filled in; all other braces stay as they are, so a template
may hold JSON. A record's text is never a template: what stands in it is not looked at.
"""

import re
from typing import Self

from pydantic import Field, model_validator

from dpsynth_assets.datasets.fields import Declaration, refuse

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
"""`{word}` in a template."""

_TAKES = {
    "private": ("label", "examples", "schema"),
    "example": ("label", "example"),
    "public": ("label", "schema"),
    "public_text": ("label", "schema"),
    "response_start": ("label",),
    "instruction": ("label",),
}
_NEEDED = {"private": "examples", "example": "example"}
_WITH_PRIVATE = ("example", "separator", "use_chat_template", "instruction")


class PromptSpec(Declaration):
    """Templates of the prompts. Without any, the model's own document format writes them."""

    private: str | None = Field(
        default=None,
        min_length=1,
        description="Prompt around private examples; `{examples}` stands for them, `{label}` for "
        "the label, `{schema}` for the declared structure. None: the model's document format.",
    )
    instruction: str = Field(
        default="",
        description="What a model with a chat template is asked for, as a user's turn before the "
        "prompt, which then begins its answer; with `{label}`. A model without one reads the "
        "prompt alone.",
    )
    example: str = Field(
        default="{example}",
        description="How each of the examples is written; `{example}` stands for its text.",
    )
    separator: str | None = Field(
        default=None, description="What stands between two examples; none: a blank line."
    )
    public: str | None = Field(
        default=None,
        min_length=1,
        description="Prompt without private text, with `{label}` and `{schema}`. None: the "
        "private one with public_text in an example's place.",
    )
    public_text: str | None = Field(
        default=None,
        min_length=1,
        description="Public text in an example's place, with `{label}` and `{schema}`; an invented "
        "record, or words such as `<text of topic {label}>`.",
    )
    response_start: str = Field(
        default="",
        description="Public words that open the answer, after every prompt; no part of the text.",
    )
    text_start: str = Field(
        default="",
        description="Public beginning of every text, e.g. a brace; prompts end with it and it is "
        "put before what the model writes.",
    )
    text_end: str = Field(
        default="", description="What closes a text, e.g. a fence; taken off its end."
    )
    end: str | None = Field(
        default=None,
        min_length=1,
        description="Token that ends a text, as text, e.g. the end of a turn. None: the "
        "tokenizer's end-of-sequence token where private is declared, else the model's own.",
    )
    use_chat_template: bool = Field(
        default=False,
        description="Whether the tokenizer's chat template wraps the prompt as a user's turn.",
    )

    @property
    def uses_schema(self) -> bool:
        """Says whether a template names `{schema}`."""
        return any("{schema}" in (getattr(self, name) or "") for name in _TAKES)

    @property
    def uses_label(self) -> bool:
        """Says whether a template names `{label}`, or the model's format does, which writes it."""
        return self.private is None or any(
            "{label}" in (getattr(self, name) or "") for name in _TAKES
        )

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        for name, known in _TAKES.items():
            for word in PLACEHOLDER.findall(getattr(self, name) or ""):
                if word not in known:
                    refuse(
                        name,
                        f"placeholders among {_listed(known)}",
                        f"{{{word}}}",
                        "Mend its name, or write braces that stay with blanks in them.",
                    )
        return self

    @model_validator(mode="after")
    def _examples_are_placed_once(self) -> Self:
        for name, word in _NEEDED.items():
            template = getattr(self, name)
            if template is None:
                continue
            if (times := PLACEHOLDER.findall(template).count(word)) != 1:
                refuse(
                    name,
                    f"{{{word}}} once",
                    "none" if not times else f"{times} of them",
                    "Write it where the private text belongs.",
                )
        return self

    @model_validator(mode="after")
    def _parts_belong_together(self) -> Self:
        if self.instruction and self.use_chat_template:
            refuse(
                "instruction",
                "instruction or use_chat_template",
                "both",
                "Drop one: the prompt is the user's turn, or the beginning of the answer.",
            )
        if self.private is None:
            for name in _WITH_PRIVATE:
                if name in self.model_fields_set:
                    refuse(
                        name,
                        "prompt.private beside it",
                        "none",
                        f"Write prompt.private, or drop {name}.",
                    )
        if self.public is not None and self.public_text is not None:
            refuse(
                "public_text",
                "public or public_text",
                "both",
                "Drop one: public_text stands in the private template, public in its place.",
            )
        return self


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"{{{word}}}" for word in words)
