"""Gradients of a public training batch, its parts worked on side by side by CPU threads.

Each thread takes its part of the batch through forward and backward pass alone, and they meet once
a step. For models that are trained on public or released text only; private gradients are
`privacy.dp_sgd`'s.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.cpu import one_thread_each

if TYPE_CHECKING:
    import torch


class ShardedGradients:
    """Fills in `.grad` of a model's parameters; equal parts give equal bits.

    The model's forward pass must draw nothing (no dropout): threads would share one generator.
    """

    def __init__(self, model: Any, workers: Executor) -> None:
        """Takes the trainable parameters of a model; see `open_shards`."""
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._workers = workers

    def fill(
        self,
        parts: Sequence[Any],
        total_loss: "Callable[[Any], torch.Tensor]",
        count: int,
    ) -> float:
        """Sets every gradient to that of the mean loss, replacing what was there.

        Args:
            parts: The batch, cut into disjoint parts.
            total_loss: Sum of the losses of a part, a scalar that every parameter has a part in.
            count: Losses in all parts together: what the mean divides by.

        Returns:
            The mean loss.
        """

        def differentiate(part: Any) -> "tuple[float, tuple[torch.Tensor, ...]]":
            import torch

            loss = total_loss(part)
            return loss.item(), torch.autograd.grad(loss, self._parameters)

        results = list(self._workers.map(differentiate, parts))
        for index, parameter in enumerate(self._parameters):
            gradient = results[0][1][index]
            for _, others in results[1:]:
                gradient = gradient + others[index]
            parameter.grad = gradient.div(count)
        return sum(loss for loss, _ in results) / count


@contextmanager
def open_shards(model: Any, threads: int) -> Iterator[ShardedGradients]:
    """Opens `threads` workers of one CPU thread each for a model."""
    with one_thread_each(threads) as workers:
        yield ShardedGradients(model, workers)


def shares(rows: int, threads: int) -> list[slice]:
    """Cuts rows into at most `threads` runs whose lengths differ by one at most."""
    count = max(1, min(rows, threads))
    cuts = [rows * index // count for index in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(cuts)]
