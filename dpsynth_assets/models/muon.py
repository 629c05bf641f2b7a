"""Muon: momentum whose every update is made orthogonal. For the matrices inside a transformer.

Matrices of one shape, lying or standing, are orthogonalised together: a small model has many small
matrices, and one batched product for all of them costs a fraction of one product each.

**Source**: K. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the
quintic Newton-Schulz coefficients are theirs.
"""

from collections import defaultdict
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
                by_shape = defaultdict(list)
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        by_shape[tuple(sorted(parameter.shape))].append(parameter)
                for same_shape in by_shape.values():
                    self._update(same_shape, group["lr"])

        def _update(self, parameters: list[Any], rate: float) -> None:
            momenta = torch.stack([_lying(self._nesterov(parameter)) for parameter in parameters])
            for parameter, direction in zip(parameters, orthogonalize(momenta), strict=True):
                rows, columns = parameter.shape
                scale = max(1.0, rows / columns) ** 0.5
                _lying(parameter).add_(direction, alpha=-rate * scale)

        def _nesterov(self, parameter: Any) -> Any:
            state = self.state[parameter]
            buffer = state.setdefault("momentum", torch.zeros_like(parameter))
            buffer.mul_(momentum).add_(parameter.grad)
            return parameter.grad.add(buffer, alpha=momentum)

    return _Muon(list(parameters), {"lr": learning_rate})


def _lying(matrix: Any) -> Any:
    """Views a matrix with no more rows than columns."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def orthogonalize(matrices: Any, steps: int = 5) -> Any:
    """Pushes singular values towards 1 by Newton-Schulz iterations.

    Args:
        matrices: One matrix [m, n], or a stack of matrices [k, m, n].
        steps: Iterations.
    """
    import torch

    first, second, third = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    result = (matrices.mT if tall else matrices).reshape(-1, *sorted(matrices.shape[-2:]))
    result = result / (result.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = result @ result.mT
        # sums ride on the products: on a CPU half the time went into adding what was multiplied
        polynomial = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        result = torch.baddbmm(result, polynomial, result, beta=first)
    return (result.mT if tall else result).reshape(matrices.shape)
