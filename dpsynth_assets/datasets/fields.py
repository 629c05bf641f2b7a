"""The base of every declaration, and refusals that say expected, got and remedy."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

REFUSAL = "dpsynth_refusal"
"""Pydantic error type of `refuse`; its context holds `field`, `expected`, `got` and `remedy`."""


class Declaration(BaseModel):
    """A frozen part of a dataset file; a key it does not know is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def refuse_unfit(
    section: Declaration,
    kind: str,
    value: str,
    own: Mapping[str, Collection[str]],
    needed: Mapping[str, Collection[str]],
) -> None:
    """Refuses fields that mean nothing to a section's kind, and asks for those it needs.

    Args:
        section: The section, validated.
        kind: The field that says its kind.
        value: Its kind.
        own: Fields that only some kinds have, by kind.
        needed: Fields that may not be absent, by kind.
    """
    foreign = {name for fields in own.values() for name in fields} - {*own[value]}
    for name in sorted(section.model_fields_set & foreign):
        refuse(name, f"no {name} for {kind}: {value}", "one", f"Drop it, or change {kind}.")
    for name in needed.get(value, ()):
        if getattr(section, name) is None:
            refuse(name, f"a value for {kind}: {value}", "none", f"Write {name}.")


def _public_word(value: Any) -> Any:
    """Reads a YAML scalar as text: `4` is '4'. A bare yes/no/true/false must be quoted."""
    if isinstance(value, bool):
        refuse("", "text", f"the YAML boolean {str(value).lower()}", 'Quote it, e.g. "yes".')
    if isinstance(value, str) and len(value.strip().splitlines()) > 1:
        refuse("", "text on one line", "a line break", "Take it out.")
    return str(value) if isinstance(value, int | float) else value


PublicWord = Annotated[
    str, BeforeValidator(_public_word), StringConstraints(strip_whitespace=True, min_length=1)
]
"""A label value or a version as the file writes it; YAML numbers are read as text."""

INVISIBLE = r"[\p{Cf}\p{Default_Ignorable_Code_Point}]"
"""Characters that nobody sees in a text, as a pattern of Polars: joiners, selectors, fillers."""


def as_seen(texts: Iterable[str]) -> list[str]:
    """Texts without characters that nobody sees, in one form of Unicode (NFC)."""
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

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""A name that is safe in asset keys, folders and tags."""
