"""Whether a model can be trained at all: found out on public examples, before any charge."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.fine_tuning.losses import ExampleLoss
from dpsynth_assets.privacy.per_example import (
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
    in_company: bool = False,
) -> None:
    """Clips the gradients of some public examples, as a step of the private run would.

    Args:
        model: As the private run will start; its weights are left as they were.
        public_examples: PUBLIC or made up: at least two, of different lengths, the longest as long
            as any that will come.
        loss: Losses of single examples.
        l2_bound: C of the private run.
        in_company: Whether records may share passes on the strength of float32's own slack.

    Raises:
        TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
        ValueError: If the examples do not fit the model, or their losses are not numbers, or passes
            of several records need a declared slack.

    **Privacy** Reads nothing private, and nothing that it computes is kept.
    """
    import torch

    def losses(model: Any) -> "torch.Tensor":
        found = loss(model, public_examples)
        if not bool(torch.isfinite(found).all()):
            raise ValueError(
                "Expected finite losses of public examples, got others. Check the model's weights."
            )
        return found

    if in_company:
        refuse_undeclared_slack(model)
    model.eval()
    part = LossOfPart(len(public_examples), losses)
    PerExampleGradients(model).private_clipped_sums([part], l2_bound)
