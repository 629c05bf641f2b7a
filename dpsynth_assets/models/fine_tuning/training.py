"""Trains a model by DP-Adam on private examples, and reports at public steps alone.

An unfinished run keeps its state on disk: trained parameters, moments of AdamW, steps, losses and
charge. Frozen parameters are not kept: they are public, and come with the model that a run starts
from.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.files.whole import Checkpoint
from dpsynth_assets.models.fine_tuning.sources import (
    ExampleLoss,
    FineTuningSettings,
    SplitExamples,
    private_gradients,
)
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.per_example import opacus_layers, trainable_parameters

if TYPE_CHECKING:
    import torch

STATE_FILE = "state.json"
TENSORS_FILE = "tensors.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")

PublicLoss = tuple[int, float]
"""A number of finished steps, and the loss on public text after them."""


@dataclass(frozen=True)
class RunState:
    """One model and optimizer whose state can be written and read back.

    Attributes:
        model: Trainable parameters are saved under their names.
        optimizer: AdamW over exactly those parameters.
        charge: What the run is charged for and how it trains (JSON): resuming under another
            charge is refused.
    """

    model: Any
    optimizer: "torch.optim.Optimizer"
    charge: Mapping[str, Any]

    def save(self, checkpoint: Checkpoint, step: int, losses: Sequence[PublicLoss]) -> None:
        """Saves the state after a step, and the losses measured until then."""
        from safetensors.torch import save_file

        tensors = {}
        for name, parameter in trainable_parameters(self.model).items():
            tensors[f"model.{name}"] = parameter.detach().cpu().contiguous()
            for moment in MOMENTS:
                if moment in self.optimizer.state[parameter]:
                    value = self.optimizer.state[parameter][moment]
                    tensors[f"{moment}.{name}"] = value.cpu().contiguous()
        state = {"step": step, "public_losses": losses, "charge": dict(self.charge)}
        content = json.dumps(state, indent=2) + "\n"

        def write(folder: Path) -> None:
            save_file(tensors, folder / TENSORS_FILE)
            (folder / STATE_FILE).write_text(content, encoding="utf-8")

        checkpoint.save(checkpoint.filled(write))

    def load(self, checkpoint: Checkpoint | None) -> tuple[int, list[PublicLoss]]:
        """Reads the last checkpoint back: finished steps, and losses; none at the first start.

        Raises:
            ValueError: If it belongs to a run with another charge, settings or model.
        """
        import torch
        from safetensors import safe_open

        folder = None if checkpoint is None else checkpoint.saved
        if folder is None:
            return 0, []
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if state["charge"] != json.loads(json.dumps(dict(self.charge))):
            raise ValueError(
                "Expected a checkpoint of this run, got one with another charge or other settings. "
                "Restore the settings it was started with."
            )
        step = int(state["step"])
        with safe_open(folder / TENSORS_FILE, "pt") as file, torch.no_grad():
            for name, parameter in trainable_parameters(self.model).items():
                parameter.copy_(file.get_tensor(f"model.{name}"))
                if step:
                    found = {moment: file.get_tensor(f"{moment}.{name}") for moment in MOMENTS}
                    found["step"] = torch.tensor(float(step))
                    device = parameter.device
                    self.optimizer.state[parameter] = {k: v.to(device) for k, v in found.items()}
        return step, [(int(at), float(loss)) for at, loss in state["public_losses"]]


ProgressCallback = Callable[[float, str], None]
PublicEvaluation = Callable[[Any], float]

LINES = 20
"""Lines a run tells, at most and evenly spaced: progress in twentieths, which cost nothing."""
LOSSES = 5
"""Losses on public text a run measures, at most and evenly spaced, the last after its last step.

Each costs an evaluation and a checkpoint of three float32 a trained
parameter: 13 MB and 0.03 s for the demo's generator, 1.7 GB for CTCL's of 140 million, 12 GB and
half a minute of disk for a billion. Five of them are little beside any training; twenty would be a
tenth of the demo's."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Of AdamW: decay of the first and second moments, and what is added to the root of the second."""


@dataclass(frozen=True, kw_only=True)
class FineTuningFacts:
    """Public result of a run: nothing here was read from private examples.

    Attributes:
        steps: T.
        resumed_at: Steps that an earlier, interrupted start had done.
        parameters: Numbers that were trained.
        public_losses: (step, loss on public text) after public steps, the same for every start.
    """

    steps: int
    resumed_at: int
    parameters: int
    public_losses: tuple[PublicLoss, ...]


def fine_tune_privately(
    model: Any,
    private_examples: Sequence[Any] | SplitExamples,
    loss: ExampleLoss,
    mechanism: DpSgdMechanism,
    settings: FineTuningSettings,
    checkpoint: Checkpoint | None = None,
    public_evaluation: PublicEvaluation | None = None,
    progress: ProgressCallback | None = None,
) -> FineTuningFacts:
    """Trains the model's trainable parameters by DP-Adam, in place.

    Args:
        model: A transformers model on any device, possibly with adapters.
        private_examples: n examples, in the form that `loss` takes; or those that lie with workers,
            for settings and a mechanism of exact sums.
        loss: Losses of single examples.
        mechanism: Fresh, and charged for all its steps.
        settings: Of AdamW, micro-batches and checkpoints.
        checkpoint: Where an unfinished run keeps its state; a run that has one resumes from it.
            Without it, nothing is reported before the end, and a killed run is lost.
        public_evaluation: Loss of the model on PUBLIC text, reported in `progress`.
        progress: Called with the share done after public steps, losses only once a checkpoint holds
            them.

    Returns:
        Public facts.

    Raises:
        TypeError: If the model has a trainable parameter that cannot be clipped by example, by
            ours or by Opacus.
        ValueError: If the checkpoint is of another run.
        UnaccountedReleaseError: If the mechanism was used before.

    **Privacy** The model after the run is post-processing of the mechanism's T gradients. Nothing
    else is read from private examples: no validation loss, no early stopping, no batch sizes.
    Checkpoints go by the clock and are not shown; losses and lines go by public steps.
    An observer with a clock sees how long a batch takes, hence roughly how large it is.

    **Source** CTCL, section 4.1.3 and appendix A: DP-Adam (Li et al. 2022) with clip 1, with the
    Poisson batches its accounting assumes (errata B-002.1).
    """
    reports = Reports(mechanism.steps, progress, public_evaluation)
    layers = opacus_layers(model)
    if layers and progress is not None:
        progress(0.0, f"per-record gradients of {_several(layers)} computed by Opacus")
    optimizer, steps = _adamw(model, settings), mechanism.steps
    state = RunState(model, optimizer, _charge(mechanism, settings))
    resumed_at, reports.public_losses = state.load(checkpoint)  # every start tells the same
    mechanism.resume_at(resumed_at)
    step, saved = resumed_at, time.monotonic()
    model.eval()
    source = private_gradients(model, private_examples, loss, mechanism, settings)
    for parameters, gradients in source if step < steps else ():
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step, steps)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        measured, finished = reports.measure(model, step), step == steps
        due = time.monotonic() - saved >= settings.checkpoint_seconds
        if checkpoint is not None and (due or measured or finished):
            state.save(checkpoint, step, reports.public_losses)
            saved = time.monotonic()
        if checkpoint is not None or finished:
            reports.tell(step)
    if step == resumed_at:  # An earlier start did all of them.
        reports.tell(step)
    return FineTuningFacts(
        steps=steps,
        resumed_at=resumed_at,
        parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        public_losses=tuple(reports.public_losses),
    )


def _several(layers: Sequence[str]) -> str:
    """The number of layers and the name of the first."""
    count = len(layers)
    return layers[0] if count == 1 else f"{count} layers, the first of which is {layers[0]},"


def _charge(mechanism: DpSgdMechanism, settings: FineTuningSettings) -> dict[str, Any]:
    """What a run is charged for and all settings that its result depends on.

    A resumed run may save at other times.
    """
    lasting = dataclasses.asdict(settings)
    for name in ("checkpoint_seconds", "micro_batch"):
        del lasting[name]
    return {
        "event": event_to_json(mechanism.event()),
        "l2_bound": mechanism.l2_bound,
        "expected_batch_size": mechanism.expected_batch_size,
        "settings": lasting,
    }


def _adamw(model: Any, settings: FineTuningSettings) -> "torch.optim.Optimizer":
    """AdamW with decoupled decay over every trainable parameter; fused, hence without copies."""
    import torch

    return torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad],
        lr=settings.learning_rate,
        betas=_BETAS,
        eps=_EPSILON,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def public_steps(steps: int, times: int) -> frozenset[int]:
    """Steps of a run of T after which something happens: multiples of ⌈T / times⌉, and T.

    **Privacy** A function of T alone. Steps picked by a clock would tell the private number of
    records: a step takes as long as its batch, which holds q n of them on average.
    """
    every = max(1, -(-steps // times))
    return frozenset({*range(every, steps + 1, every), steps})


@dataclass
class Reports:
    """Measures and tells at public steps of one run.

    **Privacy** A loss is post-processing of the gradients before it, but of those that were drawn:
    a run killed before they were saved draws others, and both must not be seen. So a loss is
    measured, saved with the step it belongs to, and only then reported. Numbers of steps depend on
    no draw and are reported at once. An observer with a clock sees when.

    Attributes:
        steps: T.
        progress: Called with the share done and a line.
        evaluate: Loss of the model on PUBLIC text.
        public_losses: Losses so far, those of a killed run included.
    """

    steps: int
    progress: ProgressCallback | None = None
    evaluate: PublicEvaluation | None = None
    public_losses: list[PublicLoss] = field(default_factory=list)

    def _is_measured(self, step: int) -> bool:
        return step in public_steps(self.steps, LOSSES)

    def measure(self, model: Any, step: int) -> bool:
        """Evaluates after a public step; True if a loss must be saved before it is reported."""
        if self.evaluate is None or not self._is_measured(step):
            return False
        import torch

        with torch.no_grad():
            self.public_losses.append((step, float(self.evaluate(model))))
        return True

    def tell(self, step: int) -> None:
        """Reports `step` finished steps, where it is a public step."""
        told = self._is_measured(step) or step in public_steps(self.steps, LINES)
        if self.progress is None or not told:
            return
        line = f"step {step} of {self.steps}"
        if self.public_losses:
            at, loss = self.public_losses[-1]
            told_then = f"public loss {loss:.3f}"
            line += f", {told_then}" if at == step else f" (at step {at}: {told_then})"
        self.progress(step / max(1, self.steps), line)
