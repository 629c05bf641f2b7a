"""CPU threads that each do a whole piece of work alone, instead of sharing every operation of it.

The operations of a small model are too short to share: threads that meet after each of them spend
their time waking one another, tenfold on a busy machine.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def one_thread_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Opens workers in which PyTorch uses one thread; the caller's number is as before afterwards.

    Work that has not begun is dropped if the block fails.

    Args:
        workers: How many, at least 1.
    """
    import torch

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
