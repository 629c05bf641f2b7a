"""A model that writes a document for a condition: encoder-decoder, or decoder-only with a prefix.

Loads from a folder (any checkpoint in the transformers format) or by hub id; a BART- or T5-like
checkpoint reads the condition in its encoder, any other causal model reads it as a prompt. Weights
are read at the first use of `model`. Nothing here runs remote code.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.conditional_generator.encoding import PairBatch, PairEncoder
from dpsynth_assets.models.conditional_generator.prompted import PromptedEncoder
from dpsynth_assets.models.language_model import (
    LanguageModel,
    LanguageModelError,
    load_language_model,
)
from dpsynth_assets.models.prompt_templates import PromptTemplates

if TYPE_CHECKING:
    import torch

FORMAT_FILE = "condition_format.json"
DEFAULT_CONDITION_TOKENS = 128
DEFAULT_DOCUMENT_TOKENS = 512
"""The paper's bounds, where neither the folder nor the model's positions say otherwise."""


@dataclass(frozen=True)
class ConditionalGenerator:
    """Weights, tokens and condition format of one generator.

    Attributes:
        checkpoint: The checkpoint's configuration and tokenizer, `dtype` and `device`.
        templates: Prompts that a decoder-only model reads in place of aspect lines; None for those.
        prefix: Tokens before every condition: virtual ones of prompt tuning.

    **Source**: Tan et al. 2025, section 3.1 (CTCL-Generator).
    """

    checkpoint: LanguageModel
    templates: PromptTemplates | None = None
    prefix: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        """Folder or hub id."""
        return self.checkpoint.source

    @property
    def name(self) -> str:
        """Short public name."""
        return self.checkpoint.name

    @property
    def device(self) -> str:
        """Torch device of the weights."""
        return self.checkpoint.device

    @property
    def config(self) -> Any:
        """The transformers configuration."""
        return self.checkpoint.config

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self.checkpoint.tokenizer

    @property
    def has_encoder(self) -> bool:
        """Says whether conditions go through an encoder; False for decoder-only models."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    @cached_property
    def model(self) -> Any:
        """The transformers model: evaluation mode, no gradients, on `device` in `dtype`.

        Training turns gradients on with `.train().requires_grad_(True)` and off again afterwards.
        """
        return _load_sequence_model(self.checkpoint) if self.has_encoder else self.checkpoint.model

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
            encoder: PairEncoder = PromptedEncoder.of(self.checkpoint, self.templates)
        else:
            encoder = PairEncoder.for_checkpoint(
                self.checkpoint,
                self.has_encoder,
                self.max_condition_tokens,
                self.written_format.get("document_start"),
            )
        return replace(encoder, prefix=self.prefix)

    def encode_pairs(
        self,
        conditions: Sequence[str],
        documents: Sequence[str],
        max_condition_tokens: int | None = None,
        max_document_tokens: int | None = None,
    ) -> PairBatch:
        """Pads (condition, document) pairs into one batch; see `PairEncoder.batch`."""
        return self.encoder.batch(
            conditions,
            documents,
            max_condition_tokens or self.max_condition_tokens,
            max_document_tokens or self.max_document_tokens,
        )

    def per_example_loss(self, batch: PairBatch) -> "torch.Tensor":
        """Cross-entropy in nats of each example, (B,); see `per_example_loss`."""
        return per_example_loss(self.model, batch)

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
        """Samples one document for each condition; see `decoding.sample_for_conditions`."""
        from dpsynth_assets.models.conditional_generator.decoding import sample_for_conditions
        from dpsynth_assets.models.engines.protocol import Sampling

        sampling = Sampling(
            top_p=top_p,
            temperature=temperature,
            seed=seed,
            max_new_tokens=max_new_tokens or self.max_document_tokens,
        )
        return sample_for_conditions(
            self, conditions, sampling, batch_rows=batch_rows, progress=progress
        )

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors), tokenizer and condition format to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_format(
            folder,
            self.max_condition_tokens,
            self.max_document_tokens,
            self.encoder.start_tokens,
            conditions="aspect lines" if self.templates is None else "prompts",
            prefix=self.prefix,
        )


def per_example_loss(model: Any, batch: PairBatch) -> "torch.Tensor":
    """Cross-entropy in nats of each example: the mean over that example's own tokens.

    Args:
        model: A transformers model of either kind.
        batch: B encoded pairs on the model's device.

    Returns:
        (B,), float32, with gradients where the model has them.

    **Privacy** An example's loss depends on its own tokens alone: it is never divided by the number
    of tokens of the batch, so that its gradient can be clipped as one record's contribution.
    """
    losses = token_losses(model, batch)
    return losses.sum(1) / (batch.labels >= 0).sum(1).clamp(min=1)


def token_losses(model: Any, batch: PairBatch) -> "torch.Tensor":
    """Cross-entropy in nats of every token (B, T); zero where the label is -100."""
    from torch.nn.functional import cross_entropy

    logits = model(**batch.inputs, use_cache=False).logits.float()
    flat = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
    return flat.view(batch.labels.shape)


def write_format(
    folder: Path,
    max_condition_tokens: int,
    max_document_tokens: int,
    start: Sequence[str],
    *,
    conditions: str = "aspect lines",
    prefix: Sequence[int] = (),
) -> None:
    """Writes what a loader must know beside the checkpoint itself."""
    facts = {
        "conditions": conditions,
        "max_condition_tokens": max_condition_tokens,
        "max_document_tokens": max_document_tokens,
        "document_start": list(start),
        **({"virtual_tokens": list(prefix)} if prefix else {}),
    }
    (folder / FORMAT_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


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
    folder = Path(path_or_id)
    looks_like_path = folder.is_dir() or folder.is_absolute() or str(path_or_id).count("/") != 1
    if looks_like_path and not (folder / "config.json").is_file():
        raise LanguageModelError(
            f"Expected a conditional generator in {folder}, found no config.json; materialise "
            "public/conditional_generator, or give a folder in the transformers format or a hub id."
        )
    checkpoint = load_language_model(path_or_id, dtype=dtype, device=device)
    found = ConditionalGenerator(checkpoint, templates)
    prefix = found.written_format.get("virtual_tokens", ())
    return replace(found, prefix=tuple(prefix)) if prefix else found


def _load_sequence_model(checkpoint: LanguageModel) -> Any:
    """Reads encoder-decoder weights; failures become one line."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    try:
        weights = AutoModelForSeq2SeqLM.from_pretrained(
            checkpoint.source, trust_remote_code=False, dtype=getattr(torch, checkpoint.dtype)
        )
        return weights.to(checkpoint.device).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise LanguageModelError(
            f"{checkpoint.name} in {checkpoint.dtype} does not fit on {checkpoint.device}; take a "
            "smaller generator, dtype bfloat16 or another device."
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise LanguageModelError(
            f"Expected encoder-decoder weights in {checkpoint.source}, got: "
            f"{str(error).splitlines()[0]} Restore the missing file, or materialise "
            "public/conditional_generator again."
        ) from None
