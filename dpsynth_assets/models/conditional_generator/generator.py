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

from dpsynth_assets.models.conditional_generator.encoding import (
    PairBatch,
    PairEncoder,
    PromptedEncoder,
)
from dpsynth_assets.models.language_model import LanguageModel, mean_token_losses, opened
from dpsynth_assets.models.prompt_templates import PromptTemplates

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
        prefix: Tokens before every condition: virtual ones of prompt tuning.

    **Source**: Tan et al. 2025, section 3.1 (CTCL-Generator).
    """

    templates: PromptTemplates | None = None
    prefix: tuple[int, ...] = ()

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
        return _written_format(self.source)

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
            encoder: PairEncoder = PromptedEncoder.of(self, self.templates)
        else:
            encoder = PairEncoder.for_checkpoint(
                self,
                self.has_encoder,
                self.max_condition_tokens,
                self.written_format.get("document_start"),
            )
        return replace(encoder, prefix=self.prefix)

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
    """Mean cross-entropy in nats of each document's own tokens, (B,); see `mean_token_losses`.

    Args:
        model: A transformers model of either kind.
        batch: B encoded pairs on the model's device.
    """
    return mean_token_losses(model(**batch.inputs, use_cache=False).logits, batch.labels)


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
    return opened(
        ConditionalGenerator,
        path_or_id,
        dtype=dtype,
        device=device,
        artifact="public/conditional_generator",
        templates=templates,
        prefix=tuple(_written_format(path_or_id).get("virtual_tokens", ())),
    )


def _written_format(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / FORMAT_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
