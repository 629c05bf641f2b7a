"""Methods that train a model by DP-SGD in one paid stage, and one run of such a training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from dpsynth_assets.methods.base import Method, planned, refused
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.fine_tuning.plan import DeclaredTraining, PlannedTraining
from dpsynth_assets.methods.inputs import Checkpoint, ProgressCallback
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.stages import MethodPlan, Stage
from dpsynth_assets.methods.text_form import SCHEMA, TextForm
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.fine_tuning import (
    MINIMUM_EXAMPLES,
    ExampleLoss,
    FineTuningFacts,
    FineTuningSettings,
    SplitExamples,
    fine_tune_privately,
    kept_learning_rate,
    mean_loss,
    public_learning_rate,
    refuse_untrainable,
)
from dpsynth_assets.privacy.cpu_threads import LARGE
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.guarantees import GRADIENTS
from dpsynth_assets.privacy.per_example import Products
from dpsynth_assets.privacy.release import Cost, Release

TrainingConfigT = TypeVar("TrainingConfigT", bound=PrivateTrainingConfig)

FREE_SETTINGS = frozenset(
    {
        "rows",
        "top_p",
        "temperature",
        "label_shares",
        "rows_per_forward",
        "micro_batch_records",
        "checkpoint_minutes",
        SCHEMA,
    }
)
"""Settings that no training depends on."""

CANDIDATE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Peak rates that a rehearsal tries: large models take the first ones, small ones the last."""

_ALONE = 3.0
"""Passes of one record take so much longer than shared ones (docs/benchmarks.md)."""

_SMALL = 2.7
"""Products of a small model's passes are too short to be as fast as long ones (measured: ctcl)."""

REPORTED_EXAMPLES = 32
"""Public examples whose mean loss a run reports: the same ones each time, so that few show whether
it falls. All of them would slow the demo's trainings by a tenth."""


@dataclass(frozen=True, kw_only=True)
class TrainingStart:
    """A model to be trained, how its examples are scored, and which public ones there are.

    Attributes:
        model: Has public weights; must be nobody else's, since training makes it private.
        loss: Losses of single examples.
        name: Identity of the public weights.
        public_examples: Public examples like the private ones, for the loss that is reported and
            for the choice of a learning rate; may be empty.
    """

    model: Any
    loss: ExampleLoss
    name: str
    public_examples: Sequence[Any] = ()


class TrainingMethod(Method[TrainingConfigT]):
    """A method whose one paid stage trains a model by DP-SGD."""

    @property
    def form(self) -> TextForm:
        """The form of the texts that it writes."""
        return self.terms.form(follows_schema=False)

    @property
    def declared(self) -> DeclaredTraining:
        """The training as declared, from which it is planned."""
        return DeclaredTraining(self.config, self.terms)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all steps cost at most `target_epsilon`."""
        parameters = self.config.model_dump(mode="json")
        refusal = self.declared.refusal(self.name, target_epsilon)
        if refusal is not None:
            return refused(self, refusal, parameters)
        training = self.declared.planned(target_epsilon)
        (stage,), writing = self.stages(), self.writing()
        return planned(
            self,
            {stage.name: training},
            {**parameters, **training.parameters},
            form=self.form,
            free=FREE_SETTINGS,
            epsilon=training.epsilon,
            rows_estimate=None if writing is None else writing.rows,
            rests_on={stage.name: {GRADIENTS: training.passes}},
        )

    def training_work(self, parameters: float, text_tokens: float, sizes: PublicSizes) -> Work:
        """Counts the steps' passes: forward, and backward to the inputs and to what is trained."""
        config = self.config
        records = float(config.expected_batch_size)
        if config.sampling_probability is not None:
            records = min(records, config.sampling_probability * sizes.records)
        tokens = config.steps * min(records, sizes.records) * text_tokens
        passes = 2 if config.freezes_weights else 3
        alone = _ALONE if config.exact_sums else 1.0
        small = _SMALL if parameters < LARGE else 1.0
        return Work(trained=passes * alone * small * tokens * parameters / 1e9)

    def check_trainable(self, start: TrainingStart, examples: Sequence[Any]) -> None:
        """Takes the model through half a step on made-up examples.

        Raises:
            TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
        """
        declared = self.declared
        refuse_untrainable(
            start.model,
            examples,
            start.loss,
            self.config.clip_bound,
            shared_passes=declared.takes_slack_of_float32,
            slack=declared.slack_of_shared_passes,
        )

    def train(
        self,
        stage: Stage,
        start: TrainingStart,
        private_examples: Sequence[Any] | SplitExamples,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[dict[str, Any]]:
        """Trains `start.model` in place under the stage's charge; resumes a killed run.

        Args:
            stage: Has the planned training.
            start: What is trained.
            private_examples: n examples, whatever `start.loss` takes; or those that lie in parts.
            checkpoint: Where the unfinished stage keeps its state.
            progress: Told steps, ε so far of what is planned, and the loss on public text, all
                after steps that follow from T alone.

        Returns:
            Public facts of the run.

        Raises:
            TypeError: If the stage has no planned training.
            ValueError: If no learning rate can be chosen.

        **Privacy** The planned event and no more: the learning rate comes from settings or from
        public text, and what is reported was computed on public text.
        """
        planned = stage.mechanism
        if not isinstance(planned, PlannedTraining):
            raise TypeError(f"Expected a planned training of {stage.name}, got none. Plan first.")
        run = _Run(planned=planned, config=self.config, start=start)
        facts = run.train(private_examples, checkpoint, progress)
        return Release(value=facts, cost=Cost(guarantee=self.guarantee, event=planned.event()))


def refuse_without_rate(config: PrivateTrainingConfig, public_examples: int) -> None:
    """Refuses a run whose learning rate could not be chosen.

    Raises:
        ValueError: If a rehearsal is asked for and there is too little public text for it.
    """
    if config.learning_rate is None and public_examples < MINIMUM_EXAMPLES:
        raise ValueError(
            f"Expected {MINIMUM_EXAMPLES} public texts to choose a learning rate on, got "
            f"{public_examples}. Give learning_rate."
        )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run of a planned training."""

    planned: PlannedTraining
    config: PrivateTrainingConfig
    start: TrainingStart

    def train(
        self,
        private_examples: Sequence[Any] | SplitExamples,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> dict[str, Any]:
        """Trains the model in place; returns public facts."""
        mechanism = self.planned.open()
        settings = self._settings(self._learning_rate(checkpoint, progress))
        facts = fine_tune_privately(
            self.start.model,
            private_examples,
            self.start.loss,
            mechanism,
            settings,
            checkpoint=checkpoint,
            public_evaluation=self._public_loss(),
            progress=progress,
            epsilon_so_far=cache(self.planned.epsilon_of_first),
        )
        return self._facts(mechanism, settings, facts)

    def _learning_rate(self, checkpoint: Checkpoint, progress: ProgressCallback) -> float:
        """Takes the declared rate; else the one this run began with; else that of a rehearsal.

        A rehearsal draws noise, so that two may choose differently: a killed run goes on with what
        its checkpoint says. What a rehearsal found is remembered besides, for runs killed before.
        """
        if self.config.learning_rate is not None:
            return self.config.learning_rate
        kept = kept_learning_rate(checkpoint)
        if kept is not None:
            return kept
        refuse_without_rate(self.config, len(self.start.public_examples))
        return float(remembered(self._rehearsal_key(), lambda: self._rehearse(progress)))

    def _rehearse(self, progress: ProgressCallback) -> float:
        """Finds the best rate of some short runs on public text, under the planned noise."""
        return public_learning_rate(
            self.start.model,
            self.start.public_examples,
            self.start.loss,
            self.planned.mechanism,
            self._settings(1.0),
            candidates=CANDIDATE_RATES,
            steps=min(self.config.steps, 50),
            progress=lambda _, message: progress(0.0, message),
        )

    def _rehearsal_key(self) -> dict[str, Any]:
        """Lists what a rehearsal depends on: nothing a resumed run may set otherwise."""
        settings = self.config.model_dump(mode="json")
        return {
            "rehearsal": {k: v for k, v in settings.items() if k not in FREE_SETTINGS},
            "noise_multiplier": self.planned.mechanism.noise_multiplier,
            "start": self.start.name,
        }

    def _settings(self, learning_rate: float) -> FineTuningSettings:
        config = self.config
        return FineTuningSettings(
            learning_rate=learning_rate,
            warmup_steps=round(config.warmup_share * config.steps),
            weight_decay=config.weight_decay,
            micro_batch=config.micro_batch_records,
            products=Products.FLOAT64 if config.exact_sums else Products.NATIVE,
            checkpoint_seconds=60.0 * config.checkpoint_minutes,
        )

    def _public_loss(self) -> Callable[[Any], float] | None:
        examples = self.start.public_examples
        if not len(examples):
            return None
        every = max(1, len(examples) // REPORTED_EXAMPLES)
        chosen = examples[::every][:REPORTED_EXAMPLES]
        size = self.config.micro_batch_records
        return lambda model: mean_loss(model, chosen, self.start.loss, size)

    def _facts(
        self, mechanism: DpSgdMechanism, settings: FineTuningSettings, facts: FineTuningFacts
    ) -> dict[str, Any]:
        return {
            "steps": facts.steps,
            "trained_parameters": facts.parameters,
            "noise_multiplier": mechanism.noise_multiplier,
            "sampling_probability": mechanism.sampling_probability,
            "expected_batch_size": mechanism.expected_batch_size,
            "clip_bound": mechanism.l2_bound,
            "learning_rate": settings.learning_rate,
            "start": self.start.name,
            "public_losses": [[step, round(loss, 4)] for step, loss in facts.public_losses],
        }
