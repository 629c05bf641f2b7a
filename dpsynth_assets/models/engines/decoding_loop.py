"""Decodes the rows of one pass together until each has ended or reached its limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpsynth_assets.models.decoding.constraint import ConstrainedText, constrain
from dpsynth_assets.models.decoding.token_draws import draw_tokens
from dpsynth_assets.models.engines.protocol import Sampling

if TYPE_CHECKING:
    import torch

_COMPACT_BELOW = 0.75
"""Finished rows leave the pass once fewer than this share of its rows still write."""
_STEPS_BETWEEN_LOOKS = 8
"""Steps between two checks of which rows are done on a GPU: each check waits for the device."""


class Contexts(Protocol):
    """Rows that share a pass: `PackedContexts`, `ExactContexts`."""

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Logits (R, V) of each row's next token; see `PackedContexts.next_logits`."""

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all rows but these."""


@dataclass(frozen=True)
class EndRules:
    """Conditions that end a row before its limit.

    Attributes:
        token_ids: Tokens that end a row.
        stop: Texts that end a row.
        decode: Text of tokens.
    """

    token_ids: tuple[int, ...]
    stop: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]

    def is_stopped(self, tokens: Sequence[int], fresh: int) -> bool:
        """Says whether a stop text came to its end within the last `fresh` tokens."""
        longest = max(len(item.encode()) for item in self.stop)  # a token has a byte or more
        text = self.decode(tokens[-(longest + fresh) :])
        return any(item in text for item in self.stop)


def decode_rows(
    contexts: Contexts,
    limits: Sequence[int],
    sampling: Sampling,
    uniform: "torch.Tensor",
    rules: EndRules,
    texts: Sequence[ConstrainedText] = (),
) -> list[list[int]]:
    """Writes new tokens; all rows start at once, so step t writes token t of each.

    Args:
        contexts: R prompts that have been read.
        limits: Tokens of each row at most, >= 1.
        sampling: How tokens are drawn.
        uniform: Public randomness, (R, max(limits)) float32 in [0, 1), on the model's device.
        rules: What ends a row.
        texts: What each row has to follow; none where rows are free.

    Returns:
        R lists of at most limits[r] tokens. A row may go on for a few tokens behind its end.
    """
    import torch

    device = uniform.device
    state = _Rows(limits, device)
    ends = torch.tensor(rules.token_ids, device=device)
    looks = 1 if device.type == "cpu" else _STEPS_BETWEEN_LOOKS
    tokens = torch.zeros_like(state.rows)
    for step in range(max(limits)):
        logits = contexts.next_logits(tokens, torch.full((len(tokens),), step))
        own = [texts[row] for row in state.rows.tolist()] if texts else []
        constrain(logits, range(len(own)), own)
        tokens = draw_tokens(logits, uniform[state.rows, step], sampling)
        for text, token in zip(own, tokens.tolist() if own else (), strict=True):
            text.take(token)
        state.add(tokens, step, torch.isin(tokens, ends))
        if (step + 1) % looks == 0:
            if rules.stop:
                state.stop(step + 1, looks, rules)
            writing = state.writing()
            if not writing.any():
                break
            if writing.float().mean() < _COMPACT_BELOW:
                contexts.keep(writing.nonzero()[:, 0])
                state.rows, tokens = state.rows[writing], tokens[writing]
    return state.texts()


class _Rows:
    """Tokens that rows have written, and which rows are done.

    Attributes:
        rows: Row of each context that is still in the pass, int64.
    """

    def __init__(self, limits: Sequence[int], device: "torch.device") -> None:
        import torch

        self.rows = torch.arange(len(limits), device=device)
        self._limits = torch.tensor(limits, device=device)
        self._written = torch.zeros((len(limits), max(limits)), dtype=torch.long, device=device)
        self._done = torch.zeros(len(limits), dtype=torch.bool, device=device)

    def add(self, tokens: "torch.Tensor", step: int, ended: "torch.Tensor") -> None:
        self._written[self.rows, step] = tokens
        self._done[self.rows] |= ended | (self._limits[self.rows] == step + 1)

    def stop(self, written: int, fresh: int, rules: EndRules) -> None:
        """Marks rows done whose text contains a stop text."""
        import torch

        rows, texts = self.rows.tolist(), self.written(written)
        stopped = [
            row for row, text in zip(rows, texts, strict=True) if rules.is_stopped(text, fresh)
        ]
        self._done[torch.tensor(stopped, dtype=torch.long, device=self.rows.device)] = True

    def written(self, steps: int) -> list[list[int]]:
        """Tokens written by the rows that are still in the pass."""
        rows: list[list[int]] = self._written[self.rows, :steps].tolist()
        return rows

    def writing(self) -> "torch.Tensor":
        return ~self._done[self.rows]

    def texts(self) -> list[list[int]]:
        limits = self._limits.tolist()
        return [row[:limit] for row, limit in zip(self._written.tolist(), limits, strict=True)]
