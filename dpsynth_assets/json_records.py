"""Texts that are JSON records: reading them, and validating them by a schema."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn


def parsed(text: str) -> list[Any]:
    """The JSON value of a text in a list; none where the text is not JSON."""
    try:
        return [json.loads(text, parse_constant=_refuse_constant)]
    except (ValueError, RecursionError):
        return []


def validator(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Says of a JSON value whether it is valid by a schema, `format` included where it is known.

    Args:
        schema: A JSON schema that `StructuredSpec` accepted: its references stay within it, and
            the empty registry fetches nothing from anywhere.
    """
    from jsonschema import FormatChecker
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    formats = FormatChecker(())  # The library's own for moments needs one more package.
    formats.checkers = {**kind.FORMAT_CHECKER.checkers, "date-time": (_is_moment, ())}
    found = kind(schema, registry=Registry(), format_checker=formats)

    def is_valid(value: Any) -> bool:
        try:
            return bool(found.is_valid(value))
        except (RecursionError, ArithmeticError, re.error):  # More than Python computes or reads.
            return False

    return is_valid


def record_check(schema: Mapping[str, Any]) -> Callable[[str], bool]:
    """Says of a text whether it is JSON and valid by a schema."""
    is_valid = validator(schema)
    return lambda text: any(map(is_valid, parsed(text)))


def _is_moment(value: Any) -> bool:
    """Whether a text is a date and a time with an offset, as RFC 3339 has them."""
    if not isinstance(value, str):
        return True
    try:
        return value[10:11] in ("T", "t") and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _refuse_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, which Python would read."""
    raise ValueError(f"Expected a JSON number, got {name}.")
