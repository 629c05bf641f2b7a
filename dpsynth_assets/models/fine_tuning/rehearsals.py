"""Trials on public examples before any charge: can a model be trained, and at which rate."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.fine_tuning.sources import ExampleLoss, FineTuningSettings, micro_batches
from dpsynth_assets.models.fine_tuning.training import ProgressCallback, fine_tune_privately
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    refuse_undeclared_slack,
)

if TYPE_CHECKING:
    import torch

CANDIDATES = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3)
HELD_OUT_SHARE = 0.2
MINIMUM_EXAMPLES = 5
"""Public examples below which nothing could be held out."""


def refuse_untrainable(
    model: Any,
    public_examples: Sequence[Any],
    loss: ExampleLoss,
    l2_bound: float,
    *,
    shared_passes: bool = False,
    slack: float | None = None,
) -> None:
    """Clips the gradients of some public examples, as a step of the private run would.

    Args:
        model: As the private run will start; its weights are left as they were.
        public_examples: PUBLIC or made up: at least two, of different lengths, the longest as long
            as any that will come.
        loss: Losses of single examples.
        l2_bound: C of the private run.
        shared_passes: Whether records may share passes on the strength of float32's own slack.
        slack: What records that share a pass may move of one clipped gradient, as a share of C, as
            it is charged; None: float32's own where passes are shared, else each is alone.

    Raises:
        TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
        ValueError: If the examples do not fit the model, or their losses are not numbers, or passes
            of several records need a declared slack, or records that share a pass move one
            another's gradients by more than it.

    **Privacy** Reads nothing private, and nothing that it computes is kept.
    """
    import torch

    def losses(examples: Sequence[Any], model: Any) -> "torch.Tensor":
        found = loss(model, examples)
        if not bool(torch.isfinite(found).all()):
            raise ValueError(
                "Expected finite losses of public examples, got others. Check the model's weights."
            )
        return found

    if shared_passes:
        refuse_undeclared_slack(model)
    model.eval()
    together = [LossOfPart(len(public_examples), partial(losses, public_examples))]
    gradients = PerExampleGradients(model)
    sums, _ = gradients.private_clipped_sums(together, l2_bound)
    if shared_passes and slack is None:
        slack = GRADIENT_SLACK
    if slack is not None:
        one_by_one = [LossOfPart(1, partial(losses, [each])) for each in public_examples]
        alone, _ = gradients.private_clipped_sums(one_by_one, l2_bound)
        _refuse_influence(_distance(sums, alone) / l2_bound, slack * len(public_examples))


def _distance(some: "Sequence[torch.Tensor]", others: "Sequence[torch.Tensor]") -> float:
    """Euclidean distance over all parameters together."""
    squares = [float((a - b).square().sum()) for a, b in zip(some, others, strict=True)]
    return math.sqrt(math.fsum(squares))


def _refuse_influence(moved: float, allowed: float) -> None:
    """Refuses shared passes where records move a sum by more than the slack of its gradients."""
    if not moved <= allowed:
        raise ValueError(
            "Expected records that share a pass to move the sum of their clipped gradients by at "
            f"most {allowed:.1e} of the bound, got {moved:.1e} on public text: a layer mixes "
            "examples, or rounds more than is charged. Set exact_sums: true, which processes "
            "each record alone, or use another model."
        )


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
) -> float:
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

    Returns:
        The candidate of the lowest loss on held-out public examples.

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
    return min(losses, key=lambda rate: (losses[rate], rate))


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
