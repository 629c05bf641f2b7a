"""The generator that is fine-tuned: a private copy of public weights, and its examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.fine_tuning.conditions import Conditioning, TrainingPairs
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.models.conditional_generator import (
    ConditionalGenerator,
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.fine_tuning import (
    TokenExample,
    add_adapters,
    add_virtual_tokens,
    fold_virtual_tokens,
    merge_adapters,
    multiply_in_integers,
    virtual_tokens,
)
from dpsynth_assets.models.prompt_templates import PromptTemplates

if TYPE_CHECKING:
    import torch

PUBLIC_EXAMPLES = 128
"""Public documents on which the loss that is reported is measured."""


@dataclass(frozen=True)
class PairLoss:
    """Loss of (condition, document) pairs, written as a generator's format wants them.

    Attributes:
        generator: Knows its special tokens; its weights are not read here.
    """

    generator: ConditionalGenerator

    def __call__(self, model: Any, examples: Sequence[TokenExample]) -> "torch.Tensor":
        """Runs the model; returns (B,) mean losses of each document's own tokens, in nats."""
        batch = self.generator.encoder.pad(
            [each.inputs for each in examples], [each.targets for each in examples]
        )
        return per_example_loss(model, batch.to(next(model.parameters()).device))

    def length(self, example: TokenExample) -> int:
        """Document tokens, whose logits dominate, and half of the condition's."""
        return len(example.targets) + len(example.inputs) // 2


def fresh_generator(
    source: str,
    device: str,
    *,
    pretrained: bool = True,
    templates: PromptTemplates | None = None,
    prompt_tokens: int | None = None,
) -> ConditionalGenerator:
    """Opens public weights in float32 for training, apart from every loaded model.

    Args:
        source: Folder or hub id.
        device: Torch device.
        pretrained: False draws random weights of the same shape instead, from a public seed.
        templates: Prompts of a language model; None: aspect lines.
        prompt_tokens: Virtual tokens before every condition; None: there are none.

    Raises:
        ValueError: The model has fewer reserved tokens, or reads conditions in an encoder.

    **Privacy** Loaded models are shared within a process: weights that were trained in place would
    be taken for public ones by the next dataset.
    """
    generator = load_conditional_generator(
        source, dtype="float32", device=device, templates=templates
    )
    if prompt_tokens is not None:
        if generator.has_encoder:
            raise ValueError(
                f"Expected a decoder-only generator for prompt_tokens, got {generator.name}, which "
                "has an encoder. Give lora_rank instead."
            )
        prefix = virtual_tokens(generator.tokenizer, prompt_tokens)
        generator = replace(generator, prefix=prefix)
    if not pretrained:
        _draw_weights(generator)
    return generator


def trainable_generator(generator: ConditionalGenerator, config: PrivateTrainingConfig) -> Any:
    """Adds virtual tokens where the generator has some, else what `trainable` opens."""
    if not generator.prefix:
        return trainable(generator.model, config)
    integers = config.frozen_products == "int8"
    return add_virtual_tokens(generator.model, generator.prefix, integers=integers)


def trainable(model: Any, config: PrivateTrainingConfig) -> Any:
    """Opens all weights for training, or adds adapters and opens those.

    Raises:
        ValueError: If the model has no layers of the declared names.
    """
    if config.lora_rank is None:
        return model.requires_grad_(True)
    adapted = add_adapters(model, config.lora_rank, modules=config.lora_modules)
    if config.frozen_products == "int8":
        multiply_in_integers(adapted)
    return adapted


def take_trained(generator: ConditionalGenerator, model: Any, lora_rank: int | None) -> None:
    """Puts the trained model into the generator, all folded in: saved, it loads like any."""
    if generator.prefix:
        trained = fold_virtual_tokens(model)
    else:
        trained = model if lora_rank is None else merge_adapters(model)
    generator.__dict__["model"] = trained.requires_grad_(False).eval()


def encode_pairs(
    generator: ConditionalGenerator, pairs: TrainingPairs, max_document_tokens: int
) -> list[TokenExample]:
    """Turns pairs into token ids; equal conditions are encoded once."""
    encoder, bound = generator.encoder, generator.max_condition_tokens
    conditions = encoder.distinct_conditions(pairs.conditions, bound)
    documents = encoder.document_ids(pairs.documents, max_document_tokens)
    return [
        TokenExample(conditions[condition], document)
        for condition, document in zip(pairs.conditions, documents, strict=True)
    ]


def public_pairs(public: PublicInputs, conditioning: Conditioning) -> TrainingPairs:
    """Pairs some public documents with conditions like those of private records.

    Labels are left out: public documents carry none of the cohort's.
    """
    texts = public_texts(public)
    order = np.random.default_rng(0).permutation(len(texts))[:PUBLIC_EXAMPLES]
    documents = [texts[row] for row in order]
    topics = [-1] * len(documents)
    if conditioning.topic_model is not None and public.text_embedder is not None and documents:
        embeddings = public.text_embedder.embed(documents, public=True)
        topics = conditioning.topic_model.assign(embeddings).tolist()
    conditions = [conditioning.public_text(topic) for topic in topics]
    return TrainingPairs(conditions=conditions, documents=documents)


def public_texts(public: PublicInputs) -> list[str]:
    """Public documents that have words; none without a public corpus."""
    if public.public_records is None:
        return []
    return [text for text in public.public_records["text"].to_list() if text.strip()]


def trial_pairs(conditioning: Conditioning, max_document_tokens: int) -> TrainingPairs:
    """Two made-up pairs of different lengths; no document that will come is longer than one's."""
    conditions = [conditioning.text(0, topic) for topic in (-1, 0)]
    return TrainingPairs(
        conditions=conditions, documents=["a short note", "word " * max_document_tokens]
    )


def _draw_weights(generator: ConditionalGenerator) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if generator.has_encoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind.from_config(generator.config, dtype=torch.float32)
    generator.__dict__["model"] = model.to(generator.device).eval().requires_grad_(False)


def required(model: Any, name: str) -> Any:
    """Returns a loaded public model.

    Raises:
        ValueError: If there is none.
    """
    if model is None:
        raise ValueError(
            f"Expected the public model {name}, got none. Materialise it in the public base."
        )
    return model
