"""Nucleus sampling of one document a condition, batched, with cached keys and values.

Rows that have ended leave the batch; the encoder reads each distinct condition once; and every row
draws from its own stream of random numbers, so that a row's document depends on the seed, its
condition and its place in the list, and not (float rounding aside) on how many rows are decoded
together.

Seeded and therefore never private: what this samples from was released before.

Shape letters: R rows at hand, S condition tokens, T new tokens, V vocabulary, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpsynth_assets.models.conditional_generator.writing_rows import start_rows
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.privacy.cpu_threads import one_thread_each, useful_threads

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator

_COMPACT_BELOW = 0.85
"""Ended rows leave the forward pass once fewer than this share of its rows still write."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Settings by which documents are drawn.

    Attributes:
        top_p: Draws from the smallest set of tokens with at least this mass; in (0, 1].
        temperature: Divides the logits; 0 takes the most probable token.
        seed: Seed of this public randomness; >= 0.
        max_new_tokens: Longest document, end token included; the model's positions bound it too.
        batch_rows: Rows decoded together by one thread, at most.

    **Source**: Tan et al. 2025, section 4.1.3: top-p 0.95, at most 512 tokens.
    """

    top_p: float = 0.95
    temperature: float = 1.0
    seed: int = 0
    max_new_tokens: int = 512
    batch_rows: int = 256
    top_k: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Refuses values outside their bounds."""
        if not 0 < self.top_p <= 1 or self.temperature < 0:
            raise ValueError(
                "Expected temperature >= 0 and 0 < top_p <= 1, "
                f"got {self.temperature} and {self.top_p}."
            )
        if min(self.max_new_tokens, self.batch_rows) < 1 or self.seed < 0:
            raise ValueError(
                "Expected max_new_tokens and batch_rows of at least 1 and a seed of at least 0, "
                f"got {self.max_new_tokens}, {self.batch_rows} and {self.seed}."
            )


def sample_for_conditions(
    generator: "ConditionalGenerator",
    conditions: Sequence[str],
    settings: SamplingSettings,
    progress: Callable[[float, str], None] | None = None,
) -> list[str]:
    """Samples one document for each of N conditions.

    Args:
        generator: Model, tokenizer and format.
        conditions: N condition texts; repeated ones give different documents.
        settings: Nucleus, temperature, seed, length and packing.
        progress: Called with the share of documents done and a public message.

    Returns:
        N documents in the order of the conditions, each of at least one token.
    """
    encoder, bound = generator.encoder, generator.max_condition_tokens
    sources = encoder.distinct_conditions(conditions, bound)
    order = sorted(range(len(conditions)), key=lambda row: (len(sources[conditions[row]]), row))

    def written(rows: list[int]) -> list[list[int]]:
        prompts = [sources[conditions[row]] for row in rows]
        return _sample_batch(generator, prompts, rows, settings)

    documents = [""] * len(conditions)
    threads, done = _threads(generator), 0
    batches = list(_batches(order, settings.batch_rows, threads))
    with one_thread_each(threads) as workers:
        for rows, found in zip(batches, workers.map(written, batches), strict=True):
            for row, ids in zip(rows, found, strict=True):
                documents[row] = encoder.document_text(ids)
            done += len(rows)
            if progress is not None:
                progress(done / len(order), f"{done} of {len(order)} documents")
    return documents


def _threads(generator: "ConditionalGenerator") -> int:
    """Batches that are decoded side by side: one a thread for a small model on a processor."""
    import torch

    return useful_threads(list(generator.model.parameters()), torch.get_num_threads())


def _batches(order: list[int], batch_rows: int, threads: int) -> Iterator[list[int]]:
    """Cuts rows into batches; several threads get rounds of one each, all of about one size."""
    rounds = -(-len(order) // (batch_rows * threads))
    size = batch_rows if threads == 1 else max(1, -(-len(order) // max(1, rounds * threads)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _sample_batch(
    generator: "ConditionalGenerator",
    prompts: Sequence[Sequence[int]],
    streams: Sequence[int],
    settings: SamplingSettings,
) -> list[list[int]]:
    """Decodes rows together; all start at once, so step t writes token t of each."""
    import torch

    with torch.inference_mode():
        return _decode_batch(generator, prompts, streams, settings)


def _decode_batch(
    generator: "ConditionalGenerator",
    prompts: Sequence[Sequence[int]],
    streams: Sequence[int],
    settings: SamplingSettings,
) -> list[list[int]]:
    import torch

    device, end = generator.device, generator.encoder.end_token_id
    steps = generator.encoder.document_bound(settings.max_new_tokens)
    writing = start_rows(generator, prompts, steps)
    uniform = torch.from_numpy(uniforms(settings.seed, streams, steps)).to(device)
    forbidden, forbidden_first = _never_sampled(generator)
    rows = torch.arange(len(prompts), device=device)
    written = torch.full((len(prompts), steps), end, device=device)
    tokens = torch.full((len(prompts),), end, device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(steps):
        logits = writing.next_logits(tokens)
        logits[:, forbidden if step else forbidden_first] = -torch.inf
        tokens = draw_tokens(logits, uniform[rows, step], settings)
        tokens.masked_fill_(ended[rows], end)
        written[rows, step] = tokens
        ended[rows] |= tokens == end
        active = ~ended[rows]
        if not active.any():
            break
        if step + 1 < steps and active.float().mean() < _COMPACT_BELOW:
            writing.keep(active.nonzero()[:, 0])
            rows, tokens = rows[active], tokens[active]
    return [ids[: ids.index(end)] if end in ids else ids for ids in written.tolist()]


def _never_sampled(generator: "ConditionalGenerator") -> "tuple[torch.Tensor, torch.Tensor]":
    """Tokens that no document holds: special ones, and at its first place the end token too."""
    import torch

    end = generator.encoder.end_token_id
    special = {*generator.tokenizer.all_special_ids, generator.encoder.pad_token_id, end}
    first = torch.tensor(sorted(special), device=generator.device)
    return first[first != end], first
