"""Texts that are JSON records: reading them, validating them by a schema, and a schema's grammar.

The grammar is for constrained decoding: texts are written without line breaks or indentation, their
properties in the order of the schema.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SEPARATORS = ((",", ":"), (", ", ": "))
"""Between items, and between key and value: compact, or as `json.dumps` writes by default."""


class JsonGrammarError(ValueError):
    """No text can be written by a schema: says what stands in the way.

    Attributes:
        start: Whether the declared start of texts does, and not the schema itself.
    """

    def __init__(self, message: str, *, start: bool) -> None:
        super().__init__(message)
        self.start = start


def json_grammar(schema: Mapping[str, Any], text_start: str = "") -> str:
    """Compiles a JSON schema to a grammar of llguidance.

    Args:
        schema: A valid JSON schema. llguidance's own keyword `x-guidance` is not read.
        text_start: Declared beginning of every text. Blanks after commas and colons are written
            where it has them.

    Raises:
        JsonGrammarError: The schema uses what the library cannot compile, such as `not` or
            `uniqueItems`; no text of it begins with `text_start`; or it has one text or none.
    """
    from llguidance import LLMatcher, LLTokenizer

    read = LLTokenizer("byte")
    for item, key in _SEPARATORS:
        form = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
        grammar: str = LLMatcher.grammar_from_json_schema(
            json.dumps({**schema, "x-guidance": form})
        )
        if problem := LLMatcher.validate_grammar(grammar, read):
            raise JsonGrammarError(problem.strip().splitlines()[-1].strip(), start=False)
        start = read.tokenize_str(text_start)
        matcher = LLMatcher(read, grammar, log_level=0)
        if matcher.try_consume_tokens(start) == len(start):
            _require_texts(matcher, read)
            return grammar
    raise JsonGrammarError("no text of the schema begins like this", start=True)


def allowed_tokens(matcher: "LLMatcher", width: int) -> np.ndarray:
    """(width,) bool, the tokens that a matcher lets follow, its end token included."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    known = np.unpackbits(bits, bitorder="little")[:width]
    allowed = np.zeros(width, dtype=bool)
    allowed[: len(known)] = known
    return allowed


def _require_texts(matcher: "LLMatcher", read: "LLTokenizer") -> None:
    """Refuses a schema that leaves nothing to choose behind what it decides."""
    matcher.try_consume_tokens(read.tokenize_bytes(matcher.compute_ff_bytes()))
    allowed = allowed_tokens(matcher, read.vocab_size)
    allowed[read.eos_token] = False
    if matcher.is_error() or not allowed.any():
        finite = matcher.is_accepting() and not matcher.is_error()
        number = "one text" if finite else "no finite text"
        raise JsonGrammarError(f"a schema of {number}", start=False)


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
