"""Runs a planned private training: the mechanism, the learning rate, and what may be reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpsynth_assets.methods.base import CohortTerms, MethodPlan, ProgressCallback
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.fine_tuning.plan import planned_mechanism
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.staged import Checkpoint
from dpsynth_assets.models.fine_tuning import (
    ExampleLoss,
    FineTuningFacts,
    FineTuningSettings,
    fine_tune_privately,
    public_learning_rate,
)
from dpsynth_assets.models.fine_tuning.learning_rate import mean_loss
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism

CANDIDATE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Peak rates that a rehearsal tries: large models take the first ones, embedded ones the last."""


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
        progress: Told steps, ε so far of what is planned, and the loss on public text.

    Returns:
        Public facts of the run.

    **Privacy** The planned event and no more: the learning rate comes from settings or from public
    text, and what is reported was computed on public text.
    """
    mechanism = planned_mechanism(task.stage, task.plan, task.config, task.terms)
    settings = _settings(task, _learning_rate(task, model, mechanism))
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


def _learning_rate(task: TrainingTask, model: Any, mechanism: DpSgdMechanism) -> float:
    """The declared rate, or the best of a rehearsal, remembered so that a resumed run keeps it.

    Raises:
        ValueError: If a rehearsal is needed and there is no public text.
    """
    if task.config.learning_rate is not None:
        return task.config.learning_rate
    if not len(task.public_examples):
        raise ValueError(
            "Expected public text to choose a learning rate on, got none. Give learning_rate."
        )

    def rehearse() -> float:
        found = public_learning_rate(
            model,
            task.public_examples,
            task.loss,
            mechanism,
            _settings(task, 1.0),
            candidates=CANDIDATE_RATES,
            steps=min(task.config.steps, 50),
        )
        return found.learning_rate

    key = {
        "rehearsal": task.config.model_dump(mode="json"),
        "noise_multiplier": mechanism.noise_multiplier,
        "start": task.start,
    }
    return float(remembered(key, rehearse))


def _settings(task: TrainingTask, learning_rate: float) -> FineTuningSettings:
    config = task.config
    return FineTuningSettings(
        learning_rate=learning_rate,
        warmup_steps=round(config.warmup_share * config.steps),
        weight_decay=config.weight_decay,
        micro_batch=config.micro_batch_records,
        checkpoint_seconds=60.0 * config.checkpoint_minutes,
    )


def _public_loss(task: TrainingTask) -> Callable[[Any], float] | None:
    if not len(task.public_examples):
        return None
    size = task.config.micro_batch_records
    return lambda model: mean_loss(model, task.public_examples, task.loss, size)


def _epsilon_so_far(task: TrainingTask, mechanism: DpSgdMechanism) -> Callable[[int], float]:
    """ε of the first t steps alone, by the cohort's accountant; a reading, all T are charged."""
    event, terms = mechanism.event(), task.terms
    return lambda step: epsilon_of([replace(event, steps=step)], terms.delta, terms.accountant)


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
