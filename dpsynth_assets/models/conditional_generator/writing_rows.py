"""Rows of a model that write token by token, with cached keys and values.

Shape letters: R rows at hand, C distinct conditions, S condition tokens, V vocabulary, d width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpsynth_assets.models.decoding import PackedContexts, attention_limit

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator


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


class WritingRows(Protocol):
    """R rows of a model that all write their next token at the same step."""

    def next_logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Advances by the rows' last tokens (R,); returns logits (R, V) of the next."""

    def keep(self, rows: "torch.Tensor") -> None:
        """Drops all rows but these (ascending)."""


def start_rows(
    generator: "ConditionalGenerator", prompts: Sequence[Sequence[int]], steps: int
) -> WritingRows:
    """Opens a row for each of R prompts, with room for `steps` tokens."""
    if generator.has_encoder:
        return EncoderDecoderRows(generator, prompts, steps)
    return DecoderOnlyRows(generator, prompts, steps)


class EncoderDecoderRows:
    """Rows that attend to their encoded condition."""

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
        self._begun = False

    def next_logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Advances by one token; the first call reads the decoder's start tokens instead."""
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        inputs = tokens[:, None]
        if not self._begun:
            inputs = torch.tensor(self._start, device=tokens.device).expand(len(tokens), -1)
            self._begun = True
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=inputs,
            past_key_values=self._cache,
            use_cache=True,
        )
        return output.logits[:, -1].float()

    def keep(self, rows: "torch.Tensor") -> None:
        """Drops all rows but these."""
        self._cache.reorder_cache(rows)
        self._states, self._mask = self._states[rows], self._mask[rows]


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


class DecoderOnlyRows:
    """Rows whose condition is the beginning of their own text."""

    def __init__(
        self, generator: "ConditionalGenerator", prompts: Sequence[Sequence[int]], steps: int
    ) -> None:
        longest = max(len(prompt) for prompt in prompts)
        self._contexts = PackedContexts(
            generator.model,
            prompts,
            prompt_columns=_prompt_columns(generator, longest, steps),
            max_new_tokens=steps,
            pad_token_id=generator.encoder.pad_token_id,
        )
        self._step = 0

    def next_logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Advances by one token; the first call reads the end of the prompt instead."""
        import torch

        logits = self._contexts.next_logits(tokens, torch.full_like(tokens, self._step))
        self._step += 1
        return logits

    def keep(self, rows: "torch.Tensor") -> None:
        """Drops all rows but these."""
        self._contexts.keep(rows)


def _prompt_columns(generator: "ConditionalGenerator", longest: int, steps: int) -> int:
    """Columns of prompts, rounded up as far as the model has positions for it."""
    rounded = -(-longest // _PROMPT_COLUMNS_STEP) * _PROMPT_COLUMNS_STEP
    limit = attention_limit(generator.checkpoint)
    return rounded if limit is None else max(longest, min(rounded, limit - steps))
