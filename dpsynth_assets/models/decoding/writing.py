"""Free text from many prompts: cut into passes, read, and written by the one loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpsynth_assets.models.decoding.constraint import ConstrainedText
from dpsynth_assets.models.decoding.loop import WritingRules, write_rows
from dpsynth_assets.models.decoding.protocol import Contexts, Decoder
from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.engines.protocol import Sampling, ShareCallback

ROWS_TOGETHER = 256
"""Prompts that are decoded at a time."""
_ROWS_PER_PREFILL = 16

Steering = Mapping[int, np.ndarray]
"""{layer: (d,) float32} that is added to the residual stream; empty without steering."""


class ReadPass(NamedTuple):
    """Prompts that were read together.

    Attributes:
        rows: Their places among all prompts.
        contexts: Contexts of them, in this order.
        unread: The last tokens of each, which are read one by one; mostly none.
    """

    rows: list[int]
    contexts: Contexts
    unread: list[list[int]]


def read_in_passes(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    batch_rows: int,
    prompt_columns: int | None = None,
    added: Steering | None = None,
) -> Iterator[ReadPass]:
    """Reads prompts in passes: those of similar length together, equal ones once.

    Each prompt has to fit the decoder's attention together with its own limit, not the longest
    prompt with the largest limit: where those two would not fit, all prompts of a pass are cut to
    what the largest limit leaves, and a longer prompt's last tokens are read one by one, as its
    text's tokens are. That takes no more steps, since its own limit is so much smaller.

    Args:
        decoder: What decodes.
        prompts: N token sequences.
        limits: New tokens of each.
        batch_rows: Rows of a pass at most.
        prompt_columns: Pad length, which has to fit together with the largest limit; None: the
            longest prompt of a pass.
        added: What steers the texts.

    Yields:
        Passes; a caller drops the contexts of one before it asks for the next.

    Raises:
        ValueError: A prompt and its limit are longer than the attention.
    """
    import torch

    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), tuple(prompts[row])))
    longest = prompt_columns or max(map(len, prompts), default=1)
    size = decoder.rows_at_once(batch_rows, longest + max(limits, default=0))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        columns = prompt_columns or _padded(
            decoder, max(len(prompts[row]) for row in rows), max(limits[row] for row in rows)
        )
        read = [tuple(prompts[row][:columns]) for row in rows]
        unread = [list(prompts[row][columns:]) for row in rows]
        once = read if decoder.shares_prefixes else list(dict.fromkeys(read))
        contexts = decoder.open(
            once,
            prompt_columns=columns,
            max_new_tokens=max(
                len(rest) + limits[row] for row, rest in zip(rows, unread, strict=True)
            ),
            rows_per_prefill=min(len(once), _ROWS_PER_PREFILL),
            added=added,
        )
        if len(once) < len(read):
            contexts.keep(torch.tensor([once.index(prompt) for prompt in read]))
        yield ReadPass(rows, contexts, unread)
        del contexts


def written_tokens(  # noqa: PLR0913 - prompts, rules and packing
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    sampling: Sampling,
    rules: WritingRules,
    *,
    batch_rows: int = ROWS_TOGETHER,
    prompt_columns: int | None = None,
    added: Steering | None = None,
    text_of: Callable[[int], ConstrainedText] | None = None,
    progress: ShareCallback | None = None,
) -> list[list[int]]:
    """Writes after each prompt, in passes of `read_in_passes`.

    Args:
        decoder: What decodes.
        prompts: N token sequences.
        limits: New tokens of each at most; 0 writes nothing.
        sampling: How tokens are drawn; row i draws from the stream (seed, i).
        rules: What ends a text.
        batch_rows: Rows of a pass at most.
        prompt_columns: Pad length; None: that of a pass.
        added: What steers the texts.
        text_of: What a prompt's text has to follow, by its place; None: free text.
        progress: Told the share of prompts done.

    Returns:
        N lists of new tokens. A text may go on for a few tokens behind its end.
    """
    import torch

    written: dict[int, list[int]] = {}
    for rows, contexts, unread in read_in_passes(
        decoder, prompts, limits, batch_rows=batch_rows, prompt_columns=prompt_columns, added=added
    ):
        own = [limits[row] for row in rows]
        steps = max(len(rest) + limit for rest, limit in zip(unread, own, strict=True))
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


class SampledDocument(NamedTuple):
    """Tokens after the prompt, without the end token, and whether the end token came."""

    tokens: list[int]
    ended: bool


def sample_documents(  # noqa: PLR0913 - one call says all there is to a sample
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    end_token_id: int,
    pad_token_id: int,
    limits: Sequence[int] | None = None,
    prompt_columns: int | None = None,
    progress: ShareCallback | None = None,
    texts: Sequence[ConstrainedText] | None = None,
) -> list[SampledDocument]:
    """Samples one document from each prompt: reference corpora and public continuations.

    Seeded and therefore never private: nothing here may stand in for a privacy mechanism.

    Args:
        decoder: What decodes.
        prompts: N token sequences.
        sampling: How tokens are drawn, how many, and the seed of this public randomness.
        end_token_id: Ends a document.
        pad_token_id: Never sampled unless it is the end token.
        limits: Tokens of each document, where 0 may stand; None: `sampling.max_new_tokens`.
        prompt_columns: Pad length; None takes the longest prompt (for public prompts only).
        progress: Told the share of prompts done.
        texts: The text that each prompt's document goes on with, where a schema constrains it; each
            takes the tokens that are drawn. None: no constraint.

    Returns:
        N documents in the order of the prompts.

    Raises:
        ValueError: A prompt and its limit are longer than the model's attention.
    """
    never = () if pad_token_id == end_token_id else (pad_token_id,)
    rules = WritingRules((end_token_id,), never=never)
    written = written_tokens(
        decoder,
        prompts,
        sampling.limits(len(prompts)) if limits is None else limits,
        sampling,
        rules,
        prompt_columns=prompt_columns,
        text_of=None if texts is None else texts.__getitem__,
        progress=progress,
    )
    return [SampledDocument(*rules.until_end(tokens)) for tokens in written]


def _padded(decoder: Decoder, columns: int, most: int) -> int:
    """Cuts the pad length to what the attention leaves beside `most` new tokens."""
    limit = decoder.attention_limit
    return columns if limit is None else max(1, min(columns, limit - most))
