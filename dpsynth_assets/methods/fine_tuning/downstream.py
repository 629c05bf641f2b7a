"""DP training of the downstream model on private records, without any synthetic text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.fine_tuning.config import CLASSIFIER_RATE, DownstreamConfig
from dpsynth_assets.methods.fine_tuning.generators import public_texts
from dpsynth_assets.methods.fine_tuning.plan import plan_training, takes_slack_of_float32
from dpsynth_assets.methods.fine_tuning.training import (
    TrainingTask,
    refuse_without_rate,
    train_privately,
)
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.models.fine_tuning import (
    CausalLoss,
    ExampleLoss,
    TokenExample,
    add_adapters,
    merge_adapters,
    refuse_untrainable,
)
from dpsynth_assets.models.label_classifier import (
    LabelledEmbedding,
    LabelLoss,
    new_label_classifier,
    save_label_classifier,
)
from dpsynth_assets.models.next_word_model import (
    NextWordSettings,
    encode_texts,
    new_next_word_model,
    save_next_word_model,
)
from dpsynth_assets.models.public_word_pieces import PublicWordPieces
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release

STAGE = "downstream_model"
_PUBLIC_EXAMPLES = 128


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A model to be trained, how its examples are scored, and which public ones there are."""

    model: Any
    loss: ExampleLoss
    name: str
    public_examples: Sequence[Any] = ()


class DownstreamFineTuning(StagedMethod):
    """The baseline that needs no generator, and yields one model instead of a corpus."""

    name: ClassVar[str] = "downstream_fine_tuning"
    title: ClassVar[str] = "DP training of the downstream model"
    paper: ClassVar[str] = "Tan et al. 2025, section 4.1.2, Downstream DPFT"
    guarantee = GuaranteeType.DP
    config_type = DownstreamConfig
    writes_corpus = False

    def public_inputs(self, config: Any) -> frozenset[str]:
        """Public text on which the loss that is reported is measured."""
        return frozenset({"public_corpus"} if config.task == "next_word" else ())

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all steps cost at most `target_epsilon`."""
        refusal = _refusal(config, terms)
        if refusal is not None:
            return MethodPlan.refused(self.guarantee, config.model_dump(mode="json"), refusal)
        return plan_training(STAGE, config, terms, target_epsilon)

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """The trained model."""
        del terms
        stage = Stage(
            name=STAGE,
            title="Downstream model trained on the private records by DP-Adam.",
            needs_embeddings=config.task == "classification",
        )
        return (stage,)

    def open_models(
        self, stage: str, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Takes the causal model through half a step; the classifier is one linear layer.

        Raises:
            TypeError: If a parameter cannot be clipped by example.
            ValueError: If no learning rate can be chosen.
        """
        del stage
        if config.task != "next_word":
            return
        start = _next_word(config, public)
        refuse_without_rate(config, len(start.public_examples))
        made_up = ["a short note", "word " * config.max_document_tokens]
        examples = text_examples(made_up, next_word_settings(config))
        company = takes_slack_of_float32(config, terms)
        refuse_untrainable(start.model, examples, start.loss, config.clip_bound, in_company=company)

    def release_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Trains the model from its public start and releases its weights.

        **Privacy** T Poisson-sampled Gaussian steps: the planned event, whatever the records.

        **Source** CTCL, section 4.1.2 (Downstream DPFT).
        """
        examples: Sequence[Any]
        if config.task == "next_word":
            start, examples = _next_word(config, public), _words(config, private)
        else:
            start, examples = _classification(terms, private), _labelled(terms, private)
        task = TrainingTask(
            stage=stage,
            plan=plan,
            config=config,
            terms=terms,
            loss=start.loss,
            start=start.name,
            public_examples=start.public_examples,
        )
        facts = train_privately(task, start.model, examples, checkpoint, progress)
        folder = checkpoint.scratch()
        trained = start.model if config.lora_rank is None else merge_adapters(start.model)
        _save(trained, config, terms, folder)
        return Release(
            value=StageRelease(facts={"task": config.task, **facts}, files=folder),
            cost=Cost(guarantee=self.guarantee, event=plan.stages[stage]),
        )

    def write(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        rows: int,
        progress: ProgressCallback,
    ) -> SyntheticCorpus:
        """Refuses: there is no generator.

        Raises:
            ValueError: Always.
        """
        del plan, config, terms, public, rows, progress
        raise ValueError(f"Expected a method that writes text, got {self.name}.")

    def default_rows(self, config: Any) -> int:
        """None."""
        del config
        return 0


def next_word_settings(config: DownstreamConfig) -> NextWordSettings:
    """Shape of the causal model as `metrics.next_word` trains it on corpora."""
    shape = ("vocabulary", "width", "layers", "heads", "feed_forward", "max_document_tokens")
    return NextWordSettings(**{name: getattr(config, name) for name in shape})


def _refusal(config: DownstreamConfig, terms: CohortTerms) -> str | None:
    """Why a classifier cannot be trained, from declared facts; None if it can."""
    if config.task != "classification":
        return None
    if len(terms.labels) < 2:
        return (
            "Expected at least two declared labels for task: classification, got "
            f"{len(_named(terms.labels))}. Declare columns.labels and public_facts.labels, or take "
            "task: next_word."
        )
    if config.learning_rate is None:
        return (
            "Expected a learning_rate for task: classification, got null: public text has no "
            f"labels to rehearse on. Leave it out ({CLASSIFIER_RATE:g}) or give one."
        )
    if config.lora_rank is not None:
        return (
            f"Expected no lora_rank for task: classification, got {config.lora_rank}: a linear "
            "layer has nothing to adapt. Leave it out."
        )
    return None


def _named(labels: Sequence[str]) -> list[str]:
    return [label for label in labels if label]


def _next_word(config: DownstreamConfig, public: PublicInputs) -> _Start:
    """The start and the vocabulary that corpora are scored with; labels play no part."""
    settings = next_word_settings(config)
    model = new_next_word_model(_on_accelerator(settings)).requires_grad_(True)
    return _Start(
        model=model if config.lora_rank is None else add_adapters(model, config.lora_rank),
        loss=CausalLoss(
            pad_token_id=PublicWordPieces.pad_token_id,
            start_token_id=PublicWordPieces.begin_token_id,
        ),
        name="word embeddings of MiniLM",
        public_examples=text_examples(public_texts(public)[:_PUBLIC_EXAMPLES], settings),
    )


def _classification(terms: CohortTerms, private: PrivateInputs) -> _Start:
    """A linear layer over public embeddings, of which only the width is read here."""
    model = new_label_classifier(_embeddings(private).shape[1], len(terms.labels))
    return _Start(model=model, loss=LabelLoss(), name="zero")


def _embeddings(private: PrivateInputs) -> np.ndarray:
    """The records' embeddings.

    Raises:
        ValueError: If there are none.
    """
    if private.embeddings is None:
        raise ValueError(
            "Expected embedded records to train a classifier, got none. Embed the records, or take "
            "task: next_word."
        )
    return private.embeddings


def _words(config: DownstreamConfig, private: PrivateInputs) -> list[TokenExample]:
    return text_examples(private.records["text"].to_list(), next_word_settings(config))


def _labelled(terms: CohortTerms, private: PrivateInputs) -> list[LabelledEmbedding]:
    """Examples of the classifier; records without text or a declared label are left out."""
    index = {label: place for place, label in enumerate(terms.labels)}
    columns = (private.records["label"].to_list(), private.records["text"].to_list())
    return [
        LabelledEmbedding(np.asarray(embedding, dtype=np.float32), index[label])
        for embedding, label, text in zip(_embeddings(private), *columns, strict=True)
        if label in index and text.strip()
    ]


def _on_accelerator(settings: NextWordSettings) -> NextWordSettings:
    import torch

    return settings.model_copy(update={"device": "cuda"}) if torch.cuda.is_available() else settings


def text_examples(texts: Sequence[str], settings: NextWordSettings) -> list[TokenExample]:
    """Texts that have words; a null record has none and contributes nothing."""
    return [TokenExample((), each[1:].tolist()) for each in encode_texts(texts, settings)]


def _save(model: Any, config: DownstreamConfig, terms: CohortTerms, folder: Path) -> None:
    if config.task == "next_word":
        save_next_word_model(model, next_word_settings(config), folder)
    else:
        save_label_classifier(model, terms.labels, folder)
