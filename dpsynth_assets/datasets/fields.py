"""The base of every declaration, and its problems: file, field, expected, got, remedy."""

import difflib
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

REFUSAL = "dpsynth_refusal"
"""Pydantic error type of `refuse`; its context holds `field`, `expected`, `got` and `remedy`."""


class Refusal(NamedTuple):
    """One thing that is wrong with a declaration whose fields are each in order.

    Attributes:
        field: Dotted path below the declaration.
        expected: What should be there.
        remedy: What to do, a sentence.
        got: What is there; empty: the value of the field.
    """

    field: str
    expected: str
    remedy: str
    got: str = ""


class Declaration(BaseModel):
    """A frozen part of a dataset file; a key it does not know is an error, never ignored.

    The text below a field is its description, in messages and in docs/datasets.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def refusals(self) -> Iterator[Refusal]:
        """What is wrong with its fields together; the first is said."""
        yield from ()

    @model_validator(mode="after")
    def _holds(self) -> Self:
        for field, expected, remedy, got in self.refusals():
            refuse(field, expected, got or self._shown(field), remedy)
        return self

    def _shown(self, field: str) -> str:
        """The value of a field as the file has it; none where a name holds a point itself."""
        value: Any = self
        for step in field.split("."):
            if isinstance(value, list):
                value = value[int(step)]
            else:
                value = value.get(step) if isinstance(value, dict) else getattr(value, step, None)
        empty = value is None or value == "" or value == []
        shown = repr(value) if type(value) is str else str(value)
        return "none" if empty else shown[:80]


def refuse(field: str, expected: str, got: str, remedy: str) -> NoReturn:
    """Raises a validation error with its three parts kept apart; `field` is relative to the model.

    Raises:
        PydanticCustomError: Always.
    """
    raise PydanticCustomError(
        REFUSAL,
        "Expected {expected}, got {got}. {remedy}",
        {"field": field, "expected": expected, "got": got, "remedy": remedy},
    )


def unfit(section: Declaration, kind: str, own: Mapping[str, Collection[str]]) -> Iterator[Refusal]:
    """Refuses fields that mean nothing to a section's kind, and asks for those it needs.

    Args:
        section: The section.
        kind: The field that says its kind.
        own: Fields that only some kinds have, by kind; those that may be absent have a default.
    """
    value = getattr(section, kind)
    foreign = {name for fields in own.values() for name in fields} - {*own[value]}
    for name in sorted(section.model_fields_set & foreign):
        expected = f"no {name} for {kind}: {value}"
        yield Refusal(name, expected, f"Drop it, or change {kind}.", "one")
    for name in own[value]:
        if getattr(section, name) is None:
            yield Refusal(name, f"a value for {kind}: {value}", f"Write {name}.")


def twice(field: str, names: Sequence[str], remedy: str) -> Iterator[Refusal]:
    """Refuses a name that is listed twice."""
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield Refusal(field, "different names", remedy, f"{name!r} twice")


def _public_word(value: Any) -> Any:
    """Reads a YAML scalar as text: `4` is '4'. A bare yes/no/true/false must be quoted."""
    if isinstance(value, bool):
        refuse("", "text", f"the YAML boolean {str(value).lower()}", 'Quote it, e.g. "yes".')
    if isinstance(value, str) and len(value.strip().splitlines()) > 1:
        refuse("", "text on one line", "a line break", "Remove the line break.")
    return str(value) if isinstance(value, int | float) else value


PublicWord = Annotated[
    str, BeforeValidator(_public_word), StringConstraints(strip_whitespace=True, min_length=1)
]
"""A label value or a version as the file writes it; YAML numbers are read as text."""

INVISIBLE = r"[\p{Cf}\p{Default_Ignorable_Code_Point}]"
"""Invisible characters, as a pattern of Polars: joiners, selectors, fillers."""


def as_seen(texts: Iterable[str]) -> list[str]:
    """Texts without invisible characters, in one form of Unicode (NFC)."""
    listed = list(texts)
    if all(each.isascii() for each in listed):  # Before a command nothing heavy is imported.
        return listed
    import polars as pl

    written = pl.Series(listed, dtype=pl.String)
    return written.str.replace_all(INVISIBLE, "").str.normalize("NFC").to_list()


OWN_COLUMNS = "dpsynth_"
"""Beginning of the names of columns that published rows have beside text and labels."""

WHOLE_NUMBER = r"^([+-]?\d+)\.0+$"
"""A whole number as a column of floats writes it; the group is what is read."""


def normal_label(value: str) -> str:
    """A label as it is compared everywhere: `1.0` is `1`, without blanks at its ends."""
    return re.sub(WHOLE_NUMBER, r"\1", value.strip())


LabelWord = Annotated[PublicWord, AfterValidator(normal_label)]
"""A label value."""

IS_PATH = "path"
"""Mark of a field that names a file: relative, it is resolved when the file is read."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""A name that is safe in asset keys, folders and tags."""


_WRONG_BRANCH = {"list_type", "dict_type", "model_type", "model_attributes_type"}
_MOST_PROBLEMS = 100
"""Of one file: a person corrects some and asks again, and each is compared with all known keys."""


@dataclass(frozen=True)
class Problem:
    """One thing to correct. No part of it ever holds a private text or a value of a private column.

    Attributes:
        field: Dotted path below `attributes`, e.g. `budget.epsilon`; "" for the file as a whole.
        expected: What should be there.
        got: What is there: public values, or counts and row numbers of the private source.
        remedy: What to do, a sentence.
        severity: `error`: the dataset cannot be used. `warning`: records will be set aside. `note`:
            nothing is wrong; what is stated follows from the declaration.
        file: The YAML file; empty: the caller names it.
    """

    field: str
    expected: str
    got: str
    remedy: str
    severity: Literal["error", "warning", "note"] = "error"
    file: str = ""

    def __str__(self) -> str:
        """Writes the line that the terminal shows; all but errors name their severity."""
        kind = "" if self.severity == "error" else f"{self.severity}: "
        place = f"{self.file}: {kind}{self.field}" if self.field else self.file
        return f"{place}: expected {self.expected}, got {self.got}. {self.remedy}"


class DatasetFileError(ValueError):
    """Dataset files that cannot be used; `problems` says why, one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def problems_of(
    error: ValidationError, file: Path | str, model: type[Declaration], attributes: Any
) -> list[Problem]:
    """Translates a validation error; a value is one the public YAML file holds."""
    found = error.errors()
    shown = [
        _problem(detail, file, model, attributes)
        for detail in found[:_MOST_PROBLEMS]
        if not _is_other_branch(detail, found)
    ]
    if (left := len(found) - _MOST_PROBLEMS) > 0:
        fix = "Fix the problems above, and check again."
        shown.append(Problem("", "fewer problems", f"{left} more", fix, file=str(file)))
    return shown


def described(field: FieldInfo) -> str:
    """What a field is, in one line."""
    return " ".join((field.description or "").split())


def suggest(word: str, known: Sequence[str]) -> str:
    """Says which known word was meant, or lists those known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


def _is_other_branch(detail: Any, found: Sequence[Any]) -> bool:
    """Says whether the value fits another branch of a union, whose own errors say more."""
    parent = detail["loc"][:-1]
    return detail["type"] in _WRONG_BRANCH and any(
        other["loc"][: len(parent)] == parent and other["loc"] != detail["loc"] for other in found
    )


def _problem(detail: Any, file: Path | str, model: type[Declaration], attributes: Any) -> Problem:
    path = _path(detail, attributes)
    if detail["type"] == REFUSAL:
        told = dict(detail["ctx"])
        field = ".".join([*map(str, path), *filter(None, [told.pop("field")])])
        return Problem(field, **told, file=str(file))
    owner = _model_at(model, path[:-1])
    key, field = str(path[-1]) if path else "", ".".join(map(str, path))
    return Problem(field, *_parts(detail, key, owner), file=str(file))


def _parts(detail: Any, key: str, owner: type[BaseModel] | None) -> tuple[str, str, str]:
    fields = owner.model_fields if owner else {}
    meaning = described(fields[key]) if key in fields else ""
    if detail["type"] == "extra_forbidden":
        return "a known key", repr(key), suggest(key, list(fields))
    if detail["type"] == "missing":
        return "a value", "none", f"Add {key}: {meaning}".strip()
    expected = detail["msg"].removeprefix("Input should be ").partition(", unable to ")[0]
    got = detail["input"]
    shown = repr(got) if isinstance(got, str | int | float | None) else f"a {type(got).__name__}"
    return expected[:1].lower() + expected[1:], shown[:80], meaning or "Fix the value."


def _path(detail: Any, attributes: Any) -> list[str | int]:
    """Keeps the steps that exist in the file: pydantic also names union branches."""
    path: list[str | int] = []
    here = attributes
    for step in detail["loc"]:
        if _holds(here, step):
            here = here[step]
        elif detail["type"] != "missing" or step != detail["loc"][-1]:
            continue
        path.append(step)
    return path


def _holds(here: Any, step: str | int) -> bool:
    if isinstance(here, list):
        return isinstance(step, int) and step < len(here)
    return isinstance(here, dict) and step in here


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Finds the declaration that owns the keys at `path`."""
    found: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int):
            continue
        field = found.model_fields.get(step) if found else None
        found = next(models_in(field.annotation), None) if field else None
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Declarations inside an annotation, e.g. of `list[MethodSpec]` or `HistogramSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)
