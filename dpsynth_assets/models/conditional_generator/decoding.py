"""Nucleus sampling of one document a condition, batched, with cached keys and values.

Rows that have ended leave the batch; the encoder reads each distinct condition once; and every row
draws from its own stream of random numbers, so that a row's document depends on the seed, its
condition and its place in the list, and not (float rounding aside) on how many rows are decoded
together.

Seeded and therefore never private: what this samples from was released before.

Shape letters: R rows at hand, C distinct conditions, S condition tokens, V vocabulary, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding import Contexts, attention_limit
from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.decoding.writing import WritingRules, write_rows
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.cpu_threads import one_thread_each, useful_threads

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator


def sample_for_conditions(
    generator: "ConditionalGenerator",
    conditions: Sequence[str],
    sampling: Sampling,
    *,
    batch_rows: int = 256,
    progress: Callable[[float, str], None] | None = None,
) -> list[str]:
    """Samples one document for each of N conditions.

    Args:
        generator: Model, tokenizer and format.
        conditions: N condition texts; repeated ones give different documents.
        sampling: How tokens are drawn; the model's positions bound a document too.
        batch_rows: Rows decoded together by one thread, at most.
        progress: Called with the share of documents done and a public message.

    Returns:
        N documents in the order of the conditions, each of at least one token.
    """
    if batch_rows < 1:
        raise ValueError(f"Expected batch_rows of at least 1, got {batch_rows}.")
    encoder, bound = generator.encoder, generator.max_condition_tokens
    sources = encoder.distinct_conditions(conditions, bound)
    order = sorted(range(len(conditions)), key=lambda row: (len(sources[conditions[row]]), row))

    def written(rows: list[int]) -> list[list[int]]:
        prompts = [sources[conditions[row]] for row in rows]
        return _sample_batch(generator, prompts, rows, sampling)

    documents = [""] * len(conditions)
    threads, done = _threads(generator), 0
    batches = list(_batches(order, batch_rows, threads))
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
    sampling: Sampling,
) -> list[list[int]]:
    """Decodes rows together: tokens of each document, at least one, without the end token.

    No document holds a special token.
    """
    import torch

    encoder = generator.encoder
    end, steps = encoder.end_token_id, encoder.document_bound(max(sampling.limits(1)))
    special = {*generator.tokenizer.all_special_ids, encoder.pad_token_id} - {end}
    rules = WritingRules((end,), never=sorted(special), never_first=(end,))
    with torch.inference_mode():
        contexts = _opened(generator, prompts, steps)
        uniform = torch.from_numpy(uniforms(sampling.seed, streams, steps)).to(generator.device)
        written = write_rows(contexts, [steps] * len(prompts), sampling, uniform, rules)
    return [rules.until_end(tokens)[0] for tokens in written]


def growing_cache(columns: int) -> Any:
    """An encoder-decoder cache whose self-attention part holds at most `columns` tokens.

    Stock dynamic layers copy everything they hold at every token; these write one column. The part
    for the encoder's states is stock: it is written once.

    Args:
        columns: Tokens a row's decoder may hold.

    Returns:
        A `transformers.EncoderDecoderCache`.
    """
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

    class PreallocatedLayer(DynamicLayer):
        """Grows into a buffer; `keys` and `values` are views of its filled part."""

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
            """Allocates both buffers, (R, H, columns, D)."""
            self.dtype, self.device = key_states.dtype, key_states.device
            self._buffers = [_buffer(key_states, columns), _buffer(value_states, columns)]
            self._fill(0)
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            """Writes the next columns; returns views of all that are filled."""
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            start = self._filled
            end = start + key_states.shape[-2]
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer[:, :, start:end] = states
            self._fill(end)
            return self.keys, self.values

        def reorder_cache(self, beam_idx: Any) -> None:
            """Keeps the rows of `beam_idx`, in its order."""
            if self.is_initialized:
                self._buffers = [buffer.index_select(0, beam_idx) for buffer in self._buffers]
                self._fill(self._filled)

        def _fill(self, filled: int) -> None:
            self._filled = filled
            self.keys, self.values = (buffer[:, :, :filled] for buffer in self._buffers)

    return EncoderDecoderCache(Cache(layer_class_to_replicate=PreallocatedLayer), DynamicCache())


def _buffer(like: Any, columns: int) -> Any:
    return like.new_zeros((*like.shape[:2], columns, like.shape[-1]))


_PROMPT_COLUMNS_STEP = 16


def _opened(
    generator: "ConditionalGenerator", prompts: Sequence[Sequence[int]], steps: int
) -> Contexts:
    """Reads each of R prompts, with room for `steps` tokens."""
    if generator.has_encoder:
        return EncodedContexts(generator, prompts, steps)
    longest = max(len(prompt) for prompt in prompts)
    return TransformersDecoder(generator.model).open(
        prompts, prompt_columns=_prompt_columns(generator, longest, steps), max_new_tokens=steps
    )


class EncodedContexts:
    """Rows that attend to their encoded condition; all write their next token at the same step."""

    def __init__(
        self, generator: "ConditionalGenerator", prompts: Sequence[Sequence[int]], steps: int
    ) -> None:
        import torch

        self._model, self._start = generator.model, generator.encoder.start
        distinct = {ids: place for place, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
        places = torch.tensor([distinct[tuple(ids)] for ids in prompts], device=generator.device)
        states, mask = _encode(generator, list(distinct))
        self._states: Any = states[places]
        self._mask = mask[places]
        self._cache = growing_cache(columns=steps + len(self._start))

    def __len__(self) -> int:
        """Number of contexts R."""
        return len(self._mask)

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances by one token; a document begins with the decoder's start tokens."""
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        inputs = tokens[:, None]
        if not generated[0]:
            inputs = torch.tensor(self._start, device=tokens.device).expand(len(tokens), -1)
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=inputs,
            past_key_values=self._cache,
            use_cache=True,
        )
        return output.logits[:, -1].float()

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these."""
        self._cache.reorder_cache(contexts)
        self._states, self._mask = self._states[contexts], self._mask[contexts]


def _encode(
    generator: "ConditionalGenerator", conditions: Sequence[Sequence[int]]
) -> "tuple[torch.Tensor, torch.Tensor]":
    """States (C, S, d) and mask (C, S) of distinct conditions."""
    batch = generator.encoder.pad(conditions, [[generator.encoder.end_token_id]] * len(conditions))
    inputs = batch.to(generator.device).inputs
    states = generator.model.get_encoder()(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
    )
    return states.last_hidden_state, inputs["attention_mask"]


def _prompt_columns(generator: "ConditionalGenerator", longest: int, steps: int) -> int:
    """Columns of prompts, rounded up as far as the model has positions for it."""
    rounded = -(-longest // _PROMPT_COLUMNS_STEP) * _PROMPT_COLUMNS_STEP
    limit = attention_limit(generator.config)
    return rounded if limit is None else max(longest, min(rounded, limit - steps))
