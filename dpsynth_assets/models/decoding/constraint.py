"""Constrained decoding: which tokens continue a text of a JSON schema.

What may follow is a function of the schema, the tokenizer and the tokens so far. Where a single
token may, nothing has to be drawn.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.json_records import allowed_tokens, json_grammar, record_check
from dpsynth_assets.privacy.cpu import is_plain, map_on_cpu_threads, plain_entries

if TYPE_CHECKING:
    import torch


class JsonConstraint:
    """A JSON schema that all texts of a language model have to follow.

    **Privacy** It holds public values alone. The choices after released tokens are the same for
    neighbours: to draw among them is the same mechanism on fewer coordinates.
    """

    def __init__(
        self,
        language_model: Any,
        schema: str,
        text_start: str = "",
        *,
        end_token_id: int | None = None,
    ) -> None:
        """Reads the vocabulary once, which takes about a second.

        Args:
            language_model: Its tokenizer, width of logits and end token.
            schema: A JSON schema, as JSON.
            text_start: Declared beginning of every text, which stands in the prompt.
            end_token_id: The token that ends a text; None: the language model's.

        Raises:
            ValueError: The tokenizer is none of the library `tokenizers`, schema and start exclude
                each other or cannot be spelled, or the schema leaves nothing to choose.
        """
        declared = json.loads(schema)
        self.is_followed = record_check(declared)
        """Says whether a text is JSON and valid by the schema."""
        self._grammar = json_grammar(declared, text_start)
        self._width: int = language_model.vocabulary_size
        self._end: int = language_model.end_token_id if end_token_id is None else end_token_id
        self._tokens = _read_tokenizer(language_model.tokenizer, self._end)
        self._start: list[int] = self._tokens.greedy_tokenize(text_start)
        self._require_a_choice()

    def open(self, tokens: Sequence[int] = ()) -> "ConstrainedText":
        """Begins a text, with the tokens that it has already behind the declared beginning."""
        text = ConstrainedText(self._matcher(), self._tokens, self._width, self._end)
        for token in (*self._start, *tokens):
            text.take(token)
        return text

    def begun(self, tokens: Sequence[int]) -> list[int]:
        """Those of the first tokens of any text that one of the schema may begin with."""
        matcher = self._matcher()
        matcher.try_consume_tokens(self._start)
        return list(tokens[: matcher.try_consume_tokens(list(tokens))])

    def _matcher(self) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(self._tokens, self._grammar, log_level=0)

    def _require_a_choice(self) -> None:
        """Refuses what no text can begin with, before anything is written or charged."""
        problem = (
            "Expected a schema with more than one text, each spelt by this model's tokens without "
            "its end token, got a schema that reaches a point where no token is allowed. Fix it, "
            "prompt.text_start or prompt.end, take a model whose tokenizer spells every character, "
            "or set structured.constrained_decoding: false."
        )
        try:
            text = self.open()
        except ValueError:  # The declared beginning is not spelled by tokens that may follow.
            raise ValueError(problem) from None
        while text.is_decided:
            if text.is_stuck or text.complete:
                raise ValueError(problem)
            text.take(int(text.choices().argmax()))


class ConstrainedText:
    """A text that is being written."""

    def __init__(self, matcher: Any, tokens: Any, width: int, end_token_id: int) -> None:
        self._matcher, self._tokens = matcher, tokens
        self._width, self._end = width, end_token_id
        self._ended = False
        self.is_stuck = False
        """Whether no token may follow though the text is not complete."""

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def is_decided(self) -> bool:
        """Whether a single token may come next."""
        return bool(self.choices().sum() == 1)

    def choices(self) -> np.ndarray:
        """(V,) bool, the tokens that may come next: at least one, and the end after the end.

        It is one where the schema decides how the text goes on. Of the spellings of what it decides
        the longest is taken: to draw one of them would cost a token and say nothing. The end token
        may come where a text is complete, regardless of its characters, and where nothing else
        can: the schema has no finite text from here, or needs the end token itself.

        **Privacy** Where a text is stuck follows from tokens that may not be kept yet. An error
        would reveal them, so the text ends there and is no record.
        """
        if self._ended:
            return self._only([self._end])
        decided: list[int] = self._matcher.compute_ff_tokens()
        certain: bytes = self._matcher.compute_ff_bytes()
        if decided and not self.complete:
            # A tokenizer may lack a character that the schema decides: no token may follow then.
            allowed = self._only(self._that_follow([self._spelled(decided[0], certain)]))
        else:
            allowed = allowed_tokens(self._matcher, self._width)
            allowed = self._without_shorter(allowed, certain) if certain else allowed
        allowed[self._end] = self.complete
        if self._matcher.is_error() or not allowed.any():
            self.is_stuck = True
            return self._only([self._end])
        return allowed

    def _only(self, tokens: Sequence[int]) -> np.ndarray:
        chosen = np.zeros(self._width, dtype=bool)
        chosen[list(tokens)] = True
        return chosen

    def _spelled(self, token: int, certain: bytes) -> int:
        """The token that begins certain bytes; where it is the end token, that of one character."""
        if token != self._end:
            return token
        first = certain.decode(errors="replace")[:1]
        return int(self._tokens.greedy_tokenize(first)[0])

    def _without_shorter(self, allowed: np.ndarray, certain: bytes) -> np.ndarray:
        """Leaves of the tokens that spell a part of the certain bytes the longest one."""
        follow = self._that_follow(np.flatnonzero(allowed).tolist())
        spelled: dict[int, bytes] = {each: self._tokens.decode_bytes([each]) for each in follow}
        within = [token for token, spelling in spelled.items() if certain.startswith(spelling)]
        longest = max(within, key=lambda token: len(spelled[token]), default=None)
        beyond = [token for token in spelled if token not in within]
        return self._only(beyond if longest is None else [*beyond, longest])

    def _that_follow(self, tokens: Sequence[int]) -> list[int]:
        """Those that the matcher takes: beside bytes that no token spells its mask tells others."""
        known = [token for token in tokens if token < self._width]
        return [token for token in known if self._matcher.validate_tokens([token]) == 1]

    def take(self, token: int) -> None:
        """Appends a token; after the end token no other.

        Raises:
            ValueError: The token is none of the choices. It is not named.
        """
        if token == self._end and (self._ended or self.is_stuck or self.complete):
            self._ended = True
        elif self._ended or token == self._end or not self._matcher.consume_token(int(token)):
            raise ValueError("Expected a token that the schema allows here, got another one.")


def constrain(logits: "torch.Tensor", texts: Sequence[ConstrainedText]) -> None:
    """Leaves of (R, V) logits, in place, those by which the text of each row may go on.

    On a processor rows are shared out to threads: the choices of a text take as long as its logits.
    """
    import torch

    plain = is_plain(logits)

    def leave_choices(row: int, text: ConstrainedText) -> None:
        excluded = ~text.choices()
        if plain:
            np.copyto(logits[row].numpy(), -np.inf, where=excluded)
        else:
            logits[row].masked_fill_(torch.from_numpy(excluded).to(logits.device), -torch.inf)

    rows = list(enumerate(texts))
    map_on_cpu_threads(lambda each: leave_choices(*each), rows, plain_entries(logits))


def _read_tokenizer(tokenizer: Any, end_token_id: int) -> Any:
    """The tokenizer as llguidance reads it.

    Raises:
        ValueError: It is none that llguidance reads.
    """
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer, eos_token=end_token_id)
    except ValueError as error:
        raise ValueError(
            "Expected a tokenizer of the library tokenizers (tokenizer.json) for constrained "
            f"decoding, got {type(tokenizer).__name__}: {error} Take another model, or set "
            "structured.constrained_decoding: false."
        ) from None
