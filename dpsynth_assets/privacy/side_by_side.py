"""CPU threads that work side by side, each on its own part of a step.

The operations of a small model are too short to share among threads: they would spend the step
waking one another. One thread a part, and they meet once.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LARGE = 1 << 24
"""Numbers from which a model's operations are long enough to share; so many float64 take 128 MiB,
which every thread would need for its own sums."""


@contextmanager
def workers(threads: int) -> Iterator[Executor]:
    """Opens threads whose operations take one CPU thread each; the caller's keep theirs."""
    import torch

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as executor:
            yield executor
    finally:
        torch.set_num_threads(before)


def useful_threads(parameters: "Sequence[torch.Tensor]", threads: int) -> int:
    """Threads that are worth opening for a model: one where it is on a device, or large."""
    on_device = any(each.device.type != "cpu" for each in parameters)
    large = sum(each.numel() for each in parameters) >= LARGE
    return 1 if on_device or large else max(1, threads)


def shares_weights(model: "torch.nn.Module") -> "torch.nn.Module":
    """Copies a model's modules over the same weights: what one thread sets on its own copy.

    Parameters and buffers of the copy are other objects in the same memory; gradients, flags and
    hooks are the copy's own, and so is whether dropout is active.
    """
    import copy

    import torch

    memo: dict[int, object] = {
        id(each): torch.nn.Parameter(each.detach(), requires_grad=each.requires_grad)
        for each in model.parameters()
    }
    memo |= {id(each): each.detach() for each in model.buffers()}
    return copy.deepcopy(model, memo)
