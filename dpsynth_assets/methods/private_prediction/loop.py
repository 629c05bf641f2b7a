"""The generation loop of Algorithm 1: batches packed side by side, one private token at a time.

Everything that decides when to stop, restart or open a document is a function of released tokens
and public settings. Private data enters in one place only: the logits handed to the selector.
Where a method compares with public text, each batch has a public prompt as well, which follows the
same released tokens in forward passes of its own. Where a schema constrains texts, draws are among
the tokens that continue one, and text that the schema determines is appended at no cost.

Letters: B batches of a pass, R rows (all their contexts), V vocabulary, A batches that draw now.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from dpsynth_assets.models.decoding import ConstrainedText, Contexts, Decoder, JsonConstraint
from dpsynth_assets.privacy.batch_terms import pass_rows
from dpsynth_assets.privacy.cpu import map_on_cpu_threads, plain_entries
from dpsynth_assets.privacy.token_selection import NextLogits

if TYPE_CHECKING:
    import torch

_COMPACT_BELOW = 0.75
"""Rows of finished batches leave the pass once fewer than this share of rows still works."""


class Draws(NamedTuple):
    """One token for each drawing batch, and which of them were paid for.

    Attributes:
        tokens: (A,) int64 token ids.
        private: (A,) bool, True for private tokens; which they are is part of the release.
        decided: How many a schema decided, which are neither private nor public draws.
    """

    tokens: np.ndarray
    private: np.ndarray
    decided: int = 0

    @classmethod
    def all_private(cls, tokens: np.ndarray) -> "Draws":
        """Draws of a method that knows private tokens only."""
        return cls(tokens, np.ones(len(tokens), dtype=bool))


TokenSelector = Callable[[NextLogits], Draws]
"""Draws one token for each active batch; private ones are charged before a logit is read."""


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
        max_tokens_per_batch: Tokens a batch may write in all, free public ones included: without
            private tokens to count, nothing else would end a batch. None: no such limit.
        rows_per_pass: P, the most contexts of one forward pass (`pass_rows`). None: no limit,
            where a row's logits do not depend on other rows, or nothing is private.
        constraint: The schema that every document follows; None: text is free. It needs
            `max_tokens_per_batch`: what a schema decides is not among the private tokens.
    """

    tokens_per_batch: int
    max_document_tokens: int
    min_tokens_for_new_document: int
    end_token_id: int
    pad_token_id: int
    prompt_columns: int
    max_tokens_per_batch: int | None = None
    rows_per_pass: int | None = None
    constraint: JsonConstraint | None = None

    @property
    def certain_steps(self) -> int:
        """Steps that a pass takes regardless of the draws.

        A batch stops at the earliest when too few private tokens are left for another document; it
        spends one a step at most.
        """
        spendable = self.tokens_per_batch - self.min_tokens_for_new_document + 1
        return max(0, min(spendable, self.most_steps))

    @property
    def most_steps(self) -> int:
        """Steps that a pass takes at most."""
        limit = self.max_tokens_per_batch
        return self.tokens_per_batch if limit is None else limit


@dataclass
class Document:
    """A released token sequence without its end token.

    Attributes:
        batch: Index of the batch in the pass.
        tokens: Draws, in order.
        private_tokens: How many draws were private, the end token included.
        finished: False if the batch's tokens ran out before the document ended.
    """

    batch: int
    tokens: list[int] = field(default_factory=list)
    private_tokens: int = 0
    finished: bool = False


def generate_documents(
    decoder: Decoder,
    prompts: Sequence[Sequence[Sequence[int]]],
    select: TokenSelector,
    rules: GenerationRules,
    on_step: Callable[[int, int], None] | None = None,
    public_prompts: Sequence[Sequence[int]] | None = None,
    public_prefixes: Sequence[Sequence[int]] = (),
    row_keys: Sequence[bytes] = (),
) -> list[Document]:
    """Generates from B batches until each has spent its private tokens.

    Args:
        decoder: What decodes.
        prompts: For each batch, the prompts of its contexts; a batch may have none and generates
            all the same. (To skip it would reveal that it is empty.)
        select: Draws and charges tokens.
        rules: Public rules.
        on_step: Told the numbers of private and of public tokens drawn in each step; what it makes
            of them is not shown before the documents are kept.
        public_prompts: For each batch, the public prompt it is compared with; None where the
            method compares with nothing.
        public_prefixes: Public token sequences that private prompts may begin with
            (`models.decoding.public_prefix`); read once instead of once a context.
        row_keys: For each context, batch after batch, what names it (`batch_terms.row_key`);
            needed where `rules.rows_per_pass` is set.

    Returns:
        Documents in the order in which they ended.

    **Privacy** Adaptive composition of at most r draws for each batch; batches share no record.
    A constraint is a function of released tokens: a draw on fewer coordinates costs no more, and a
    token without an alternative is no draw and reads no private logit. The number of steps,
    restarts and documents depends on drawn tokens and on `rules` alone. One context more or less
    changes the forward passes of at most P others, regardless of what a batch holds: how rows are
    cut into passes, and when those of finished batches are dropped, is decided within a pass
    (`pass_rows` has the proof).

    **Source** Amin et al. 2024, Algorithm 1, and Amin et al. 2025, Algorithm 1. The budget is
    tested before every token, not between documents (errata B-001.1).
    """
    wave = _Wave(decoder, prompts, rules, public_prompts, public_prefixes, row_keys)
    documents: list[Document] = []  # [amin2024 A1:L1] [amin2025 A1:L1]
    while wave.active.any():  # [amin2024 A1:L3] [amin2025 A1:L2] [amin2025 A1:L5] side by side
        drawing = np.flatnonzero(wave.active)
        draws = wave.draw(drawing, select)
        documents += wave.append(drawing, draws)
        if on_step is not None:
            paid = int(draws.private.sum())
            on_step(paid, len(drawing) - paid - draws.decided)
    return documents  # [amin2024 A1:L22] [amin2025 A1:L11]


class _Wave:
    """B batches that draw side by side, and what each has written so far."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[Sequence[int]]],
        rules: GenerationRules,
        public_prompts: Sequence[Sequence[int]] | None,
        public_prefixes: Sequence[Sequence[int]],
        row_keys: Sequence[bytes],
    ) -> None:
        self._rules = rules
        contexts = [(owner, prompt) for owner, batch in enumerate(prompts) for prompt in batch]
        passes = [np.arange(len(contexts))]
        if rules.rows_per_pass is not None:
            if len(row_keys) != len(contexts):
                raise ValueError("Expected row_keys with one key a context, got another number.")
            passes = pass_rows(row_keys, rules.rows_per_pass)
        self._passes = [
            _Pass(decoder, [contexts[row] for row in rows], rules, public_prefixes)
            for rows in passes
        ]
        self._public: Contexts | None = None
        if public_prompts is not None:  # One a batch, which stays when its batch has finished.
            self._public = decoder.open(
                public_prompts,
                prompt_columns=max(len(prompt) for prompt in public_prompts),
                max_new_tokens=rules.max_document_tokens,
                public_prefixes=public_prompts,  # Batches of one label share a prompt.
                public=True,
            )
        self._open = [Document(batch) for batch in range(len(prompts))]
        self._texts = [self._opened() for _ in prompts]
        self._spent = np.zeros(len(prompts), dtype=np.int64)
        self._total = np.zeros(len(prompts), dtype=np.int64)
        self._written = np.zeros(len(prompts), dtype=np.int64)
        self._last_token = np.full(len(prompts), rules.pad_token_id, dtype=np.int64)
        self.active = self._may_open(np.arange(len(prompts)))

    @property
    def batch_of_row(self) -> "torch.Tensor":
        """(R,) int64 batch of each context, in the order of `next_logits`."""
        import torch

        return torch.cat([each.batch_of_row for each in self._passes])

    def next_logits(self) -> "torch.Tensor":
        """Logits of every context after its batch's text so far.

        A batch whose document ended has written nothing of the next one: its rows continue from
        their cached prompts. Rows of several passes are copied into one tensor as they come.
        """
        import torch

        for each in self._passes:
            each.compact(self.active)
        last, written = torch.from_numpy(self._last_token), torch.from_numpy(self._written)
        # [amin2024 A1:L9] [amin2025 A1:L6]
        if len(self._passes) == 1:
            return self._passes[0].next_logits(last, written)
        rows, together, start = sum(len(each.batch_of_row) for each in self._passes), None, 0
        for each in self._passes:
            logits = each.next_logits(last, written)
            together = logits.new_empty((rows, logits.shape[1])) if together is None else together
            together[start : start + len(logits)] = logits
            start += len(logits)
        return cast("torch.Tensor", together)

    def public_logits(self, drawing: np.ndarray) -> "torch.Tensor | None":
        """Logits (A, V) of the public prompts of the drawing batches after their texts so far.

        **Privacy** A forward pass without private rows, of a shape that released tokens fix: the
        logits are public to the last bit.
        """
        import torch

        if self._public is None:
            return None
        last, written = torch.from_numpy(self._last_token), torch.from_numpy(self._written)
        return self._public.next_logits(last, written)[torch.from_numpy(drawing)]

    def draw(self, drawing: np.ndarray, select: TokenSelector) -> Draws:
        """Draws a token for each of (A,) batches.

        No logits outlive the step: the next pass would need a second (R, V) tensor, and fresh
        memory for it, which a CPU pays for page by page.
        """
        # [amin2024 A1:L10] [amin2024 A2:L2] [amin2024 A3:L4-5]
        private_logits, public = self.next_logits(), self.public_logits(drawing)
        logits = NextLogits(private_logits, self.batch_of_row, drawing, public)
        if self._rules.constraint is None:
            return select(logits)
        tokens, private = np.zeros(len(drawing), np.int64), np.zeros(len(drawing), bool)
        decided = 0
        texts = [cast("ConstrainedText", self._texts[batch]) for batch in drawing.tolist()]
        choices = map_on_cpu_threads(ConstrainedText.choices, texts, plain_entries(private_logits))
        for place, (batch, allowed) in enumerate(zip(drawing.tolist(), choices, strict=True)):
            if allowed.sum() == 1:
                tokens[place], decided = allowed.argmax(), decided + 1
                continue
            own = None if public is None else public[[place]]
            drawn = select(replace(logits, active=np.array([batch]), public=own, allowed=allowed))
            tokens[place], private[place] = drawn.tokens[0], drawn.private[0]
        return Draws(tokens, private, decided)

    def _opened(self) -> ConstrainedText | None:
        constraint = self._rules.constraint
        return None if constraint is None else constraint.open()

    def append(self, drawing: np.ndarray, draws: Draws) -> Iterator[Document]:
        """Appends one token to each drawing batch; yields the documents that this closes."""
        rules = self._rules
        self._spent[drawing] += draws.private
        self._total[drawing] += 1
        self._written[drawing] += 1
        self._last_token[drawing] = draws.tokens
        columns = (drawing, draws.tokens, draws.private)
        for batch, token, private in zip(*map(np.ndarray.tolist, columns), strict=True):
            document = self._open[batch]
            document.private_tokens += private
            if token != rules.end_token_id:
                document.tokens.append(token)  # [amin2024 A1:L20] [amin2024 A2:L5] [amin2025 A1:L9]
            document.finished = (  # [amin2024 A1:L8]
                token == rules.end_token_id or len(document.tokens) >= rules.max_document_tokens
            )
            text = self._texts[batch]
            if text is not None and not document.finished:
                text.take(token)
            if document.finished or self._is_spent(batch):
                self._open[batch] = Document(batch)
                self._texts[batch] = self._opened()
                self._written[batch] = 0  # [amin2024 A1:L7] [amin2025 A1:L4]
                yield document  # [amin2024 A1:L21] [amin2025 A1:L10]
        self._stop_spent(drawing)

    def _is_spent(self, batch: int) -> bool:
        """Whether a batch must stop at once, in the middle of a document if need be.

        What a schema decides is written at no cost, also behind the last private token.
        """
        limit, text = self._rules.max_tokens_per_batch, self._texts[batch]
        if limit is not None and self._total[batch] >= limit:
            return True
        out_of_budget = self._spent[batch] >= self._rules.tokens_per_batch
        return bool(out_of_budget and (text is None or not text.is_decided))

    def _stop_spent(self, drawing: np.ndarray) -> None:
        """Retires batches that stand between documents and may not open another."""
        closed = drawing[self._written[drawing] == 0]
        self.active[closed] = self._may_open(closed)

    def _may_open(self, batches: np.ndarray) -> np.ndarray:
        rules = self._rules
        left = rules.tokens_per_batch - self._spent[batches]  # [amin2024 A1:L6]
        allowed: np.ndarray = left >= rules.min_tokens_for_new_document
        if rules.max_tokens_per_batch is not None:
            allowed &= self._total[batches] < rules.max_tokens_per_batch
        return allowed


class _Pass:
    """Contexts that share forward passes. Nothing here looks at contexts of another pass."""

    def __init__(
        self,
        decoder: Decoder,
        contexts: Sequence[tuple[int, Sequence[int]]],
        rules: GenerationRules,
        public_prefixes: Sequence[Sequence[int]],
    ) -> None:
        """Reads (batch, prompt) pairs."""
        import torch

        self._contexts = decoder.open(
            [prompt for _, prompt in contexts],
            prompt_columns=rules.prompt_columns,
            max_new_tokens=rules.max_document_tokens,
            public_prefixes=public_prefixes,
        )
        self.batch_of_row = torch.tensor([owner for owner, _ in contexts], dtype=torch.long)

    def next_logits(self, last: "torch.Tensor", written: "torch.Tensor") -> "torch.Tensor":
        """Logits (n, V) after each batch's (B,) last token, of (B,) tokens written so far."""
        return self._contexts.next_logits(last[self.batch_of_row], written[self.batch_of_row])

    def compact(self, active: np.ndarray) -> None:
        """Drops finished batches' rows from the pass when they are many; changes speed only."""
        import torch

        working = torch.from_numpy(active)[self.batch_of_row]
        if len(working) and working.float().mean() < _COMPACT_BELOW:
            self._contexts.keep(working.nonzero()[:, 0])
            self.batch_of_row = self.batch_of_row[working]
