"""Prompt files of Private Evolution, as Microsoft's package reads them: messages and rules.

A file is a JSON object: `message_template`, a list of `{role, content}` whose contents, joined by
blank lines, name variables in braces, and `replacement_rules`, applied in order: where all
`constraints` hold, `replacements` set further variables, a list standing for an even choice among
its entries. Variables that are there already: `label`, and for variations `sample`,
`masked_sample` (words blanked with `_`) and `word_count`.

What a text brings into a prompt is never read as a placeholder again.

**Source** The format is that of Lin et al.'s package `pe` (github.com/microsoft/DPSDA), so that
files written for it are used as they are; everything here is our own.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpsynth_assets.paths import project_root

SAMPLE, MASKED_SAMPLE, WORD_COUNT = "sample", "masked_sample", "word_count"
BLANK = "_"

Scalar = str | int | float


class PromptError(ValueError):
    """A prompt file cannot be used: one line, expected, got, remedy."""


class Message(BaseModel):
    """One message of a template."""

    model_config = ConfigDict(frozen=True)

    role: Literal["system", "user", "assistant"] = "user"
    content: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the variables in the content."""
        parsed = Formatter().parse(self.content)
        return tuple(name for _, name, _, _ in parsed if name is not None)

    @model_validator(mode="after")
    def _plain_names_only(self) -> Self:
        for name in self.fields:
            if not name.isidentifier():
                raise ValueError(
                    f"Expected names like {{tone}} in braces, got {{{name}}}; write {{{{ and }}}} "
                    "for braces that stay"
                )
        try:
            self.content.format_map(dict.fromkeys(self.fields, "text"))
        except (KeyError, ValueError) as error:
            raise ValueError(f"Expected formats that a text takes, got: {error}") from None
        return self


class ReplacementRule(BaseModel):
    """Sets variables where constraints hold."""

    model_config = ConfigDict(frozen=True)

    constraints: dict[str, Scalar] = Field(default_factory=dict)
    replacements: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _something_to_choose(self) -> Self:
        for name, value in self.replacements.items():
            if isinstance(value, list) and not value:
                raise ValueError(f"Expected entries to choose {name} from, got an empty list")
        return self

    def applies(self, variables: Mapping[str, str]) -> bool:
        """Whether every constraint holds."""
        return all(variables.get(name) == str(value) for name, value in self.constraints.items())


class PromptFile(BaseModel):
    """A prompt file; keys beyond the two are ignored."""

    model_config = ConfigDict(frozen=True)

    message_template: list[Message] = Field(min_length=1)
    replacement_rules: list[ReplacementRule] = Field(default_factory=list)

    @property
    def digest(self) -> str:
        """Identity of the content: another prompt makes another release."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def written(self, variables: Mapping[str, str], rng: np.random.Generator) -> str:
        """Writes one prompt: the contents of its messages, with blank lines between them.

        Args:
            variables: Values by name; all that the template needs (`missing`).
            rng: Public randomness of the choices.
        """
        known = self._replaced(variables, lambda value: _chosen(value, rng))
        return "\n\n".join(each.content.format_map(known) for each in self.message_template)

    def missing(self, variables: Iterable[Mapping[str, str]]) -> set[str]:
        """Names that the template uses and that one of the given sets of variables lacks."""
        used = {name for message in self.message_template for name in message.fields}
        absent: set[str] = set()
        for given in variables:
            absent |= used - self._replaced(given, _first).keys()
        return absent

    def _replaced(
        self, variables: Mapping[str, str], chosen: Callable[[Any], str]
    ) -> dict[str, str]:
        """The variables and what the rules that apply set beside them, in order."""
        known = dict(variables)
        for rule in self.replacement_rules:
            if rule.applies(known):
                known |= {name: chosen(value) for name, value in rule.replacements.items()}
        return known


def read_prompt(source: str | PromptFile) -> PromptFile:
    """Reads a prompt file.

    Args:
        source: Path, relative ones starting at the project root or the working directory; or the
            content itself.

    Raises:
        PromptError: There is no such file, or it is not in the format.
    """
    if isinstance(source, PromptFile):
        return source
    places = (project_root() / source, Path(source))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise PromptError(f"Expected a prompt file at {source}, got none. Correct the path.")
    try:
        return PromptFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise PromptError(f"{path.name}: {place}: {message}. Correct the file.") from None
    except (ValueError, OSError):
        raise PromptError(
            f"Expected JSON with message_template in {path.name}, got something else. Correct it."
        ) from None


def masked(text: str, share: float, rng: np.random.Generator) -> str:
    """Blanks each word with probability `share`."""
    words = text.split()
    blank = rng.random(len(words)) < share
    return " ".join(
        BLANK if hidden else word for word, hidden in zip(words, blank.tolist(), strict=True)
    )


def _chosen(value: Any, rng: np.random.Generator) -> str:
    return str(value[rng.integers(len(value))]) if isinstance(value, list) else str(value)


def _first(value: Any) -> str:
    return str(value[0]) if isinstance(value, list) else str(value)
