"""A model that writes a document for a condition: encoder-decoder, or decoder-only.

Loads from a folder (any checkpoint in the transformers format) or by hub id; a BART- or T5-like
checkpoint reads the condition in its encoder, any other causal model reads it as a prompt. Weights
are read at the first use of `model`. Nothing here runs remote code.

Documents are drawn by nucleus sampling, batched, with cached keys and values. Rows that have ended
leave the batch; the encoder reads each distinct condition once; and every row draws from its own
stream of random numbers, so that a row's document depends on the seed, its condition and its place
in the list, and not (float rounding aside) on how many rows are decoded together. Draws are seeded
and therefore never private: what is sampled from was released before.

Shape letters: R rows at hand, C distinct conditions, S condition tokens, V vocabulary, d width.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.conditional_generator.encoding import (
    PairBatch,
    PairEncoder,
    PromptedEncoder,
)
from dpsynth_assets.models.decoding import Contexts
from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.decoding.writing import WritingRules, write_rows
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.language_model import LanguageModel, mean_token_losses, opened
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.cpu import one_thread_each, useful_threads

if TYPE_CHECKING:
    import torch

FORMAT_FILE = "condition_format.json"
DEFAULT_CONDITION_TOKENS = 128
DEFAULT_DOCUMENT_TOKENS = 512
"""The paper's bounds, where neither the folder nor the model's positions say otherwise."""


@dataclass(frozen=True)
class ConditionalGenerator(LanguageModel):
    """Weights, tokens and condition format of one generator.

    Attributes:
        templates: Prompts that a decoder-only model reads in place of aspect lines; None for those.

    **Source**: Tan et al. 2025, section 3.1 (CTCL-Generator) [ctcl S3.1].
    """

    templates: PromptTemplates | None = None

    @property
    def has_encoder(self) -> bool:
        """Says whether conditions go through an encoder; False for decoder-only models."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def _auto_class(self) -> Any:
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM if self.has_encoder else super()._auto_class()

    @cached_property
    def written_format(self) -> dict[str, Any]:
        """Description of the folder's conditions; empty for foreign checkpoints."""
        file = Path(self.source) / FORMAT_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def max_condition_tokens(self) -> int:
        """Conditions are cut to this many tokens unless the caller says otherwise."""
        if self.templates is not None and not self.has_encoder:
            return self.encoder.condition_tokens
        return self._bound("max_condition_tokens", DEFAULT_CONDITION_TOKENS)

    @property
    def max_document_tokens(self) -> int:
        """Documents are cut to this many tokens unless the caller says otherwise."""
        return self._bound("max_document_tokens", DEFAULT_DOCUMENT_TOKENS)

    def _bound(self, name: str, default: int) -> int:
        positions = getattr(self.config, "max_position_embeddings", None) or 2 * default
        room = (
            positions
            if self.has_encoder
            else positions * default // (DEFAULT_CONDITION_TOKENS + DEFAULT_DOCUMENT_TOKENS)
        )
        return int(self.written_format.get(name, min(default, room)))

    @cached_property
    def encoder(self) -> PairEncoder:
        """Turns conditions and documents into token ids."""
        if self.templates is not None and not self.has_encoder:
            return PromptedEncoder.of(self, self.templates)
        start = self.written_format.get("document_start")
        return PairEncoder.of_format(self, self.has_encoder, self.max_condition_tokens, start)

    def generate(
        self,
        conditions: Sequence[str],
        *,
        top_p: float = 0.95,
        temperature: float = 1.0,
        seed: int = 0,
        max_new_tokens: int | None = None,
        batch_rows: int = 256,
        progress: Callable[[float, str], None] | None = None,
    ) -> list[str]:
        """Samples one document for each of N conditions.

        Args:
            conditions: N condition texts; repeated ones give different documents.
            top_p: Mass of the nucleus.
            temperature: Divides the logits.
            seed: Seed of the draws.
            max_new_tokens: Longest document; the model's positions bound it too. None: as long as
                the model's documents are.
            batch_rows: Rows decoded together by one thread, at most.
            progress: Called with the share of documents done and a public message.

        Returns:
            N documents in the order of the conditions, each of at least one token.
        """
        longest = max_new_tokens or self.max_document_tokens
        sampling = Sampling(top_p=top_p, temperature=temperature, seed=seed, max_new_tokens=longest)
        sources = self.encoder.distinct_conditions(conditions, self.max_condition_tokens)
        order = sorted(range(len(conditions)), key=lambda row: (len(sources[conditions[row]]), row))

        def written(rows: list[int]) -> list[list[int]]:
            prompts = [sources[conditions[row]] for row in rows]
            return _sample_batch(self, prompts, rows, sampling)

        documents = [""] * len(conditions)
        threads, done = _threads(self), 0
        batches = list(_batches(order, batch_rows, threads))
        with one_thread_each(threads) as workers:
            for rows, found in zip(batches, workers.map(written, batches), strict=True):
                for row, ids in zip(rows, found, strict=True):
                    documents[row] = self.encoder.document_text(ids)
                done += len(rows)
                if progress is not None:
                    progress(done / len(order), f"{done} of {len(order)} documents")
        return documents

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors), tokenizer and condition format to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        encoder = self.encoder
        facts = {  # What a loader must know beside the checkpoint itself.
            "conditions": "aspect lines" if self.templates is None else "prompts",
            "max_condition_tokens": self.max_condition_tokens,
            "max_document_tokens": self.max_document_tokens,
            "document_start": self.tokenizer.convert_ids_to_tokens(list(encoder.start)),
        }
        (folder / FORMAT_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def per_example_loss(model: Any, batch: PairBatch) -> "torch.Tensor":
    """Mean cross-entropy in nats of each document's own tokens, (B,); see `mean_token_losses`.

    Args:
        model: A transformers model of either kind.
        batch: B encoded pairs on the model's device.
    """
    return mean_token_losses(model(**batch.inputs, use_cache=False).logits, batch.labels)


def load_conditional_generator(
    path_or_id: str | Path,
    *,
    dtype: str = "float32",
    device: str = "auto",
    templates: PromptTemplates | None = None,
) -> ConditionalGenerator:
    """Opens a generator; weights are read at the first use of `.model`.

    Args:
        path_or_id: Folder in the transformers format, or a hub id `owner/name`.
        dtype: `float32`, `bfloat16` or `float16`.
        device: `auto` takes the first CUDA device if there is one, else the processor.
        templates: Prompts for a decoder-only model; None: aspect lines.

    Raises:
        LanguageModelError: No such folder, unknown id, no network, unknown dtype.
    """
    return opened(
        ConditionalGenerator,
        path_or_id,
        dtype=dtype,
        device=device,
        artifact="public/conditional_generator",
        templates=templates,
    )


def _threads(generator: ConditionalGenerator) -> int:
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
    generator: ConditionalGenerator,
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


def _opened(
    generator: ConditionalGenerator, prompts: Sequence[Sequence[int]], steps: int
) -> Contexts:
    """Reads each of R prompts, with room for `steps` tokens."""
    if generator.has_encoder:
        return EncodedContexts(generator, prompts, steps)
    longest = max(map(len, prompts))
    decoder = TransformersDecoder(generator.model)
    return decoder.open(prompts, prompt_columns=longest, max_new_tokens=steps)


class EncodedContexts:
    """Rows that attend to their encoded condition; all write their next token at the same step."""

    def __init__(
        self, generator: ConditionalGenerator, prompts: Sequence[Sequence[int]], steps: int
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
    generator: ConditionalGenerator, conditions: Sequence[Sequence[int]]
) -> "tuple[torch.Tensor, torch.Tensor]":
    """States (C, S, d) and mask (C, S) of distinct conditions."""
    batch = generator.encoder.pad(conditions, [[generator.encoder.end_token_id]] * len(conditions))
    inputs = batch.to(generator.device).inputs
    states = generator.model.get_encoder()(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
    )
    return states.last_hidden_state, inputs["attention_mask"]
