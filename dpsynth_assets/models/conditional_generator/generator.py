"""A model that writes a document for a condition: encoder-decoder, or decoder-only.

Loads from a folder (any checkpoint in the transformers format) or by hub id; a BART- or T5-like
checkpoint reads the condition in its encoder, any other causal model reads it as a prompt. Weights
are read at the first use of `model`. Nothing here runs remote code.

Documents are drawn by nucleus sampling and written by the one loop of all decoders: every row draws
from its own stream of random numbers, so that its document depends on the seed, its condition and
its place in the list, and not (float rounding aside) on how many rows are decoded together. Draws
are seeded and therefore never private: what is sampled from was released before.

Shape letters: R rows at hand, B pairs of a batch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.conditional_generator.encoding import (
    PairBatch,
    PairEncoder,
    PromptedEncoder,
)
from dpsynth_assets.models.decoding import Contexts, Decoder
from dpsynth_assets.models.decoding.protocol import Reading
from dpsynth_assets.models.decoding.writing import WritingRules, written_tokens
from dpsynth_assets.models.engines.protocol import Sampling, ShareCallback
from dpsynth_assets.models.language_model import LanguageModel, mean_token_losses, opened, padded
from dpsynth_assets.models.prompt_templates import PromptTemplates

if TYPE_CHECKING:
    import torch

FORMAT_FILE = "condition_format.json"
DEFAULT_CONDITION_TOKENS = 128
DEFAULT_DOCUMENT_TOKENS = 512
"""The paper's bounds, where the model's positions do not say otherwise."""


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

    @property
    def max_condition_tokens(self) -> int:
        """Conditions are cut to this many tokens unless the caller says otherwise."""
        if self.templates is not None and not self.has_encoder:
            return self.encoder.condition_tokens
        return self._bound(DEFAULT_CONDITION_TOKENS)

    @property
    def max_document_tokens(self) -> int:
        """Documents are cut to this many tokens unless the caller says otherwise."""
        return self._bound(DEFAULT_DOCUMENT_TOKENS)

    def _bound(self, default: int) -> int:
        positions = getattr(self.config, "max_position_embeddings", None) or 2 * default
        if not self.has_encoder:
            positions = positions * default // (DEFAULT_CONDITION_TOKENS + DEFAULT_DOCUMENT_TOKENS)
        return int(min(default, positions))

    @cached_property
    def encoder(self) -> PairEncoder:
        """Turns conditions and documents into token ids."""
        if self.templates is not None and not self.has_encoder:
            return PromptedEncoder.of(self, self.templates)
        return PairEncoder.of_checkpoint(self, self.has_encoder, self.max_condition_tokens)

    def generate(
        self,
        conditions: Sequence[str],
        sampling: Sampling | None = None,
        *,
        batch_rows: int = 256,
        progress: ShareCallback | None = None,
        **asked: Any,
    ) -> list[str]:
        """Samples one document for each of N conditions.

        Args:
            conditions: N condition texts; repeated ones give different documents.
            sampling: How tokens are drawn; the model's positions bound a document's length too.
                None: of a nucleus of 0.95, and as long as the model's documents are.
            batch_rows: Rows decoded together at most.
            progress: Called with the share of documents done and a public message.
            asked: What is drawn otherwise, as fields of `Sampling`.

        Returns:
            N documents in the order of the conditions, each of at least one token.
        """
        from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder

        usual = Sampling(top_p=0.95, max_new_tokens=self.max_document_tokens)
        sampling = replace(sampling or usual, **asked)
        encoder, count = self.encoder, len(conditions)
        sources = encoder.distinct_conditions(conditions, self.max_condition_tokens)
        end = encoder.end_token_id
        special = {*self.tokenizer.all_special_ids, encoder.pad_token_id} - {end}
        rules = WritingRules((end,), never=sorted(special), never_first=(end,))

        written = written_tokens(
            EncoderDecoder(self) if self.has_encoder else TransformersDecoder(self.model),
            [sources[condition] for condition in conditions],
            [encoder.document_bound(max(sampling.limits(1)))] * count,
            sampling,
            rules,
            batch_rows=batch_rows,
            progress=progress,
        )
        return [encoder.document_text(rules.until_end(tokens)[0]) for tokens in written]

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors), tokenizer and condition format to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        encoder = self.encoder
        facts = {  # What programs of others need to know beside the checkpoint itself.
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


class EncoderDecoder(Decoder):
    """Documents of an encoder-decoder, whose rows attend to their encoded conditions.

    Args:
        generator: A generator with an encoder.
    """

    attention_limit = None  # Bounds of conditions and documents are the generator's own.

    def __init__(self, generator: ConditionalGenerator) -> None:
        self.model = model = generator.model
        self.device, self.dtype = model.device, model.dtype
        self.start, self.filler = generator.encoder.start, generator.encoder.pad_token_id

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> Contexts:
        return EncodedContexts(self, prompts, reading.max_new_tokens + len(self.start))


class EncodedContexts:
    """Rows that attend to their encoded condition; all write their next token at the same step."""

    def __init__(
        self, decoder: EncoderDecoder, conditions: Sequence[Sequence[int]], columns: int
    ) -> None:
        """Encodes R conditions, for at most `columns` tokens of a row's decoder."""
        import torch

        self._model, self._start = decoder.model, decoder.start
        tokens = padded(conditions, decoder.filler).to(decoder.device)
        self._mask = padded([[1] * len(ids) for ids in conditions], 0).to(decoder.device)
        with torch.no_grad():
            encode = decoder.model.get_encoder()
            self._states = encode(input_ids=tokens, attention_mask=self._mask).last_hidden_state
        self._cache = growing_cache(columns)

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
        with torch.no_grad():
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
        contexts = contexts.to(self._mask.device)
        self._cache.reorder_cache(contexts)
        self._states, self._mask = self._states[contexts], self._mask[contexts]


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

        room: Sequence[Any] = ()

        def update(self, *given: Any, **_: Any) -> tuple[Any, Any]:
            """Writes the next columns of keys and values; returns views of all that are filled."""
            new, filled = given[:2], self.get_seq_length()
            if not self.room:
                self.lazy_initialization(*new)
                self.room = [x.new_empty((*x.shape[:2], columns, x.shape[3])) for x in new]
            end = filled + new[0].shape[2]
            for room, states in zip(self.room, new, strict=True):
                room[:, :, filled:end] = states
            self.keys, self.values = (room[:, :, :end] for room in self.room)
            return self.keys, self.values

        def reorder_cache(self, beam_idx: Any) -> None:
            """Keeps the rows of `beam_idx`, in its order."""
            if filled := self.get_seq_length():
                self.room = [room.index_select(0, beam_idx) for room in self.room]
                self.keys, self.values = (room[:, :, :filled] for room in self.room)

    return EncoderDecoderCache(Cache(layer_class_to_replicate=PreallocatedLayer), DynamicCache())
