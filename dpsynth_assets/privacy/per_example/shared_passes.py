"""Bounds on how far records that share a pass may move one another's clipped gradients.

Shape letters: M records that may share a pass, B of a batch.
"""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GRADIENT_SLACK = 2.0**-16
"""Largest move of one record's clipped gradient, as a share of the clip bound, that is charged for
float32 where nothing is declared: at least eight times the largest that
`benchmarks/gradient_slack.py` found, over parts of 1 to 32 records of all lengths. Layers that
Opacus works on are not among these: they are measured on public text before the charge."""

MOST_KEPT_BACK = 0.25
"""Largest M · slack: where more of the bound would be kept back, records pass alone instead."""


def most_in_company(expected_batch_size: float, slack: float) -> int:
    """Chooses M, the records of a batch up to which they may share passes; 0 for never.

    Args:
        expected_batch_size: Records a step is expected to draw; public.
        slack: Largest move of a record's clipped gradient, as a share of the bound.

    **Privacy** M is a public number and no estimate: a batch of more records is passed one record
    at a time (`DpSgdMechanism`), however many there are. Six deviations above the expected size
    make that rare.
    """
    most = math.ceil(expected_batch_size + 6.0 * math.sqrt(expected_batch_size)) + 8
    return most if most * slack <= MOST_KEPT_BACK else 0


def refuse_undeclared_slack(model: "torch.nn.Module", *, autocast: bool = False) -> None:
    """Refuses passes of several records for which the slack of float32 is not known to hold.

    Args:
        model: As it will be trained.
        autocast: Whether passes run in bfloat16.

    Raises:
        ValueError: If passes are less precise than float32, or positions follow the longest record.
    """
    kind = _less_precise(model, autocast)
    if kind is not None:
        raise ValueError(
            f"Expected a declared gradient_slack for passes of several records in {kind}, got "
            "none: that of float32 does not hold. Set exact_sums: true, which passes each record "
            "alone, or declare what was measured."
        )
    config: Any = getattr(model, "config", None)
    positions = str(getattr(config, "rope_parameters", None))
    if "longrope" in positions or "dynamic" in positions:
        raise ValueError(
            "Expected positions that do not follow the longest record of a pass, got a model of "
            "dynamic positions (rope_parameters). Set exact_sums: true, which passes each record "
            "alone."
        )


def _less_precise(model: "torch.nn.Module", autocast: bool) -> str | None:
    """The type that products of a pass are rounded to, where it is less precise than float32."""
    import torch

    if autocast:
        return "bfloat16"
    parameters = list(model.parameters())
    small = {each.dtype for each in parameters if each.is_floating_point()}
    small -= {torch.float32, torch.float64}
    if small:
        return str(small.pop()).removeprefix("torch.")
    on_device = any(each.is_cuda for each in parameters)
    coarse = torch.get_float32_matmul_precision() != "highest"
    return "TF32" if on_device and coarse else None
