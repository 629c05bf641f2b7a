"""The generation loop of Algorithm 1: batches packed side by side, one private token at a time.

Everything that decides when to stop, restart or open a document is a function of released tokens
and public settings. Private data enters in one place only: the logits handed to the selector.

Letters: B batches of a pass, R rows (all their contexts), V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.models.decoding import PackedContexts

if TYPE_CHECKING:
    import torch

_COMPACT_BELOW = 0.75
"""Rows of finished batches leave the pass once fewer than this share of rows still works."""


class TokenSelector(Protocol):
    """Draws one private token for each active batch and charges it, before it looks at a logit."""

    def __call__(
        self, logits: "torch.Tensor", batch_of_row: "torch.Tensor", active: np.ndarray
    ) -> np.ndarray:
        """Draws tokens.

        Args:
            logits: (R, V), private.
            batch_of_row: (R,) int64 in [0, B).
            active: (A,) int64, ascending: batches that draw now, whether they have rows or not.

        Returns:
            (A,) int64 token ids.
        """


@dataclass(frozen=True, kw_only=True)
class GenerationRules:
    """Public rules of the loop.

    Attributes:
        tokens_per_batch: r, private tokens a batch may draw.
        max_document_tokens: A document ends at this length.
        min_tokens_for_new_document: Tokens that must be left to open another document.
        end_token_id: Ends a document; drawing it costs a private token like any other.
        pad_token_id: Filler of prompts.
        prompt_columns: P, public pad length.
    """

    tokens_per_batch: int
    max_document_tokens: int
    min_tokens_for_new_document: int
    end_token_id: int
    pad_token_id: int
    prompt_columns: int


@dataclass
class Document:
    """A released token sequence without its end token.

    Attributes:
        batch: Index of the batch in the pass.
        tokens: Private draws, each charged.
        finished: False if the batch's tokens ran out before the document ended.
    """

    batch: int
    tokens: list[int] = field(default_factory=list)
    finished: bool = False


def generate_documents(
    model: Any,
    prompts: Sequence[Sequence[Sequence[int]]],
    select: TokenSelector,
    rules: GenerationRules,
    on_step: Callable[[int], None] | None = None,
) -> list[Document]:
    """Generates from B batches until each has spent its private tokens.

    Args:
        model: transformers causal language model.
        prompts: For each batch, the prompts of its contexts; a batch may have none and generates
            all the same. (To skip it would reveal that it is empty.)
        select: Draws and charges tokens.
        rules: Public rules.
        on_step: Told the number of private tokens drawn in each step.

    Returns:
        Documents in the order in which they ended.

    **Privacy** Adaptive composition of at most r draws for each batch; batches share no record.
    The number of steps, restarts and documents depends on drawn tokens and on `rules` alone.

    **Source** Amin et al. 2024, Algorithm 1, without its public tokens, and Amin et al. 2025,
    Algorithm 1. The budget is tested before every token, not between documents (errata B-001.1).
    """
    wave = _Wave(model, prompts, rules)
    documents: list[Document] = []
    while wave.active.any():  # [amin2024 A1:L3] [amin2025 A1:L2] side by side
        drawing = np.flatnonzero(wave.active)
        tokens = select(wave.next_logits(), wave.batch_of_row, drawing)
        documents += wave.append(drawing, tokens)
        if on_step is not None:
            on_step(len(drawing))
    return documents  # [amin2024 A1:L22] [amin2025 A1:L11]


class _Wave:
    """B batches in one forward pass, and what each has written so far."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[Sequence[int]]],
        rules: GenerationRules,
    ) -> None:
        import torch

        self._rules = rules
        self._contexts = PackedContexts(
            model,
            [prompt for batch in prompts for prompt in batch],
            prompt_columns=rules.prompt_columns,
            max_new_tokens=rules.max_document_tokens,
            pad_token_id=rules.pad_token_id,
        )
        sizes = torch.tensor([len(batch) for batch in prompts], dtype=torch.long)
        self.batch_of_row = torch.repeat_interleave(torch.arange(len(prompts)), sizes)
        self._open = [Document(batch) for batch in range(len(prompts))]
        self._spent = np.zeros(len(prompts), dtype=np.int64)
        self._written = np.zeros(len(prompts), dtype=np.int64)
        self._last_token = np.full(len(prompts), rules.pad_token_id, dtype=np.int64)
        self.active = self._may_open(self._spent)

    def next_logits(self) -> "torch.Tensor":
        """Logits of every context after its batch's text so far.

        A batch whose document ended has written nothing of the next one: its rows continue from
        their cached prompts.
        """
        import torch

        self._compact()
        last, written = torch.from_numpy(self._last_token), torch.from_numpy(self._written)
        # [amin2024 A1:L9] [amin2025 A1:L6]
        return self._contexts.next_logits(last[self.batch_of_row], written[self.batch_of_row])

    def append(self, drawing: np.ndarray, tokens: np.ndarray) -> Iterator[Document]:
        """Appends one token to each drawing batch; yields the documents that this closes."""
        rules = self._rules
        self._spent[drawing] += 1
        self._written[drawing] += 1
        self._last_token[drawing] = tokens
        for batch, token in zip(drawing.tolist(), tokens.tolist(), strict=True):
            document = self._open[batch]
            if token != rules.end_token_id:
                document.tokens.append(token)  # [amin2024 A1:L20] [amin2025 A1:L9]
            document.finished = (  # [amin2024 A1:L8]
                token == rules.end_token_id or len(document.tokens) >= rules.max_document_tokens
            )
            if document.finished or self._spent[batch] >= rules.tokens_per_batch:
                self._open[batch] = Document(batch)
                self._written[batch] = 0  # [amin2024 A1:L7] [amin2025 A1:L4]
                yield document  # [amin2024 A1:L21] [amin2025 A1:L10]
        self._stop_spent(drawing)

    def _stop_spent(self, drawing: np.ndarray) -> None:
        """Retires batches that stand between documents and may not open another."""
        between = self._written[drawing] == 0
        closed = drawing[between]
        self.active[closed] = self._may_open(self._spent[closed])

    def _may_open(self, spent: np.ndarray) -> np.ndarray:
        left = self._rules.tokens_per_batch - spent  # [amin2024 A1:L6]
        allowed: np.ndarray = left >= self._rules.min_tokens_for_new_document
        return allowed

    def _compact(self) -> None:
        """Drops finished batches' rows from the pass when they are many; changes speed only."""
        import torch

        working = torch.from_numpy(self.active)[self.batch_of_row]
        if len(working) and working.float().mean() < _COMPACT_BELOW:
            self._contexts.keep(working.nonzero()[:, 0])
            self.batch_of_row = self.batch_of_row[working]
