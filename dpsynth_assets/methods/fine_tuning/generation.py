"""What the two methods that fine-tune a generator share: one paid stage, then free rows."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.fine_tuning.conditions import (
    Conditioning,
    conditioning,
    training_pairs,
)
from dpsynth_assets.methods.fine_tuning.generators import (
    PairLoss,
    encode_pairs,
    fresh_generator,
    public_pairs,
    public_texts,
    save_generator,
    trainable,
    trial_pairs,
)
from dpsynth_assets.methods.fine_tuning.plan import plan_training, takes_slack_of_float32
from dpsynth_assets.methods.fine_tuning.serving import open_writer
from dpsynth_assets.methods.fine_tuning.training import (
    TrainingTask,
    refuse_without_rate,
    train_privately,
)
from dpsynth_assets.methods.fine_tuning.writing import write_rows
from dpsynth_assets.methods.rejection_sampling import open_judge
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.models.conditional_generator import ConditionalGenerator
from dpsynth_assets.models.fine_tuning import refuse_untrainable
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release

STAGE = "finetuned_generator"


class GeneratorMethod(StagedMethod):
    """DP-Adam on (condition, document) pairs, then sampling from what came out."""

    guarantee = GuaranteeType.DP

    @abstractmethod
    def has_keywords(self, config: Any) -> bool:
        """Whether conditions carry the keywords of a record's topic."""

    @abstractmethod
    def starts_from(self, config: Any, public: PublicInputs) -> Any:
        """The loaded public model whose weights training starts from; only its name is used."""

    def writing_inputs(self, config: Any) -> frozenset[str]:
        """What the judge of written rows reads."""
        return frozenset() if config.rejection is None else config.rejection.public_inputs()

    @abstractmethod
    def cells(
        self, config: Any, public: PublicInputs, known: Conditioning, rows: int
    ) -> np.ndarray:
        """Label and topic of each row to be written: int64 (rows, 2)."""

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all steps cost at most `target_epsilon`."""
        return plan_training(STAGE, config, terms, target_epsilon)

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """The fine-tuned generator."""
        del terms
        stage = Stage(
            name=STAGE,
            title="Generator fine-tuned on the private records by DP-Adam.",
            needs_embeddings=self.has_keywords(config),
        )
        return (stage,)

    def open_models(
        self, stage: str, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Takes the public model through half a step: one that cannot be trained costs nothing.

        Its weights are dropped afterwards, and read again once the stage is charged.

        Raises:
            TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
            ValueError: If an artifact is missing, or no learning rate can be chosen.
        """
        del stage
        refuse_without_rate(config, len(public_texts(public)))
        known, generator = self._conditioning(config, terms, public), self._fresh(config, public)
        longest = config.max_document_tokens
        examples = encode_pairs(generator, trial_pairs(known, longest), longest)
        model = trainable(generator, config.lora_rank)
        company = takes_slack_of_float32(config, terms)
        refuse_untrainable(
            model, examples, PairLoss(generator), config.clip_bound, in_company=company
        )

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
        """Trains a copy of the public generator and releases its weights.

        **Privacy** T Poisson-sampled Gaussian steps: the planned event, whatever the records. The
        weights are post-processing of the noisy gradients; conditions are part of each record's
        own gradient.

        **Source** CTCL, section 3.3 (DP finetuning) and 4.1.3.
        """
        known = self._conditioning(config, terms, public)
        generator = self._fresh(config, public)
        task = TrainingTask(
            stage=stage,
            plan=plan,
            config=config,
            terms=terms,
            loss=PairLoss(generator),
            start=generator.name,
            public_examples=encode_pairs(
                generator, public_pairs(public, known), config.max_document_tokens
            ),
        )
        private_examples = encode_pairs(
            generator, training_pairs(private, known), config.max_document_tokens
        )
        model = trainable(generator, config.lora_rank)
        facts = train_privately(task, model, private_examples, checkpoint, progress)
        folder = checkpoint.scratch()
        save_generator(generator, model, config.lora_rank, folder)
        return Release(
            value=StageRelease(facts=facts, files=folder),
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
        """Samples rows from the released generator, through the dataset's engine.

        **Privacy** Post-processing of released weights and counts: any number of rows is free.
        """
        del plan
        known = self._conditioning(config, terms, public)
        cells = self.cells(config, public, known, rows)
        judge = None if config.rejection is None else open_judge(config.rejection, public)
        with open_writer(
            public.released[STAGE].folder,
            terms.engine,
            device=self.starts_from(config, public).device,
            batch_rows=config.rows_per_forward,
        ) as (writer, engine):
            if engine != terms.engine.kind:
                progress(0.0, f"written by {engine}: {terms.engine.kind} cannot serve this model")
            corpus = write_rows(writer, known, cells, config, public.seed, progress, judge)
        return replace(corpus, facts={**corpus.facts, "engine_kind": engine})

    def _fresh(self, config: Any, public: PublicInputs) -> ConditionalGenerator:
        start = self.starts_from(config, public)
        pretrained = getattr(config, "pretrained", True)
        return fresh_generator(start.source, start.device, pretrained=pretrained)

    def _conditioning(self, config: Any, terms: CohortTerms, public: PublicInputs) -> Conditioning:
        return conditioning(terms, config.document_type, public, keywords=self.has_keywords(config))
