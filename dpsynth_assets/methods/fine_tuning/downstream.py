"""DP training of the downstream model on private records, without any synthetic text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.datasets.evaluation_section import NextWordSettings, NextWordShape
from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.capabilities import Advice
from dpsynth_assets.methods.fine_tuning.config import DownstreamConfig
from dpsynth_assets.methods.fine_tuning.generators import trainable, training_room
from dpsynth_assets.methods.fine_tuning.private_training import (
    TrainingMethod,
    TrainingStart,
    training_examples,
)
from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, PublicInputs, counted_labels
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.methods.work import LANGUAGE_MODEL_WEIGHTS, PublicSizes, Work
from dpsynth_assets.models.classifiers import (
    LabelledEmbedding,
    LabelLoss,
    new_label_classifier,
    save_label_classifier,
)
from dpsynth_assets.models.fine_tuning.adapters import merge_adapters
from dpsynth_assets.models.fine_tuning.sources import CausalLoss, TokenExample
from dpsynth_assets.models.next_word_model import (
    PublicWordPieces,
    encode_texts,
    new_next_word_model,
    save_next_word_model,
)
from dpsynth_assets.privacy.guarantees import Release

STAGE = "downstream_model"
_PUBLIC_EXAMPLES = 128


class DownstreamFineTuning(TrainingMethod[DownstreamConfig]):
    """The baseline that needs no generator, and yields one model instead of a corpus."""

    name = "downstream_fine_tuning"
    title = "DP training of the downstream model"
    paper = "Tan et al. 2025, section 4.1.2, Downstream DPFT"
    arxiv = "2503.12347"
    config_type = DownstreamConfig
    advice = Advice(unadvised="releases a trained model, no text")

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all steps cost at most `target_epsilon`."""
        config, labels = self.config, self.terms.labels
        if config.task == "classification" and len(labels) < 2:
            raise ValueError(
                "Expected at least two declared labels for task: classification, got "
                f"{len([label for label in labels if label])}. Declare columns.labels and "
                "public_facts.labels, or take task: next_word."
            )
        if config.task == "classification" and config.lora_rank is not None:
            raise ValueError(
                f"Expected no lora_rank for task: classification, got {config.lora_rank}: the "
                "only trained layer is linear. Leave lora_rank out."
            )
        return super().plan(target_epsilon)

    def work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the training of the causal model, or of one layer over embeddings."""
        config = self.config
        layers = config.layers * config.width * (4 * config.width + 3 * config.feed_forward)
        causal = config.task == "next_word"
        parameters = layers + config.vocabulary * config.width if causal else config.width
        tokens = sizes.text(config.max_document_tokens) if causal else 1.0
        return self.training_work(parameters, tokens, sizes)

    def stages(self) -> tuple[Stage, ...]:
        """The trained model: on a GPU, where there is one, unless it is one layer.

        It reads public text, on which the loss that is reported is measured.
        """
        causal = self.config.task == "next_word"
        stage = Stage(
            name=STAGE,
            title="Downstream model trained on the private records by DP-Adam.",
            needs_embeddings=self.config.task == "classification",
            in_parts=self.config.exact_sums and causal,
            reads=frozenset({"public_corpus"} if causal else ()),
            runs=(LANGUAGE_MODEL_WEIGHTS,) if causal else (),
            work=self.work,
            check=self.check_public,
            takes=self.room,
            draws=self.release,
        )
        return (stage,)

    def check_public(self, public: PublicInputs) -> None:
        """Takes the causal model through half a step; the classifier is one linear layer.

        Raises:
            TypeError: If a parameter cannot be clipped by example.
        """
        if self.config.task != "next_word":
            return
        start = self._causal_start(public)
        made_up = ["a short note", "word " * self.config.max_document_tokens]
        self.check_trainable(start, text_examples(made_up, next_word_settings(self.config)))

    def room(self, _stage: Stage, _public: PublicInputs) -> Room:
        """Counts the weights of the causal model; a classifier's need no room to speak of."""
        config = self.config
        if config.task != "next_word":
            return Room()
        layer = [(config.width, config.width)] * 4 + [(config.width, config.feed_forward)] * 3
        embeddings = [(config.vocabulary, config.width)] * 2
        return training_room(embeddings + layer * config.layers, config.lora_rank)

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Trains the model from its public start and releases its weights.

        **Privacy** T Poisson-sampled Gaussian steps: the planned event, regardless of the records.

        **Source** CTCL, section 4.1.2 (Downstream DPFT).
        """
        if self.config.task == "next_word":
            start, inputs = self._causal_start(run.public), NextWordInputs(self.config)
            with training_examples(run.private, inputs, start) as examples:
                trained = self.train(run, start, examples)
        else:
            start = self._classifier_start(run.private)
            trained = self.train(run, start, self._labelled(run.private))
        model = start.model if self.config.lora_rank is None else merge_adapters(start.model)
        folder = run.checkpoint.filled(lambda files: self._save(model, files))
        facts = {"task": self.config.task, **trained.value}
        return Release(value=StageRelease(facts=facts, files=folder), cost=trained.cost)

    def _causal_start(self, public: PublicInputs) -> TrainingStart:
        """The start and the vocabulary that corpora are scored with; labels play no part."""
        shown = text_examples(public.texts(_PUBLIC_EXAMPLES), next_word_settings(self.config))
        return replace(NextWordInputs(self.config).open(), public_examples=shown)

    def _classifier_start(self, private: PrivateInputs) -> TrainingStart:
        """A linear layer over public embeddings, of which only the width is read here."""
        model = new_label_classifier(private.vectors.shape[1], len(self.terms.labels))
        return TrainingStart(model=model, loss=LabelLoss(), name="zero")

    def _labelled(self, private: PrivateInputs) -> list[LabelledEmbedding]:
        """Examples of the classifier; records without text or a declared label are left out."""
        labels = counted_labels(private.records, self.terms.labels).tolist()
        return [
            LabelledEmbedding(np.asarray(embedding, dtype=np.float32), label)
            for embedding, label in zip(private.vectors, labels, strict=True)
            if label != UNCOUNTED
        ]

    def _save(self, trained: Any, folder: Path) -> None:
        if self.config.task == "next_word":
            save_next_word_model(trained, next_word_settings(self.config), folder)
        else:
            save_label_classifier(trained, self.terms.labels, folder)


@dataclass(frozen=True)
class NextWordInputs:
    """The causal model and its examples, in any process; see `private_training.TrainingInputs`.

    Attributes:
        config: Settings of the method, `task: next_word`.
    """

    config: DownstreamConfig

    def open(self) -> TrainingStart:
        """Opens the public start."""
        settings = next_word_settings(self.config)
        return TrainingStart(
            model=trainable(new_next_word_model(_on_accelerator(settings)), self.config),
            loss=CausalLoss(
                pad_token_id=PublicWordPieces.pad_token_id,
                start_token_id=PublicWordPieces.begin_token_id,
            ),
            name="word embeddings of MiniLM",
        )

    def examples(self, _start: TrainingStart, private: PrivateInputs) -> list[TokenExample]:
        """Texts that have words."""
        return text_examples(private.records["text"].to_list(), next_word_settings(self.config))


def next_word_settings(config: DownstreamConfig) -> NextWordSettings:
    """Shape of the causal model as `metrics.next_word` trains it on corpora."""
    return NextWordSettings(**config.model_dump(include=set(NextWordShape.model_fields)))


def _on_accelerator(settings: NextWordSettings) -> NextWordSettings:
    import torch

    return settings.model_copy(update={"device": "cuda"}) if torch.cuda.is_available() else settings


def text_examples(texts: Sequence[str], settings: NextWordSettings) -> list[TokenExample]:
    """Texts that have words; a null record has none and contributes nothing."""
    return [TokenExample((), each[1:].tolist()) for each in encode_texts(texts, settings)]
