"""Free text from many prompts: cut into passes, read, and written by the one loop.

Rows of a pass are written together until each has ended.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    texts: Sequence[ConstrainedText] = (),
) -> list[list[int]]:
    """Writes new tokens; all rows start at once, so step t writes token t of each.

    Args:
        contexts: R prompts that have been read, but for their last tokens.
        limits: Tokens of each row at most, at least one.
        sampling: How tokens are drawn.
        uniform: Public randomness, (R, steps) float32 in [0, 1), on the device of the logits.
        rules: What ends a row.
        texts: What each row has to follow; none where rows are free.

    Returns:
        R lists of at most limits[r] tokens. A row may go on for a few tokens behind its end.
    """
    import torch

    device, steps = uniform.device, max(limits)
    rows, most = torch.arange(len(limits), device=device), torch.tensor(limits, device=device)
    written = torch.zeros((len(limits), steps), dtype=torch.long, device=device)
    done = torch.zeros_like(most, dtype=torch.bool)
    ends = torch.tensor(rules.end_token_ids, device=device)
    first, later = (
        torch.tensor(tokens, dtype=torch.long, device=device)
        for tokens in ([*rules.never, *rules.never_first], rules.never)
    )
    looks = 1 if device.type == "cpu" else _STEPS_BETWEEN_LOOKS
    tokens = torch.zeros_like(rows)
    for step in range(steps):
        logits = contexts.next_logits(tokens, torch.full((len(tokens),), step))
        own = [texts[row] for row in rows.tolist()] if texts else []
        if own:
            constrain(logits, own)
        if len(excluded := later if step else first):
            logits[:, excluded] = -torch.inf
        tokens = draw_tokens(logits, uniform[rows, step], sampling)
        for text, token in zip(own, tokens.tolist() if own else (), strict=True):
            text.take(token)
        written[rows, step] = tokens
        done[rows] |= torch.isin(tokens, ends) | (most[rows] == step + 1)
        if (step + 1) % looks == 0 and step + 1 < steps:
            if rules.stop:
                known = written[rows, : step + 1].tolist()
                stopped = [rules.is_stopped(text, looks) for text in known]
                done[rows] |= torch.tensor(stopped, device=device)
            left = ~done[rows]
            if not left.any():
                break
            if left.float().mean() < _COMPACT_BELOW:
                contexts.keep(left.nonzero()[:, 0])
                rows, tokens = rows[left], tokens[left]
    return [row[:limit] for row, limit in zip(written.tolist(), limits, strict=True)]


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
    prompt with the largest limit: prompts share a pass only where those two fit as well.

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

    written: dict[int, list[int]] = {row: [] for row, limit in enumerate(limits) if not limit}
    for rows in _passes(decoder, prompts, limits, batch_rows):
        own = [limits[row] for row in rows]
        contexts = _read(decoder, [tuple(prompts[row]) for row in rows], max(own), added)
        tokens = write_rows(
            contexts,
            own,
            sampling,
            torch.from_numpy(uniforms(sampling.seed, rows, max(own))).to(decoder.device),
            rules,
            [] if text_of is None else [text_of(row) for row in rows],
        )
        del contexts  # its memory is free before the next pass asks for some
        written |= dict(zip(rows, tokens, strict=True))
        if progress is not None:
            progress(len(written) / len(prompts))
    return [written[row] for row in range(len(prompts))]


def _passes(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    batch_rows: int,
) -> list[list[int]]:
    """Cuts the rows that write anything into passes, shorter prompts first."""
    order = [row for row, limit in enumerate(limits) if limit]
    order.sort(key=lambda row: (len(prompts[row]), tuple(prompts[row])))
    room = decoder.attention_limit or sys.maxsize
    longest = len(prompts[order[-1]]) if order else 0
    size = decoder.rows_at_once(batch_rows, longest + max(limits, default=0))
    passes: list[list[int]] = []
    for row in order:
        own = passes[-1] if passes else []
        most = max(limits[each] for each in (*own, row))
        if not own or len(own) == size or len(prompts[row]) + most > room:
            passes.append([])
        passes[-1].append(row)
    return passes


def _read(
    decoder: Decoder,
    prompts: list[tuple[int, ...]],
    steps: int,
    added: Steering | None,
) -> Contexts:
    """Contexts of some prompts, in their order, with room for `steps` tokens."""
    import torch

    once = prompts if decoder.shares_prefixes else list(dict.fromkeys(prompts))
    contexts = decoder.open(
        once,
        prompt_columns=max(map(len, prompts)),
        max_new_tokens=steps,
        rows_per_prefill=min(len(once), _ROWS_PER_PREFILL),
        added=added or {},
    )
    if len(once) < len(prompts):
        contexts.keep(torch.tensor([once.index(prompt) for prompt in prompts]))
    return contexts


def sample_documents(
    decoder: Decoder,
    language_model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    limits: Sequence[int] | None = None,
    progress: ShareCallback | None = None,
    texts: Sequence[ConstrainedText] | None = None,
) -> list[list[int]]:
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
        Tokens after each prompt, without the end token, in the order of the prompts.

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
    return [rules.until_end(tokens)[0] for tokens in written]
