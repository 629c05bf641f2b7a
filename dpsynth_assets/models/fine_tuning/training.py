"""Trains a model: DP-Adam on private examples, and Adam on public ones.

Both run the same loop on gradients from another source.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.fine_tuning.checkpoints import Kept, RunCheckpoint, RunState
from dpsynth_assets.models.fine_tuning.losses import ExampleLoss
from dpsynth_assets.models.fine_tuning.reports import (
    EpsilonSoFar,
    ProgressCallback,
    PublicEvaluation,
    PublicLoss,
    Reports,
)
from dpsynth_assets.models.fine_tuning.settings import FineTuningSettings
from dpsynth_assets.models.fine_tuning.sources import (
    GradientSource,
    PlainGradients,
    PlainSampling,
    PrivateGradients,
)
from dpsynth_assets.models.fine_tuning.split import SplitExamples, SplitGradients
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.per_example import opacus_layers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FineTuningFacts:
    """Public result of a run: nothing here was read from private examples.

    Attributes:
        steps: T.
        resumed_at: Steps that an earlier, interrupted start had done.
        parameters: Numbers that were trained.
        public_losses: (step, loss on public text) after public steps, the same for every start.
        opacus_layers: Layers whose per-example gradients Opacus computed, each with its class.
    """

    steps: int
    resumed_at: int
    parameters: int
    public_losses: tuple[PublicLoss, ...]
    opacus_layers: tuple[str, ...] = ()


def fine_tune_privately(  # noqa: PLR0913  a run has these parts
    model: Any,
    private_examples: Sequence[Any] | SplitExamples,
    loss: ExampleLoss,
    mechanism: DpSgdMechanism,
    settings: FineTuningSettings,
    checkpoint: RunCheckpoint | None = None,
    public_evaluation: PublicEvaluation | None = None,
    progress: ProgressCallback | None = None,
    *,
    epsilon_so_far: EpsilonSoFar | None = None,
) -> FineTuningFacts:
    """Trains the model's trainable parameters by DP-Adam, in place.

    Args:
        model: A transformers model on any device, possibly with adapters.
        private_examples: n examples, whatever `loss` takes; or those that lie with workers, for
            settings and a mechanism of exact sums.
        loss: Losses of single examples.
        mechanism: Fresh, and charged for all its steps.
        settings: Of AdamW, micro-batches and checkpoints.
        checkpoint: Where an unfinished run keeps its state; a run that has one resumes from it.
            Without it, nothing is reported before the end, and a killed run is lost.
        public_evaluation: Loss of the model on PUBLIC text, reported in `progress`.
        progress: Called with the share done after public steps, losses only once a checkpoint holds
            them.
        epsilon_so_far: ε of the first t steps, from the accountant, reported in `progress`.

    Returns:
        Public facts.

    Raises:
        TypeError: If the model has a trainable parameter that cannot be clipped by example, by
            ours or by Opacus.
        ValueError: If the checkpoint is of another run.
        UnaccountedReleaseError: If the mechanism was used before.

    **Privacy** The model after the run is post-processing of the mechanism's T gradients. Nothing
    else is read from private examples: no validation loss, no early stopping, no batch sizes.
    Checkpoints go by the clock and are nobody's to see; losses and lines go by public steps.
    Whoever can watch the clock sees how long a batch takes, hence roughly how large it is.

    **Source** CTCL, section 4.1.3 and appendix A: DP-Adam (Li et al. 2022) with clip 1, with the
    Poisson batches its accounting assumes (errata B-002.1).
    """
    source: GradientSource
    if isinstance(private_examples, SplitExamples):
        source = SplitGradients(mechanism=mechanism, settings=settings)
    else:
        source = PrivateGradients(mechanism=mechanism, loss=loss, settings=settings)
    charge = {
        "event": event_to_json(mechanism.event()),
        "l2_bound": mechanism.l2_bound,
        "expected_batch_size": mechanism.expected_batch_size,
    }
    reports = Reports(source.steps, progress, public_evaluation, epsilon_so_far)
    layers = opacus_layers(model)
    if layers and progress is not None:
        progress(0.0, f"per-record gradients of {_several(layers)} computed by Opacus")
    facts = _run(model, private_examples, source, settings, charge, checkpoint, reports)
    return dataclasses.replace(facts, opacus_layers=layers)


def fine_tune(
    model: Any,
    examples: Sequence[Any],
    loss: ExampleLoss,
    sampling: PlainSampling,
    settings: FineTuningSettings,
    checkpoint: RunCheckpoint | None = None,
    public_evaluation: PublicEvaluation | None = None,
    progress: ProgressCallback | None = None,
) -> FineTuningFacts:
    """Trains as `fine_tune_privately` does, without privacy: on public or synthetic examples.

    Args:
        model: A transformers model.
        examples: Public examples, or private ones for a reference at ε = ∞.
        loss: Losses of single examples.
        sampling: Steps and batch size.
        settings: As there; `products` is not used.
        checkpoint: As there.
        public_evaluation: As there.
        progress: As there.

    Raises:
        ValueError: If there are no examples, or the checkpoint is of another run.
    """
    if not len(examples):
        raise ValueError("Expected at least one example to train on, got none.")
    source = PlainGradients(sampling, loss, settings)
    charge = {"sampling": dataclasses.asdict(sampling)}
    reports = Reports(source.steps, progress, public_evaluation)
    return _run(model, examples, source, settings, charge, checkpoint, reports)


def _run(
    model: Any,
    examples: Sequence[Any] | SplitExamples,
    source: GradientSource,
    settings: FineTuningSettings,
    charge: Mapping[str, Any],
    checkpoint: RunCheckpoint | None,
    reports: Reports,
) -> FineTuningFacts:
    """Runs what is left of T steps; what a step reports is saved with it and only then reported."""
    optimizer = _adamw(model, settings)
    state = RunState(model, optimizer, {**charge, "settings": _lasting(settings)})
    kept = Kept() if checkpoint is None else state.load(checkpoint)
    source.resume_at(kept.step)
    reports.resume(kept.public_losses)
    step, due = kept.step, _Due(settings)
    model.train(settings.dropout)
    remaining = source.gradients(model, examples) if step < source.steps else ()
    for parameters, gradients in remaining:
        _update(optimizer, parameters, gradients, settings.rate(step, source.steps))
        step += 1
        measured, finished = reports.measure(model, step), step == source.steps
        if checkpoint is not None and (due.now() or measured or finished):
            state.save(checkpoint, Kept(step, tuple(reports.public_losses)))
            due.restart()
        if checkpoint is not None or finished:
            reports.tell(step)
        model.train(settings.dropout)
    if step == kept.step:  # An earlier start did all of them.
        reports.tell(step)
    model.eval()
    return FineTuningFacts(
        steps=source.steps,
        resumed_at=kept.step,
        parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        public_losses=tuple(reports.public_losses),
    )


def _several(layers: Sequence[str]) -> str:
    """The number of layers and the name of the first."""
    count = len(layers)
    return layers[0] if count == 1 else f"{count} layers, the first of which is {layers[0]},"


class _Due:
    """Says whether it is time for a checkpoint."""

    def __init__(self, settings: FineTuningSettings) -> None:
        self._settings = settings
        self.restart()

    def restart(self) -> None:
        """A checkpoint was saved."""
        self._steps, self._since = 0, time.monotonic()

    def now(self) -> bool:
        """Counts one step; True once enough steps or seconds have passed since the last one."""
        self._steps += 1
        every = self._settings.checkpoint_steps
        late = time.monotonic() - self._since >= self._settings.checkpoint_seconds
        return late or (every is not None and self._steps >= every)


def _adamw(model: Any, settings: FineTuningSettings) -> "torch.optim.Optimizer":
    """AdamW with decoupled decay over every trainable parameter; fused, hence without copies."""
    import torch

    return torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _update(
    optimizer: "torch.optim.Optimizer",
    parameters: "Sequence[torch.Tensor]",
    gradients: "Sequence[torch.Tensor]",
    rate: float,
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _lasting(settings: FineTuningSettings) -> dict[str, Any]:
    """The settings that the result depends on: a resumed run may save at other times."""
    found = dataclasses.asdict(settings)
    for name in ("checkpoint_steps", "checkpoint_seconds", "micro_batch", "threads"):
        del found[name]
    return found
