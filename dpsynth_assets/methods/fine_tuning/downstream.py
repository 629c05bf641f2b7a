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
from dpsynth_assets.methods.fine_tuning.config import DownstreamConfig
from dpsynth_assets.methods.fine_tuning.plan import plan_training
from dpsynth_assets.methods.fine_tuning.training import TrainingTask, train_privately
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.models.fine_tuning import (
    CausalLoss,
    ExampleLoss,
    TokenExample,
    add_adapters,
    merge_adapters,
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
class _Downstream:
    """A model to be trained, how its examples are scored, and which public ones there are."""

    model: Any
    loss: ExampleLoss
    start: str
    private_examples: Sequence[Any]
    public_examples: Sequence[Any]


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
        prepare = _next_word if config.task == "next_word" else _classification
        downstream = prepare(config, terms, private, public)
        task = TrainingTask(
            stage=stage,
            plan=plan,
            config=config,
            terms=terms,
            loss=downstream.loss,
            start=downstream.start,
            public_examples=downstream.public_examples,
        )
        adapts = config.lora_rank is not None
        model = add_adapters(downstream.model, config.lora_rank) if adapts else downstream.model
        facts = train_privately(task, model, downstream.private_examples, checkpoint, progress)
        folder = checkpoint.scratch()
        _save(merge_adapters(model) if adapts else model, config, terms, folder)
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


def _next_word(
    config: DownstreamConfig, terms: CohortTerms, private: PrivateInputs, public: PublicInputs
) -> _Downstream:
    """The start and the vocabulary that corpora are scored with; labels play no part."""
    del terms
    settings = next_word_settings(config)
    texts = [] if public.public_records is None else public.public_records["text"].to_list()
    return _Downstream(
        model=new_next_word_model(_on_accelerator(settings)).requires_grad_(True),
        loss=CausalLoss(
            pad_token_id=PublicWordPieces.pad_token_id,
            start_token_id=PublicWordPieces.begin_token_id,
        ),
        start="word embeddings of MiniLM",
        private_examples=text_examples(private.records["text"].to_list(), settings),
        public_examples=text_examples(texts[:_PUBLIC_EXAMPLES], settings),
    )


def _on_accelerator(settings: NextWordSettings) -> NextWordSettings:
    import torch

    return settings.model_copy(update={"device": "cuda"}) if torch.cuda.is_available() else settings


def text_examples(texts: Sequence[str], settings: NextWordSettings) -> list[TokenExample]:
    """Texts that have words; a null record has none and contributes nothing."""
    return [TokenExample((), each[1:].tolist()) for each in encode_texts(texts, settings)]


def _classification(
    config: DownstreamConfig, terms: CohortTerms, private: PrivateInputs, public: PublicInputs
) -> _Downstream:
    """A linear layer over public embeddings; records without text or a declared label are left out.

    Raises:
        ValueError: If there is nothing to tell apart, or there are no embeddings.
    """
    del config, public
    if len(terms.labels) < 2 or private.embeddings is None:
        raise ValueError(
            "Expected at least two declared labels and embedded records to train a classifier, "
            "got fewer. Take task: next_word."
        )
    index = {label: place for place, label in enumerate(terms.labels)}
    columns = (private.records["label"].to_list(), private.records["text"].to_list())
    return _Downstream(
        model=new_label_classifier(private.embeddings.shape[1], len(terms.labels)),
        loss=LabelLoss(),
        start="zero",
        private_examples=[
            LabelledEmbedding(np.asarray(embedding, dtype=np.float32), index[label])
            for embedding, label, text in zip(private.embeddings, *columns, strict=True)
            if label in index and text.strip()
        ],
        public_examples=(),
    )


def _save(model: Any, config: DownstreamConfig, terms: CohortTerms, folder: Path) -> None:
    if config.task == "next_word":
        save_next_word_model(model, next_word_settings(config), folder)
    else:
        save_label_classifier(model, terms.labels, folder)
