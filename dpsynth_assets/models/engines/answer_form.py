"""Answers in a form: one flat JSON object of whole numbers within bounds, whatever model answers.

An endpoint is told the form as a JSON schema. Engines that run the model here let it choose among
the tokens that keep to the form: the words between the numbers are given, each number is the
model's own choice within its bounds. The trie below says which tokens those are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Trie = dict[int, "Trie"]
"""Next tokens, each with what may follow it; empty where a segment is complete."""


@dataclass(frozen=True)
class AnswerForm:
    """A flat JSON object of whole numbers.

    Attributes:
        bounds: Name, least and greatest value of each field, in order.
    """

    bounds: tuple[tuple[str, int, int], ...]

    def __post_init__(self) -> None:
        """Refuses a form that no answer keeps to."""
        names = [name for name, _, _ in self.bounds]
        if not names or len(set(names)) != len(names) or any(a > b for _, a, b in self.bounds):
            raise ValueError(
                f"Expected differently named fields with least <= greatest, got {self.bounds}."
            )

    def schema(self) -> dict[str, Any]:
        """The form as JSON Schema."""
        return {
            "type": "object",
            "properties": {
                name: {"type": "integer", "minimum": least, "maximum": greatest}
                for name, least, greatest in self.bounds
            },
            "required": [name for name, _, _ in self.bounds],
            "additionalProperties": False,
        }

    def segments(self) -> list[list[str]]:
        """The answer's parts in order, each as the spellings it may have.

        No spelling of a part begins another: every number ends with what follows it.
        """
        parts = [[f'{{"{self.bounds[0][0]}":']]
        following = [f', "{name}":' for name, _, _ in self.bounds[1:]] + ["}"]
        for (_, least, greatest), words in zip(self.bounds, following, strict=True):
            parts.append([f" {value}{words}" for value in range(least, greatest + 1)])
        return parts


@dataclass(frozen=True)
class AnswerTokens:
    """A form in the tokens of one model.

    Attributes:
        tries: One for each segment.
        end: Token that ends a complete answer.
    """

    tries: tuple[Trie, ...]
    end: int

    @classmethod
    def of(
        cls, form: AnswerForm, encode: Callable[[str], Sequence[int]], end: int
    ) -> "AnswerTokens":
        """Writes every spelling of every segment in tokens.

        Args:
            form: The form.
            encode: Tokens of plain text.
            end: Token that ends an answer.
        """
        return cls(tuple(_trie(map(encode, spellings)) for spellings in form.segments()), end)

    def allowed(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may follow `tokens`, ascending; the end alone once all is written."""
        tries = iter(self.tries)
        node: Trie | None = next(tries)
        for token in tokens:
            if node is None or token not in node:
                return [self.end]
            node = node[token] or next(tries, None)
        return sorted(node) if node else [self.end]

    def mask(self, written: Sequence[Sequence[int]], width: int) -> Any:
        """Mask to add to the logits (R, V) of R answers: 0 where a token may follow, else -inf.

        Args:
            written: The tokens of each answer so far.
            width: V.

        Returns:
            (R, V) float32 array.
        """
        import numpy as np

        added = np.full((len(written), width), -np.inf, dtype=np.float32)
        for row, tokens in enumerate(written):
            added[row, self.allowed(tokens)] = 0.0
        return added


def _trie(sequences: Any) -> Trie:
    root: Trie = {}
    for tokens in sequences:
        node = root
        for token in tokens:
            node = node.setdefault(token, {})
    return root


def response_format(form: AnswerForm) -> Mapping[str, Any]:
    """Writes the form for an OpenAI-compatible endpoint."""
    schema = {"name": "answer", "strict": True, "schema": form.schema()}
    return {"type": "json_schema", "json_schema": schema}
