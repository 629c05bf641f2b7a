"""The generator that is fine-tuned: a private copy of public weights, its examples, its disk.

An example is a record's document behind its condition: keywords and types, from the record in
training and a topic in writing. Both sides write through `condition_text`, so that what was learned
is what is asked for.

Letters: N records, L labels, K topics; bin K holds what no topic fits.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dpsynth_assets.files.kept import local_copy
from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.fine_tuning.config import GeneratorConfig, PrivateTrainingConfig
from dpsynth_assets.methods.fine_tuning.private_training import TrainingStart
from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, PublicInputs, counted_labels
from dpsynth_assets.models.conditional_generator.encoding import condition_text, prompt_condition
from dpsynth_assets.models.conditional_generator.generator import (
    ConditionalGenerator,
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.fine_tuning.adapters import (
    add_adapters,
    merge_adapters,
    multiply_in_integers,
)
from dpsynth_assets.models.fine_tuning.sources import TokenExample
from dpsynth_assets.models.prompt_templates import PromptTemplates, default_templates

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.topic_model.model import TopicModel

NO_TOPIC = -1
"""Topic of what carries no keywords."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """How conditions of one method are written: aspect lines, or a prompt's words; public.

    Attributes:
        labels: Declared labels, in order.
        label_texts: How each label reads in a condition; all empty where there is one label and
            conditions are aspect lines.
        document_type: What kind of text the records are; "" if it is not said.
        topic_model: Public topics, whose keywords are given; None for conditions without keywords.
        templates: Prompts in which conditions stand in the label's place; None for aspect lines.
    """

    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    document_type: str
    topic_model: "TopicModel | None" = None
    templates: PromptTemplates | None = None

    def text(self, label: int, topic: int) -> str:
        """Writes the condition of one cell; a negative topic is none."""
        label_text, keywords = self.label_texts[label], self.keywords(topic)
        if self.templates is not None:
            return prompt_condition(label_text, keywords)
        return condition_text(keywords, self.document_type, label_text)

    def public_text(self, topic: int) -> str:
        """Writes the condition of a public document, of which a topic is known at most."""
        keywords = self.keywords(topic)
        return (
            condition_text(keywords) if self.templates is None else prompt_condition("", keywords)
        )

    def keywords(self, topic: int) -> Sequence[str]:
        """Words that stand for a topic; none where conditions carry none, or for no topic."""
        if self.topic_model is None or topic < 0:
            return ()
        return self.topic_model.condition_keywords(topic)


@dataclass(frozen=True, kw_only=True)
class TrainingPairs:
    """(condition, document) pairs of the private records, in their order. Private.

    Attributes:
        conditions: N texts.
        documents: N texts.
    """

    conditions: list[str] = field(repr=False)
    documents: list[str] = field(repr=False)


def generator_prompts(
    terms: CohortTerms, document_type: str, *, keywords: bool
) -> PromptTemplates | None:
    """Chooses the prompts that a base's language model is fine-tuned and asked with.

    Returns:
        The dataset file's templates; without any, the default ones for `document_type`. None
        where the generator is no language model of the base, which reads aspect lines.

    Raises:
        ValueError: Keywords have no place in the declared templates.
    """
    if terms.generator is None or terms.generator.kind != "language_model":
        return None
    labelled = any(terms.label_texts)
    declared, model = terms.prompts, terms.language_model
    asks = model is None or model.asks
    default = default_templates(terms.domain, labelled=labelled, asks=asks)
    if declared is None or replace(declared, instruction=default.instruction) == default:
        if declared is not None and document_type == terms.domain and (labelled or not keywords):
            return declared
        return default_templates(document_type or "Texts", labelled=labelled or keywords, asks=asks)
    if keywords and declared.public_frame("x") == declared.public_frame("y"):
        raise ValueError(
            "Expected {label} in prompt.public or prompt.response_start, where keywords of a topic "
            "are written, got none. Write it there, or drop prompt."
        )
    return declared


def training_pairs(private: PrivateInputs, conditioning: Conditioning) -> TrainingPairs:
    """Pairs each record with its condition; records without text or a declared label are left out.

    Raises:
        ValueError: If topics are needed and embeddings are missing or do not match the records.

    **Privacy** A pair depends on its own record and on public values alone: a condition is part of
    what the record's clipped gradient covers, and costs nothing besides (docs/proofs.md). A null
    record, which zero-out neighbours have in place of a record, has no text and contributes no
    gradient: it is as if it were never drawn.

    **Source** CTCL, section 3.3 [ctcl S3.3]: the ten keywords of the record's topic are its
    condition.
    """
    labels = counted_labels(private.records, conditioning.labels).tolist()
    topics = [NO_TOPIC] * private.records.height
    if conditioning.topic_model is not None:
        topics = conditioning.topic_model.assign(private.vectors).tolist()
    texts: dict[tuple[int, int], str] = {}
    conditions, documents = [], []
    for label, topic, text in zip(labels, topics, private.records["text"].to_list(), strict=True):
        if label == UNCOUNTED:
            continue
        if (label, topic) not in texts:
            texts[label, topic] = conditioning.text(label, topic)
        conditions.append(texts[label, topic])
        documents.append(text)
    return TrainingPairs(conditions=conditions, documents=documents)


_BYTES = 4
"""Of a weight: training is in float32."""
_TENSORS = 3
"""Kept of each trained weight: itself and the two moments of Adam."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def training_room(shapes: Sequence[tuple[int, ...]], lora_rank: int | None) -> Room:
    """Bounds the released weights, adapters folded in, and the state that a checkpoint keeps.

    Args:
        shapes: Shape of every weight.
        lora_rank: Rank of the adapters, here counted for every matrix; None trains all weights.
    """
    weights = sum(math.prod(shape) for shape in shapes)
    trained = weights
    if lora_rank is not None:
        trained = sum(lora_rank * sum(shape) for shape in shapes if len(shape) == 2)
    return Room(release=_BYTES * weights, kept=_TENSORS * _BYTES * trained)


def stored_shapes(folder: Path) -> list[tuple[int, ...]]:
    """Reads the shapes of all weights in a folder from the heads of its safetensors files."""
    shapes = []
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            head = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes += [tuple(entry["shape"]) for name, entry in head.items() if name != "__metadata__"]
    return shapes


def bytes_beside_weights(folder: Path) -> int:
    """Counts what else a model's folder holds, such as its vocabulary: it is released, too."""
    others = (file for file in folder.glob("*") if file.suffix not in _WEIGHTS)
    return sum(file.stat().st_size for file in others if file.is_file())


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


def trainable(
    model: Any, config: PrivateTrainingConfig, modules: Sequence[str] | None = None
) -> Any:
    """Opens all weights for training, or adds adapters beside modules and opens those."""
    if config.lora_rank is None:
        return model.requires_grad_(True)
    adapted = add_adapters(model, config.lora_rank, modules=modules)
    if config.frozen_products == "int8":
        multiply_in_integers(adapted)
    return adapted


def take_trained(generator: ConditionalGenerator, model: Any, lora_rank: int | None) -> None:
    """Puts the trained model into the generator, all folded in: saved, it loads like any."""
    trained = model if lora_rank is None else merge_adapters(model)
    generator.__dict__["model"] = trained.requires_grad_(False).eval()


def public_pairs(public: PublicInputs, conditioning: Conditioning) -> TrainingPairs:
    """Pairs some public documents with conditions like those of private records.

    Labels are left out: public documents carry none of the cohort's.
    """
    documents = public.texts(PUBLIC_EXAMPLES)
    topics = [NO_TOPIC] * len(documents)
    if conditioning.topic_model is not None and public.text_embedder is not None and documents:
        embeddings = public.text_embedder.embed(documents, public=True)
        topics = conditioning.topic_model.assign(embeddings).tolist()
    conditions = [conditioning.public_text(topic) for topic in topics]
    return TrainingPairs(conditions=conditions, documents=documents)


def trial_pairs(conditioning: Conditioning, max_document_tokens: int) -> TrainingPairs:
    """Two made-up pairs of different lengths; no document that will come is longer than one's."""
    conditions = [conditioning.text(0, topic) for topic in (NO_TOPIC, 0)]
    return TrainingPairs(
        conditions=conditions, documents=["a short note", "word " * max_document_tokens]
    )


@dataclass(frozen=True, kw_only=True)
class GeneratorInputs:
    """Public weights and settings, without an open model; see `private_training.TrainingInputs`.

    Attributes:
        source: Folder or hub id of the public weights.
        device: Torch device.
        config: Settings of the method.
        modules: Layers beside which adapters are trained; None: all linear ones but the output.
        known: How conditions are written.
    """

    source: str
    device: str
    config: GeneratorConfig = field(repr=False)
    modules: tuple[str, ...] | None
    known: Conditioning = field(repr=False)

    def open(self, *, decodes_here: bool = False) -> TrainingStart:
        """Opens a private copy of the weights, which training may change.

        **Privacy** Loaded models are shared within a process: weights that were trained in place
        would be taken for public ones by the next dataset.

        Args:
            decodes_here: Whether to try that our decoder computes the model: before a charge.

        Raises:
            ValueError: It does not; in one line.
        """
        generator = load_conditional_generator(
            local_copy(self.source),
            dtype="float32",
            device=self.device,
            templates=self.known.templates,
        )
        if decodes_here and not generator.has_encoder:
            from dpsynth_assets.models.transformers_decoder.opening import require_equal_logits

            require_equal_logits(generator.model)
        return TrainingStart(
            model=trainable(generator.model, self.config, self.modules),
            loss=PairLoss(generator),
            name=generator.name,
        )

    def examples(self, start: TrainingStart, private: PrivateInputs) -> list[TokenExample]:
        """Pairs of the records, as token ids; records without text or label are left out."""
        return self.encoded(start, training_pairs(private, self.known))

    def encoded(self, start: TrainingStart, pairs: TrainingPairs) -> list[TokenExample]:
        """Pairs as token ids; equal conditions are encoded once."""
        generator = generator_of(start)
        encoder, bound = generator.encoder, generator.max_condition_tokens
        conditions = encoder.distinct_conditions(pairs.conditions, bound)
        documents = encoder.document_ids(pairs.documents, self.config.max_document_tokens)
        return [
            TokenExample(conditions[condition], document)
            for condition, document in zip(pairs.conditions, documents, strict=True)
        ]


def generator_of(start: TrainingStart) -> ConditionalGenerator:
    """The generator whose model a start trains."""
    return cast("PairLoss", start.loss).generator
