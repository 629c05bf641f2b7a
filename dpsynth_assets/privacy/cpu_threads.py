"""CPU threads that each do a whole piece of work alone, instead of sharing every operation of it.

The operations of a small model are too short to share: threads that meet after each of them spend
their time waking one another, tenfold on a busy machine.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LARGE = 1 << 24
"""Numbers from which a model's operations are long enough to share; so many float64 take 128 MiB,
which every thread would need for its own sums."""


@contextmanager
def one_thread_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Opens workers in which PyTorch uses one thread; the caller's number is as before afterwards.

    Work that has not begun is dropped if the block fails.

    Args:
        workers: Number of threads, at least 1.
    """
    import torch

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def useful_threads(
    parameters: "Sequence[torch.Tensor]", threads: int, *, one_sum: bool = False
) -> int:
    """Threads that are worth opening for a model: one where it is on a device, or large.

    Args:
        parameters: What is trained.
        threads: Threads there are.
        one_sum: Whether threads add to one sum, so that large models need no more memory.
    """
    on_device = any(each.device.type != "cpu" for each in parameters)
    large = not one_sum and sum(each.numel() for each in parameters) >= LARGE
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
