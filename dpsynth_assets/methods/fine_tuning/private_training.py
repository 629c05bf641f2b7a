"""Runs a planned private training: the mechanism, the learning rate, and what may be reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dpsynth_assets.methods.base import CohortTerms, MethodPlan, ProgressCallback
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.fine_tuning.plan import planned_mechanism
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.staged import Checkpoint, StagedMethod
from dpsynth_assets.models.fine_tuning import (
    ExampleLoss,
    FineTuningFacts,
    FineTuningSettings,
    fine_tune_privately,
    kept_learning_rate,
    public_learning_rate,
)
from dpsynth_assets.models.fine_tuning.learning_rate import MINIMUM_EXAMPLES, mean_loss
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import Products

CANDIDATE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Peak rates that a rehearsal tries: large models take the first ones, embedded ones the last."""

REPORTED_EXAMPLES = 32
"""Public examples whose mean loss a run reports: the same ones each time, so that few show whether
it falls. All of them would slow the demo's trainings by a tenth."""


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """One stage to be trained: what was planned, and what is trained how.

    Attributes:
        stage: Name of the stage.
        plan: The method's plan.
        config: Validated settings.
        terms: Declared facts.
        loss: Losses of single examples.
        start: Identity of the public weights that training starts from.
        public_examples: Public examples like the private ones, for the loss that is reported and
            for the choice of a learning rate; may be empty.
    """

    stage: str
    plan: MethodPlan
    config: PrivateTrainingConfig
    terms: CohortTerms
    loss: ExampleLoss
    start: str
    public_examples: Sequence[Any] = ()


def train_privately(
    task: TrainingTask,
    model: Any,
    private_examples: Sequence[Any],
    checkpoint: Checkpoint,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Fine-tunes a model in place under the stage's charge; goes on where a killed run stopped.

    Args:
        task: What was planned.
        model: Starts from public weights; must be nobody else's, since it becomes private.
        private_examples: n examples, whatever `task.loss` takes.
        checkpoint: Where the unfinished stage keeps its state.
        progress: Told steps, ε so far of what is planned, and the loss on public text, all after
            steps that follow from T alone.

    Returns:
        Public facts of the run.

    **Privacy** The planned event and no more: the learning rate comes from settings or from public
    text, and what is reported was computed on public text.
    """
    mechanism = planned_mechanism(task.stage, task.plan, task.config, task.terms)
    settings = _settings(task, _learning_rate(task, model, mechanism, checkpoint, progress))
    facts = fine_tune_privately(
        model,
        private_examples,
        task.loss,
        mechanism,
        settings,
        checkpoint=checkpoint,
        public_evaluation=_public_loss(task),
        progress=progress,
        epsilon_so_far=_epsilon_so_far(task, mechanism),
    )
    return _facts(task, mechanism, settings, facts)


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


def _learning_rate(
    task: TrainingTask,
    model: Any,
    mechanism: DpSgdMechanism,
    checkpoint: Checkpoint,
    progress: ProgressCallback,
) -> float:
    """The declared rate; else the one this run began with; else the best of a rehearsal.

    A rehearsal draws noise, so that two may choose differently: a killed run goes on with what its
    checkpoint says. What a rehearsal found is remembered besides, for runs killed before that.

    Raises:
        ValueError: If a rehearsal is needed and there is no public text.
    """
    if task.config.learning_rate is not None:
        return task.config.learning_rate
    kept = kept_learning_rate(checkpoint)
    if kept is not None:
        return kept
    refuse_without_rate(task.config, len(task.public_examples))

    def rehearse() -> float:
        found = public_learning_rate(
            model,
            task.public_examples,
            task.loss,
            mechanism,
            _settings(task, 1.0),
            candidates=CANDIDATE_RATES,
            steps=min(task.config.steps, 50),
            progress=lambda _, message: progress(0.0, message),
        )
        return found.learning_rate

    return float(remembered(_rehearsal_key(task, mechanism), rehearse))


def _rehearsal_key(task: TrainingTask, mechanism: DpSgdMechanism) -> dict[str, Any]:
    """What a rehearsal depends on: nothing a resumed run may set otherwise."""
    settings = task.config.model_dump(mode="json")
    return {
        "rehearsal": {k: v for k, v in settings.items() if k not in StagedMethod.free_settings},
        "noise_multiplier": mechanism.noise_multiplier,
        "start": task.start,
    }


def _settings(task: TrainingTask, learning_rate: float) -> FineTuningSettings:
    config = task.config
    return FineTuningSettings(
        learning_rate=learning_rate,
        warmup_steps=round(config.warmup_share * config.steps),
        weight_decay=config.weight_decay,
        micro_batch=config.micro_batch_records,
        products=Products.FLOAT64 if config.exact_sums else Products.NATIVE,
        checkpoint_seconds=60.0 * config.checkpoint_minutes,
    )


def _public_loss(task: TrainingTask) -> Callable[[Any], float] | None:
    if not len(task.public_examples):
        return None
    every = max(1, len(task.public_examples) // REPORTED_EXAMPLES)
    chosen = task.public_examples[::every][:REPORTED_EXAMPLES]
    size = task.config.micro_batch_records
    return lambda model: mean_loss(model, chosen, task.loss, size)


def _epsilon_so_far(task: TrainingTask, mechanism: DpSgdMechanism) -> Callable[[int], float]:
    """ε of the first t steps alone, by the cohort's accountant; a reading, all T are charged."""
    event, terms = mechanism.event(), task.terms

    @cache
    def read(step: int) -> float:
        if step == event.steps and task.plan.epsilon is not None:
            return task.plan.epsilon
        return epsilon_of([replace(event, steps=step)], terms.delta, terms.accountant)

    return read


def _facts(
    task: TrainingTask,
    mechanism: DpSgdMechanism,
    settings: FineTuningSettings,
    facts: FineTuningFacts,
) -> dict[str, Any]:
    return {
        "steps": facts.steps,
        "trained_parameters": facts.parameters,
        "noise_multiplier": mechanism.noise_multiplier,
        "sampling_probability": mechanism.sampling_probability,
        "expected_batch_size": mechanism.expected_batch_size,
        "clip_bound": mechanism.l2_bound,
        "learning_rate": settings.learning_rate,
        "start": task.start,
        "public_losses": [[step, round(loss, 4)] for step, loss in facts.public_losses],
    }
