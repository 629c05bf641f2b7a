"""The grammar of the texts of a JSON schema, for constrained decoding.

Texts are written without line breaks or indentation, their properties in the order of the schema.
"""

import json
from collections.abc import Mapping
from typing import Any

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
        schema: A valid JSON schema.
        text_start: Declared beginning of every text. Blanks after commas and colons are written
            where it has them.

    Raises:
        JsonGrammarError: The schema uses what the library cannot compile, such as `not` or
            `uniqueItems`, or no text of it begins with `text_start`.
    """
    from llguidance import LLMatcher, LLTokenizer

    read = LLTokenizer("byte")
    for item, key in _SEPARATORS:
        form = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
        grammar: str = LLMatcher.grammar_from_json_schema(
            json.dumps({**schema, "x-guidance": form})
        )
        if problem := LLMatcher.validate_grammar(grammar, read):
            raise JsonGrammarError(problem.splitlines()[-1].strip(), start=False)
        start = read.tokenize_str(text_start)
        if LLMatcher(read, grammar, log_level=0).try_consume_tokens(start) == len(start):
            return grammar
    raise JsonGrammarError("no text of the schema begins so", start=True)
