"""The base of every declaration, and refusals that say expected, got and remedy."""

from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints
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


def _public_word(value: Any) -> Any:
    """Reads a YAML scalar as text: `4` is '4'. A bare yes/no/true/false must be quoted."""
    if isinstance(value, bool):
        refuse("", "text", f"the YAML boolean {str(value).lower()}", 'Quote it, e.g. "yes".')
    return str(value) if isinstance(value, int | float) else value


PublicWord = Annotated[
    str, BeforeValidator(_public_word), StringConstraints(strip_whitespace=True, min_length=1)
]
"""A label value or a version as the file writes it; YAML numbers are read as text."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""A name that is safe in asset keys, folders and tags."""
