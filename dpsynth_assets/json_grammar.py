"""The grammar of the texts of a JSON schema, for constrained decoding.

Texts are written without line breaks or indentation, their properties in the order of the schema.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    raise JsonGrammarError("no text of the schema begins so", start=True)


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
