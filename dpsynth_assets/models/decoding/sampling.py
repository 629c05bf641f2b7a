"""Plain sampling of documents, one a prompt: reference corpora and public continuations.

Seeded and therefore never private: nothing here may stand in for a privacy mechanism.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding.constraint import ConstrainedText, constrain
from dpsynth_assets.models.decoding.context_window import attention_limit, rows_at_once
from dpsynth_assets.models.decoding.opening import Contexts, open_contexts
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms

if TYPE_CHECKING:
    import torch

_COMPACT_BELOW = 0.75
"""Finished rows leave the forward pass once fewer than this share of its rows still write."""


ROWS_TOGETHER = 256
"""Prompts that are decoded at a time."""


@dataclass(frozen=True, kw_only=True)
class SamplingRules:
    """Settings by which tokens are drawn.

    Attributes:
        temperature: Divides the logits; > 0.
        top_p: Draws from the smallest set of tokens with at least this mass; in (0, 1].
        top_k: Draws from so many most probable tokens, >= 1; None: from all.
        seed: Seed of this public randomness; each prompt draws from a stream of its own.
        rows_per_forward: Prompts decoded at a time.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int = 0
    rows_per_forward: int = ROWS_TOGETHER

    def __post_init__(self) -> None:
        """Refuses values outside their bounds."""
        if self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                "Expected temperature > 0 and 0 < top_p <= 1, "
                f"got {self.temperature} and {self.top_p}."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"Expected top_k >= 1 or none, got {self.top_k}.")


@dataclass(frozen=True)
class SampledDocument:
    """Tokens after the prompt, without the end token, and whether the end token came."""

    tokens: list[int]
    ended: bool


def sample_documents(  # noqa: PLR0913 - one call says all there is to a sample
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    end_token_id: int,
    pad_token_id: int,
    max_new_tokens: int | Sequence[int],
    rules: SamplingRules,
    prompt_columns: int | None = None,
    progress: Callable[[float], None] | None = None,
    texts: Sequence[ConstrainedText] | None = None,
) -> list[SampledDocument]:
    """Samples one document from each prompt.

    Each prompt has to fit the model's attention together with its own limit, not the longest prompt
    with the largest limit: where those two would not fit, all prompts are padded to what the
    largest limit leaves, and a longer prompt's last tokens are read one by one, as its document's
    tokens are. That takes no more steps, since its own limit is so much smaller.

    Args:
        model: What decodes (`decoding_model`).
        prompts: N token sequences.
        end_token_id: Ends a document.
        pad_token_id: Filler of short prompts; never sampled unless it is the end token.
        max_new_tokens: Bound on tokens, one for all prompts or one each; 0 gives an empty document.
        rules: Temperature, nucleus, seed and packing; equal arguments give equal documents.
        prompt_columns: Pad length; None takes the longest prompt (for public prompts only). A pad
            length that is given has to fit together with the largest limit.
        progress: Called with the share of prompts done.
        texts: The text that each prompt's document goes on with, where a schema constrains it; each
            takes the tokens that are drawn. None: no constraint.

    Returns:
        N documents in the order of the prompts.

    Raises:
        ValueError: If a prompt and its limit are longer than the model's attention.
    """
    import torch

    limits = _limits(max_new_tokens, len(prompts))
    columns = prompt_columns or max((len(prompt) for prompt in prompts), default=1)

    def draw(logits: "torch.Tensor", uniform: "torch.Tensor") -> "torch.Tensor":
        if pad_token_id != end_token_id:
            logits[:, pad_token_id] = -torch.inf
        return draw_tokens(logits, uniform.to(logits.device), rules)

    documents: list[SampledDocument] = []
    rows = rows_at_once(model, rules.rows_per_forward, columns + max(limits, default=0))
    for start in range(0, len(prompts), rows):
        part = slice(start, start + rows)
        own = columns if prompt_columns else _padded(model, columns, max(limits[part]))
        read = [list(prompt[own:]) for prompt in prompts[part]]
        most = [len(rest) + limit for rest, limit in zip(read, limits[part], strict=True)]
        contexts = open_contexts(
            model,
            [prompt[:own] for prompt in prompts[part]],
            prompt_columns=own,
            max_new_tokens=max(most),
            pad_token_id=pad_token_id,
        )
        own_rows = range(start, start + len(read))
        uniform = torch.from_numpy(uniforms(rules.seed, own_rows, max(most)))
        documents += _sample_packed(
            contexts, read, limits[part], draw, uniform, end_token_id, texts and texts[part]
        )
        del contexts  # its memory is free before the next part asks for some
        if progress is not None:
            progress(len(documents) / len(prompts))
    return documents


def _padded(model: Any, columns: int, most: int) -> int:
    """Cuts the pad length to what the model's attention leaves beside `most` new tokens."""
    limit = attention_limit(model)
    return columns if limit is None else max(1, min(columns, limit - most))


def _sample_packed(
    contexts: Contexts,
    unread: Sequence[list[int]],
    limits: Sequence[int],
    draw: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]",
    uniform: "torch.Tensor",
    end_token_id: int,
    texts: Sequence[ConstrainedText] | None = None,
) -> list[SampledDocument]:
    """Decodes the rows together; all start at once, so step t reads or writes token t of each.

    Args:
        contexts: R prompts, read but for their last tokens.
        unread: These tokens, mostly none.
        limits: Most tokens of each document.
        draw: Draws a token a row from logits (R', V) and uniforms (R',).
        uniform: Public randomness, (R, steps) in [0, 1).
        end_token_id: Ends a document.
        texts: What constrains each document; None: nothing.
    """
    import torch

    first = torch.tensor([len(rest) for rest in unread])  # step of a document's first token
    last_read = int(first.max())
    most = torch.where(torch.tensor(limits) > 0, first + torch.tensor(limits), 0)
    rows = torch.arange(len(limits))  # context of the pass -> prompt
    written = torch.full((len(limits), int(most.max())), end_token_id)
    for row, rest in enumerate(unread):
        if rest and limits[row]:
            written[row, : len(rest)] = torch.tensor(rest)
    stops = torch.where(most > 0, -1, 0)  # -1 while a row still writes
    ended = torch.zeros(len(limits), dtype=torch.bool)
    tokens = torch.full_like(rows, end_token_id)
    for step in range(written.shape[1]):
        writing = stops[rows] < 0
        if not writing.any():
            break
        if writing.float().mean() < _COMPACT_BELOW:
            contexts.keep(writing.nonzero()[:, 0])
            rows, tokens = rows[writing], tokens[writing]
        logits = contexts.next_logits(tokens, torch.full_like(rows, step))
        reading = step < first[rows]
        writing = (stops[rows] < 0) & ~reading
        own = [] if texts is None else [texts[row] for row in rows[writing].tolist()]
        if own:
            constrain(logits, writing.nonzero()[:, 0].tolist(), own)
        tokens = draw(logits, uniform[rows, step]).cpu()
        if step < last_read:
            tokens = torch.where(reading, written[rows, step], tokens)
        for text, token in zip(own, tokens[writing].tolist() if own else (), strict=True):
            text.take(token)
        written[rows, step] = tokens
        ended_now = writing & (tokens == end_token_id)
        ended[rows[ended_now]] = True
        stops[rows[ended_now]] = step
        full = (stops[rows] < 0) & (most[rows] == step + 1)
        stops[rows[full]] = step + 1
    return [
        SampledDocument(tokens=ids[start:stop], ended=bool(end))
        for ids, start, stop, end in zip(
            written.tolist(), first.tolist(), stops.tolist(), ended, strict=True
        )
    ]


def _limits(max_new_tokens: int | Sequence[int], prompts: int) -> list[int]:
    if isinstance(max_new_tokens, int):
        return [max_new_tokens] * prompts
    if len(max_new_tokens) != prompts:
        raise ValueError(
            f"Expected one max_new_tokens for each of {prompts} prompts, got {len(max_new_tokens)}."
        )
    return list(max_new_tokens)
