"""Public examples: can a model be trained on such, before any charge, and its loss on them."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.fine_tuning.sources import ExampleLoss, micro_batches
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    refuse_undeclared_slack,
)

if TYPE_CHECKING:
    import torch


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
        squares = [float((a - b).square().sum()) for a, b in zip(sums, alone, strict=True)]
        moved, allowed = math.sqrt(math.fsum(squares)) / l2_bound, slack * len(public_examples)
        if not moved <= allowed:
            raise ValueError(
                "Expected records that share a pass to move the sum of their clipped gradients by "
                f"at most {allowed:.1e} of the bound, got {moved:.1e} on public text: a layer "
                "mixes examples, or rounds more than is charged. Set exact_sums: true, which "
                "processes each record alone, or use another model."
            )


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
