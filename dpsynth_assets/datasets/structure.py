"""The structure that texts should have, as a JSON schema, checked when a dataset file is read."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from dpsynth_assets import paths
from dpsynth_assets.datasets.fields import Declaration, refuse

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

    json_schema: Annotated[dict[str, Any] | str, BeforeValidator(_load_schema)] = Field(
        description="JSON schema of a text, or the path of a .json file that holds it (a relative "
        "one starts at the project root). Public; references stay within it."
    )
    description: str | None = Field(
        default=None,
        min_length=1,
        description="What `{schema}` stands for in prompts; none: an outline of the schema.",
    )

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
                f"Expected a JSON schema, got the path {self.json_schema!r}. "
                "Load the dataset file with its environment set."
            )
        return self.json_schema


def schema_outline(schema: Mapping[str, Any], depth: int = 0) -> str:
    """Outlines a JSON schema in one line, as a prompt shows it.

    An object is written as its fields with their types, `{"title": string, "cast": [string]}`; the
    description of a field follows it in brackets.

    **Source** Amin et al. 2024, figure 12: the public prompt shows types where the private one
    shows a record. Ours is derived from the declared schema.
    """
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    if depth < _MOST_DEPTH and isinstance(schema.get("properties"), Mapping):
        fields = (
            f"{json.dumps(name, ensure_ascii=False)}: {_outlined(part, depth + 1)}"
            for name, part in schema["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    if depth < _MOST_DEPTH and isinstance(schema.get("items"), Mapping):
        return f"[{_outlined(schema['items'], depth + 1)}]"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _outlined(part: Any, depth: int) -> str:
    if not isinstance(part, Mapping):
        return "any"
    note = part.get("description")
    outline = schema_outline(part, depth)
    return f"{outline} ({note})" if note else outline


def _read_json(path: str) -> Any:
    file = Path(path).expanduser()
    file = file if file.is_absolute() else paths.project_root() / file
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        got = f"nothing readable at {file}"
    except (ValueError, RecursionError):
        got = f"{file}, which is not JSON"
    refuse("", "a JSON schema, or the path of a .json file", got, "Mend the path, or the file.")


def _check_schema(schema: Mapping[str, Any]) -> None:
    """Refuses what the metaschema refuses, and references that lead out of the schema."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    problem = None
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        problem = f"{error.message[:_SHOWN]}{f' at {place}' if place else ''}"
    except RecursionError:
        problem = "one that is nested too deeply"
    if problem:
        refuse("", "a valid JSON schema", problem, "Mend the schema.")
    for reference in _references(schema):
        if not _resolves(schema, reference):
            refuse(
                "",
                "references to definitions in the schema itself",
                repr(reference)[:_SHOWN],
                'Define it under $defs and write "#/$defs/name".',
            )


def _references(part: Any) -> Iterator[Any]:
    """All values of `$ref`, however deep."""
    if isinstance(part, Mapping):
        for name, inner in part.items():
            if name in ("$ref", "$dynamicRef"):
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _resolves(schema: Mapping[str, Any], reference: Any) -> bool:
    """Whether a JSON pointer (`#`, `#/a/b`) leads to a part of the schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    here: Any = schema
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(here, Mapping) or name not in here:
            return False
        here = here[name]
    return reference == "#" or reference.startswith("#/")
