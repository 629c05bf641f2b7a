"""A learning rate from public text alone: the private run rehearsed with its own noise."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.models.fine_tuning.losses import ExampleLoss
from dpsynth_assets.models.fine_tuning.reports import ProgressCallback
from dpsynth_assets.models.fine_tuning.settings import FineTuningSettings
from dpsynth_assets.models.fine_tuning.sources import micro_batches
from dpsynth_assets.models.fine_tuning.training import fine_tune_privately
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.units import NeighboringRelation

CANDIDATES = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
HELD_OUT_SHARE = 0.2
MINIMUM_EXAMPLES = 5
"""Public examples below which nothing could be held out."""


@dataclass(frozen=True, kw_only=True)
class LearningRateChoice:
    """Findings of a rehearsal; public.

    Attributes:
        learning_rate: The rate of the lowest loss.
        losses: Loss on held-out public examples after each candidate's rehearsal.
    """

    learning_rate: float
    losses: dict[float, float]


def public_learning_rate(  # noqa: PLR0913  the run it rehearses has these parts
    model: Any,
    public_examples: Sequence[Any],
    loss: ExampleLoss,
    mechanism: DpSgdMechanism,
    settings: FineTuningSettings,
    *,
    candidates: Sequence[float] = CANDIDATES,
    steps: int = 50,
    batch_size: int = 64,
    progress: ProgressCallback | None = None,
) -> LearningRateChoice:
    """Picks a peak rate by rehearsing the run on public examples, with the noise of the real one.

    A rehearsal takes fewer steps and smaller batches; its mean gradients get noise of the same
    absolute size, σ C / (expected batch size). Every fifth example is held out.

    Args:
        model: As the private run will start; it is left as it was.
        public_examples: Public, like the private ones; at least five.
        loss: Losses of single examples.
        mechanism: The private run's; only its public numbers are read.
        settings: The private run's; its rate is not used.
        candidates: Peak rates.
        steps: Steps of one rehearsal.
        batch_size: Expected examples of its batches.
        progress: Called with the share done and the loss on public text.

    Raises:
        ValueError: If there are too few examples or no candidates.

    **Privacy** Reads nothing private and costs nothing.

    **Source** Replaces the choice on private validation data of CTCL, section 4.1.3, which its
    accounting leaves out (errata B-002.5).
    """
    if len(public_examples) < MINIMUM_EXAMPLES or not candidates:
        raise ValueError(
            f"Expected at least {MINIMUM_EXAMPLES} public examples and a candidate, got fewer."
        )
    every = round(1 / HELD_OUT_SHARE)
    held_out = public_examples[::every]
    training = [each for index, each in enumerate(public_examples) if index % every]
    start = _snapshot(model)
    losses: dict[float, float] = {}
    for number, rate in enumerate(candidates):
        rehearsed = dataclasses.replace(settings, learning_rate=rate)
        run = _rehearsal(mechanism, len(training), batch_size, steps)
        fine_tune_privately(model, training, loss, run, rehearsed)
        losses[rate] = mean_loss(model, held_out, loss, settings.micro_batch)
        _restore(model, start)
        if progress is not None:
            share = (number + 1) / len(candidates)
            progress(share, f"learning rate {rate:g}: public loss {losses[rate]:.3f}")
    best = min(losses, key=lambda rate: (losses[rate], rate))
    return LearningRateChoice(learning_rate=best, losses=losses)


def mean_loss(model: Any, public_examples: Sequence[Any], loss: ExampleLoss, size: int) -> float:
    """Computes the mean loss of public examples, infinite where it is not a number."""
    import numpy as np
    import torch

    model.eval()
    everyone = np.arange(len(public_examples))
    with torch.no_grad():
        parts = micro_batches(public_examples, everyone, loss, size)
        total = sum(float(loss(model, part).double().sum()) for part in parts)
    mean = total / len(public_examples)
    return mean if np.isfinite(mean) else float("inf")


def _rehearsal(
    mechanism: DpSgdMechanism, examples: int, batch_size: int, steps: int
) -> DpSgdMechanism:
    """A mechanism of smaller batches whose noisy mean gradients are as noisy."""
    expected = min(batch_size, examples)
    return DpSgdMechanism(
        l2_bound=mechanism.l2_bound,
        noise_multiplier=mechanism.noise_multiplier * expected / mechanism.expected_batch_size,
        sampling_probability=expected / examples,
        steps=steps,
        expected_batch_size=expected,
        relation=NeighboringRelation.ADD_REMOVE,
        most_in_company=examples if mechanism.most_in_company else 0,
        gradient_slack=mechanism.gradient_slack,
    )


def _snapshot(model: Any) -> dict[str, Any]:
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    return {name: copy.deepcopy(each.detach()) for name, each in trained.items()}


def _restore(model: Any, start: dict[str, Any]) -> None:
    import torch

    trained = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in start.items():
            trained[name].copy_(values)
