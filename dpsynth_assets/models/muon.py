"""Muon: momentum whose every update is made orthogonal. For the matrices inside a transformer.

**Source**: K. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the
quintic Newton-Schulz coefficients are theirs.
"""

from collections.abc import Iterable
from typing import Any

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def Muon(parameters: Iterable[Any], learning_rate: float, momentum: float = 0.95) -> Any:  # noqa: N802
    """An optimizer over 2-D parameters; a function, so that torch loads only when called."""
    import torch

    class _Muon(torch.optim.Optimizer):
        """Nesterov momentum, orthogonalised, scaled by the shape of the matrix."""

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
            """Updates every parameter that has a gradient."""
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group["lr"])

        def _update(self, parameter: Any, rate: float) -> None:
            state = self.state[parameter]
            buffer = state.setdefault("momentum", torch.zeros_like(parameter))
            buffer.mul_(momentum).add_(parameter.grad)
            direction = orthogonalize(parameter.grad.add(buffer, alpha=momentum))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.add_(direction, alpha=-rate * scale)

    return _Muon(list(parameters), {"lr": learning_rate})


def orthogonalize(matrix: Any, steps: int = 5) -> Any:
    """Pushes the singular values of a matrix [m, n] towards 1 by Newton-Schulz iterations."""
    first, second, third = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if tall else matrix
    result = result / (result.norm() + 1e-7)
    for _ in range(steps):
        gram = result @ result.T
        result = first * result + (second * gram + third * gram @ gram) @ result
    return result.T if tall else result
