"""Constrained decoding: which tokens continue a text of a JSON schema.

What may follow is a function of the schema, the tokenizer and the tokens so far. Where a single
token may, nothing has to be drawn.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.json_grammar import json_grammar

if TYPE_CHECKING:
    import torch


class JsonConstraint:
    """A JSON schema that all texts of a language model have to follow.

    **Privacy** It holds public values alone. The choices after released tokens are the same for
    neighbours: to draw among them is the same mechanism on fewer coordinates.
    """

    def __init__(self, language_model: Any, schema: str, text_start: str = "") -> None:
        """Reads the vocabulary once, which takes about a second.

        Args:
            language_model: Its tokenizer, width of logits and end token.
            schema: A JSON schema, as JSON.
            text_start: Declared beginning of every text, which stands in the prompt.

        Raises:
            ValueError: The tokenizer is none of Rust's, or schema and start exclude each other.
        """
        from llguidance.hf import from_tokenizer

        self._grammar = json_grammar(json.loads(schema), text_start)
        self._width: int = language_model.vocabulary_size
        self._end: int = language_model.end_token_id
        self._start: list[int] = language_model.encode(text_start) if text_start else []
        self._tokens = from_tokenizer(language_model.tokenizer, eos_token=self._end)

    def open(self, tokens: Sequence[int] = ()) -> "ConstrainedText":
        """Begins a text, with the tokens that it has already."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, self._grammar, log_level=0)
        text = ConstrainedText(matcher, self._tokens, self._width, self._end)
        for token in (*self._start, *tokens):
            text.take(token)
        return text

    def complete(self, tokens: Sequence[int]) -> bool:
        """Says whether tokens without an end token are a whole text of the schema."""
        return self.open(tokens).complete


class ConstrainedText:
    """A text that is being written."""

    def __init__(self, matcher: Any, tokens: Any, width: int, end_token_id: int) -> None:
        self._matcher, self._tokens = matcher, tokens
        self._width, self._end = width, end_token_id
        self._ended = False

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def choices(self) -> np.ndarray:
        """(V,) bool, the tokens that may come next: at least one, and the end after the end.

        It is one where the schema decides how the text goes on. Of the spellings of what it decides
        the longest is taken: to draw one of them would cost a token and say nothing.
        """
        if self._ended:
            return self._only([self._end])
        decided: list[int] = self._matcher.compute_ff_tokens()
        if decided:
            return self._only(decided[:1])
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(self._width, dtype=bool)
        known = np.unpackbits(bits, bitorder="little")[: self._width]
        allowed[: len(known)] = known
        certain: bytes = self._matcher.compute_ff_bytes()
        return self._without_shorter(allowed, certain) if certain else allowed

    def _only(self, tokens: Sequence[int]) -> np.ndarray:
        chosen = np.zeros(self._width, dtype=bool)
        chosen[list(tokens)] = True
        return chosen

    def _without_shorter(self, allowed: np.ndarray, certain: bytes) -> np.ndarray:
        """Leaves of the tokens that spell a part of the certain bytes the longest one."""
        spelled = {token: self._spelling(token) for token in np.flatnonzero(allowed).tolist()}
        within = [token for token, spelling in spelled.items() if certain.startswith(spelling)]
        longest = max(within, key=lambda token: len(spelled[token]), default=None)
        beyond = [token for token in spelled if token not in within]
        return self._only(beyond if longest is None else [*beyond, longest])

    def _spelling(self, token: int) -> bytes:
        spelling: bytes = self._tokens.decode_bytes([token])
        return spelling

    def take(self, token: int) -> None:
        """Appends a token; after the end token no other.

        Raises:
            ValueError: The token is none of the choices. It is not named.
        """
        if self._ended and token == self._end:
            return
        if self._ended or not self._matcher.consume_token(int(token)):
            raise ValueError("Expected a token that the schema allows here, got another one.")
        self._ended = token == self._end


def constrain(
    logits: "torch.Tensor", rows: Sequence[int], texts: Sequence[ConstrainedText]
) -> None:
    """Leaves of some rows of (R, V) logits, in place, those by which their texts may go on."""
    import torch

    for row, text in zip(rows, texts, strict=True):
        choices = torch.from_numpy(text.choices()).to(logits.device)
        logits[row].masked_fill_(~choices, -torch.inf)
