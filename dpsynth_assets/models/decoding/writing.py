"""Free text from many prompts: cut into passes, read, and written by the one loop.

Rows of a pass are written together until each has ended.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpsynth_assets.models.decoding.constraint import ConstrainedText, constrain
from dpsynth_assets.models.decoding.protocol import Contexts, Decoder
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines.protocol import Sampling, ShareCallback

if TYPE_CHECKING:
    import torch

_COMPACT_BELOW = 0.75
"""Finished rows leave the pass once fewer than this share of its rows still write."""
_STEPS_BETWEEN_LOOKS = 8
"""Steps between two checks of which rows are done on a GPU: each check waits for the device."""


@dataclass(frozen=True)
class WritingRules:
    """What ends a row before its limit, and what none may hold.

    Attributes:
        end_token_ids: Tokens that end a row.
        stop: Texts that end a row.
        decode: Text of tokens; needed with stop texts.
        never: Tokens that are never drawn.
        never_first: Tokens that no row begins with, beside those.
    """

    end_token_ids: Sequence[int]
    stop: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] = str
    never: Sequence[int] = ()
    never_first: Sequence[int] = ()

    def is_stopped(self, tokens: Sequence[int], fresh: int) -> bool:
        """Says whether a stop text came to its end within the last `fresh` tokens."""
        longest = max(len(item.encode()) for item in self.stop)  # a token has a byte or more
        text = self.decode(tokens[-(longest + fresh) :])
        return any(item in text for item in self.stop)

    def until_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        """Tokens before the first that ends a row, and whether there is one."""
        ends = set(self.end_token_ids)
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        return tokens[:end], end is not None


def write_rows(
    contexts: Contexts,
    limits: Sequence[int],
    sampling: Sampling,
    uniform: "torch.Tensor",
    rules: WritingRules,
    *,
    texts: Sequence[ConstrainedText] = (),
    unread: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Writes new tokens; all rows start at once, so step t reads or writes token t of each.

    Args:
        contexts: R prompts that have been read, but for their last tokens.
        limits: Tokens of each row at most; 0 writes nothing.
        sampling: How tokens are drawn.
        uniform: Public randomness, (R, steps) float32 in [0, 1), on the device of the logits.
        rules: What ends a row.
        texts: What each row has to follow; none where rows are free.
        unread: The last tokens of each prompt, which are read one by one; none where all are read.

    Returns:
        R lists of at most limits[r] tokens. A row may go on for a few tokens behind its end.
    """
    import torch

    device = uniform.device
    state = _Rows(limits, unread, device)
    ends = torch.tensor(rules.end_token_ids, device=device)
    first, later = (
        torch.tensor(tokens, dtype=torch.long, device=device)
        for tokens in ([*rules.never, *rules.never_first], rules.never)
    )
    looks = 1 if device.type == "cpu" else _STEPS_BETWEEN_LOOKS
    tokens = torch.zeros_like(state.rows)
    for step in range(state.steps):
        logits = contexts.next_logits(tokens, torch.full((len(tokens),), step))
        writing = state.past_prompt(step)
        own = [texts[row] for row in state.rows[writing].tolist()] if texts else []
        if own:
            constrain(logits, writing.nonzero()[:, 0].tolist(), own)
        if len(excluded := later if step else first):
            logits[:, excluded] = -torch.inf
        tokens = state.add(draw_tokens(logits, uniform[state.rows, step], sampling), step, ends)
        for text, token in zip(own, tokens[writing].tolist() if own else (), strict=True):
            text.take(token)
        if (step + 1) % looks == 0 and step + 1 < state.steps:
            if rules.stop:
                state.stop(step + 1, looks, rules)
            left = state.unfinished()
            if not left.any():
                break
            if left.float().mean() < _COMPACT_BELOW:
                contexts.keep(left.nonzero()[:, 0])
                state.rows, tokens = state.rows[left], tokens[left]
    return state.texts()


class _Rows:
    """Tokens that rows have read and written, and which rows are done.

    Attributes:
        rows: Row of each context that is still in the pass, int64.
        steps: Steps of the longest row.
    """

    def __init__(
        self, limits: Sequence[int], unread: Sequence[Sequence[int]], device: "torch.device"
    ) -> None:
        import torch

        self.rows = torch.arange(len(limits), device=device)
        first = [len(rest) for rest in unread] or [0] * len(limits)
        self._last_first = max(first)
        self._first = torch.tensor(first, device=device)  # step of a row's first new token
        own = [begin + limit if limit else 0 for begin, limit in zip(first, limits, strict=True)]
        self._limits, self.steps = torch.tensor(own, device=device), max(own)
        self._written = torch.zeros((len(own), self.steps), dtype=torch.long, device=device)
        for row, rest in enumerate(unread):
            if rest and limits[row]:
                self._written[row, : len(rest)] = torch.tensor(rest, device=device)
        self._done = self._limits == 0

    def past_prompt(self, step: int) -> "torch.Tensor":
        """(rows in the pass,) bool, those that write at a step."""
        return self._first[self.rows] <= step

    def add(self, tokens: "torch.Tensor", step: int, ends: "torch.Tensor") -> "torch.Tensor":
        """Takes drawn tokens, but for rows that still read; returns the tokens so far."""
        import torch

        ended = torch.isin(tokens, ends)
        if step < self._last_first:
            writing = self.past_prompt(step)
            tokens = torch.where(writing, tokens, self._written[self.rows, step])
            ended &= writing
        self._written[self.rows, step] = tokens
        self._done[self.rows] |= ended | (self._limits[self.rows] == step + 1)
        return tokens

    def stop(self, written: int, fresh: int, rules: WritingRules) -> None:
        """Marks rows done whose text contains a stop text."""
        import torch

        rows: list[int] = self.rows.tolist()
        first = self._first.tolist()
        texts = self._written[self.rows, :written].tolist()
        stopped = [
            row
            for row, text in zip(rows, texts, strict=True)
            if rules.is_stopped(text[first[row] :], fresh)
        ]
        self._done[torch.tensor(stopped, dtype=torch.long, device=self.rows.device)] = True

    def unfinished(self) -> "torch.Tensor":
        return ~self._done[self.rows]

    def texts(self) -> list[list[int]]:
        """New tokens of each row."""
        bounds = zip(self._first.tolist(), self._limits.tolist(), strict=True)
        return [
            row[first:limit]
            for row, (first, limit) in zip(self._written.tolist(), bounds, strict=True)
        ]


ROWS_TOGETHER = 256
"""Prompts that are decoded at a time."""
_ROWS_PER_PREFILL = 16

Steering = Mapping[int, np.ndarray]
"""{layer: (d,) float32} that is added to the residual stream; empty without steering."""


def written_tokens(  # noqa: PLR0913 - prompts, rules and packing
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    sampling: Sampling,
    rules: WritingRules,
    *,
    batch_rows: int = ROWS_TOGETHER,
    added: Steering | None = None,
    text_of: Callable[[int], ConstrainedText] | None = None,
    progress: ShareCallback | None = None,
) -> list[list[int]]:
    """Writes after each prompt, in passes of prompts of similar length; equal ones are read once.

    Each prompt has to fit the decoder's attention together with its own limit, not the longest
    prompt with the largest limit: where those two would not fit, all prompts of a pass are cut to
    what the largest limit leaves, and a longer prompt's last tokens are read one by one, as its
    text's tokens are. That takes no more steps, since its own limit is so much smaller.

    Args:
        decoder: What decodes.
        prompts: N token sequences.
        limits: New tokens of each at most; 0 writes nothing.
        sampling: How tokens are drawn; row i draws from the stream (seed, i).
        rules: What ends a text.
        batch_rows: Rows of a pass at most.
        added: What steers the texts.
        text_of: What a prompt's text has to follow, by its place; None: free text.
        progress: Told the share of prompts done.

    Returns:
        N lists of new tokens. A text may go on for a few tokens behind its end.

    Raises:
        ValueError: A prompt and its limit are longer than the attention.
    """
    import torch

    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), tuple(prompts[row])))
    longest = max(map(len, prompts), default=1)
    size = decoder.rows_at_once(batch_rows, longest + max(limits, default=0))
    written: dict[int, list[int]] = {}
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        own = [limits[row] for row in rows]
        columns = _padded(decoder, max(len(prompts[row]) for row in rows), max(own))
        unread = [list(prompts[row][columns:]) for row in rows]
        steps = max(len(rest) + limit for rest, limit in zip(unread, own, strict=True))
        begun = [tuple(prompts[row][:columns]) for row in rows]
        contexts = _read(decoder, begun, columns, steps, added)
        tokens = write_rows(
            contexts,
            own,
            sampling,
            torch.from_numpy(uniforms(sampling.seed, rows, steps)).to(decoder.device),
            rules,
            texts=() if text_of is None else [text_of(row) for row in rows],
            unread=unread,
        )
        del contexts  # its memory is free before the next pass asks for some
        written |= dict(zip(rows, tokens, strict=True))
        if progress is not None:
            progress(len(written) / len(prompts))
    return [written[row] for row in range(len(prompts))]


def _read(
    decoder: Decoder,
    prompts: list[tuple[int, ...]],
    columns: int,
    steps: int,
    added: Steering | None,
) -> Contexts:
    """Contexts of some prompts, in their order, with room for `steps` tokens."""
    import torch

    once = prompts if decoder.shares_prefixes else list(dict.fromkeys(prompts))
    contexts = decoder.open(
        once,
        prompt_columns=columns,
        max_new_tokens=steps,
        rows_per_prefill=min(len(once), _ROWS_PER_PREFILL),
        added=added,
    )
    if len(once) < len(prompts):
        contexts.keep(torch.tensor([once.index(prompt) for prompt in prompts]))
    return contexts


class SampledDocument(NamedTuple):
    """Tokens after the prompt, without the end token, and whether the end token came."""

    tokens: list[int]
    ended: bool


def sample_documents(
    decoder: Decoder,
    language_model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    limits: Sequence[int] | None = None,
    progress: ShareCallback | None = None,
    texts: Sequence[ConstrainedText] | None = None,
) -> list[SampledDocument]:
    """Samples one document from each prompt: reference corpora and public continuations.

    Seeded and therefore never private: nothing here may stand in for a privacy mechanism.

    Args:
        decoder: What decodes.
        language_model: Its end token ends a document; its pad token is never drawn, unless it is
            that one.
        prompts: N token sequences.
        sampling: How tokens are drawn, how many, and the seed of this public randomness.
        limits: Tokens of each document, where 0 may stand; None: `sampling.max_new_tokens`.
        progress: Told the share of prompts done.
        texts: The text that each prompt's document goes on with, where a schema constrains it; each
            takes the tokens that are drawn. None: no constraint.

    Returns:
        N documents in the order of the prompts.

    Raises:
        ValueError: A prompt and its limit are longer than the model's attention.
    """
    end, pad = language_model.end_token_id, language_model.pad_token_id
    rules = WritingRules((end,), never=() if pad == end else (pad,))
    written = written_tokens(
        decoder,
        prompts,
        sampling.limits(len(prompts)) if limits is None else limits,
        sampling,
        rules,
        text_of=None if texts is None else texts.__getitem__,
        progress=progress,
    )
    return [SampledDocument(*rules.until_end(tokens)) for tokens in written]


def _padded(decoder: Decoder, columns: int, most: int) -> int:
    """Cuts the pad length to what the attention leaves beside `most` new tokens."""
    limit = decoder.attention_limit
    return columns if limit is None else max(1, min(columns, limit - most))
