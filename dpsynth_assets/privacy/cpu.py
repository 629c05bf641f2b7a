"""CPU threads for whole pieces of work, and for the rows of a batch in blocks.

The operations of a small model are too short to share: threads that meet after each of them spend
their time waking one another, tenfold on a busy machine. One thread for every operation also leaves
no operation cut in two at a place that depends on the number of rows. All pools of threads that
compute are made here.

Beside a small model, choosing a token costs what reading the logits costs: every pass over them
counts, and so does every call on a block. NumPy's calls take a microsecond where a tensor's take
ten, and batches are worked on side by side by as many threads as PyTorch has, each of which does a
whole batch, on blocks that stay in a core's own cache. The sum of a row does not depend on others.

Shape letters: n rows of one batch, V vocabulary, A allowed tokens, C tokens of one block.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from threading import Barrier, RLock, local
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dpsynth_assets.privacy.clipping import ROWS_PER_SUM, ClipLattice, block_entries

if TYPE_CHECKING:
    import torch

LARGE = 1 << 24
"""Numbers from which a model's operations are long enough to share; this many float64 take 128 MiB,
which every thread would need for its own sums."""

_VARIABLE = "OMP_NUM_THREADS"
_Result = TypeVar("_Result")
_opening = RLock()
_own = local()
"""`_own.alone`: this thread was made here."""


def run_alone(tasks: Sequence[Callable[[], _Result]], workers: int) -> list[_Result]:
    """Runs each task in a thread in which PyTorch uses one thread, without gradients.

    The threads stay for later calls. Within such a thread, or one of `one_thread_each`, the tasks
    run there, one after another: a thread that waited for others might wait for itself. If a task
    fails, those that have not begun are dropped, and those that have are waited for: none goes on
    after the call.

    Args:
        tasks: What to run; shares nothing that another task writes.
        workers: How many threads, at least 1.

    Returns:
        Results in the order of the tasks.
    """
    if getattr(_own, "alone", False):
        return [_without_gradients(task) for task in tasks]
    with _opening:
        pool = _kept_pool(workers)
    futures = [pool.submit(_without_gradients, task) for task in tasks]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@contextmanager
def one_thread_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Opens workers in which PyTorch uses one thread, for the time of a block.

    Work that has not begun is dropped if the block fails.

    Args:
        workers: Number of threads, at least 1.
    """
    pool = _pool(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def check_declared_threads() -> None:
    """Refuses a number of threads that the environment declares and no library can use.

    Raises:
        ValueError: OMP_NUM_THREADS is set and is no whole number of at least 1.
    """
    declared = os.environ.get(_VARIABLE, "").strip()
    if declared and not (declared.isdecimal() and int(declared) >= 1):
        raise ValueError(
            f"Expected {_VARIABLE} to be a whole number of at least 1, got {declared!r}. "
            "Unset it to use all cores."
        )


def _without_gradients(task: Callable[[], _Result]) -> _Result:
    import torch

    with torch.inference_mode():
        return task()


@cache
def _kept_pool(workers: int) -> ThreadPoolExecutor:
    return _pool(workers)


def _forget_pools() -> None:
    """A forked child has the pools and none of their threads: it makes its own."""
    _kept_pool.cache_clear()
    _opening.release()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_forget_pools
)


def _pool(workers: int) -> ThreadPoolExecutor:
    """Starts all threads of a pool; one thread for every operation, regardless of other settings.

    PyTorch's number of threads is one variable of the process and a copy in each thread, taken at
    the thread's first look (its first parallel operation, or `get_num_threads`). So a thread looks
    before it sets its own number: nothing replaces that number later. The variable gets its former
    value back from a thread of its own, so that the caller's number stays as it is; one pool is
    opened at a time, so that none takes another's 1 for that value.
    """
    pool = ThreadPoolExecutor(workers, "one-thread")
    with _opening, ThreadPoolExecutor(1) as starter:
        starter.submit(_start, pool, workers).result()
    return pool


def _start(pool: ThreadPoolExecutor, workers: int) -> None:
    import torch

    before = torch.get_num_threads()
    started = Barrier(workers)

    def settle() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        _own.alone = True
        started.wait()

    for future in [pool.submit(settle) for _ in range(workers)]:
        future.result()
    torch.set_num_threads(before)


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


_Item = TypeVar("_Item")

_SHARED_ENTRIES = 1 << 12
"""Fewer logits than these are not worth waking threads for; PyTorch shares from 2,048 on."""

_LEAST_WIDTH = 512
"""Columns that maxima are taken of, to bound the largest logits of a row, at least."""

_COLUMNS_FOR_EACH = 4
"""Such columns for each of the largest logits: then few others reach the bound."""


def is_plain(logits: "torch.Tensor") -> bool:
    """Says whether NumPy can read the logits as they are: float32 on a CPU."""
    import torch

    return logits.device.type == "cpu" and logits.dtype == torch.float32


def plain_entries(logits: "torch.Tensor") -> int:
    """Counts the logits that a processor's threads may share out; 0 where they are elsewhere."""
    return logits.numel() if is_plain(logits) else 0


def map_on_cpu_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], entries: int
) -> list[_Result]:
    """Maps over batches, on PyTorch's number of threads where `entries` logits are worth it.

    In such a thread PyTorch has one: no operation is shared, and a map within a map opens no other
    threads. A single batch is done in one, too.
    """
    import torch

    threads = torch.get_num_threads()
    if threads < 2 or entries < _SHARED_ENTRIES:
        return [function(item) for item in items]
    return run_alone([partial(function, item) for item in items], threads)


def blocks_of_rows(
    logits: np.ndarray, columns: np.ndarray | None, rows: "torch.Tensor | slice"
) -> Iterator[np.ndarray]:
    """Yields (m, A) blocks of a batch's rows, at most ROWS_PER_SUM rows each; views if possible.

    A block of some columns lasts until the next one, which is in the same memory.

    Args:
        logits: (R, V) float32.
        columns: (A,) int64 allowed tokens; None for all V.
        rows: Slice of rows, or (n,) int64 indices.
    """
    tokens = logits.shape[1] if columns is None else len(columns)
    count = min(ROWS_PER_SUM, max(1, block_entries("cpu") // max(1, tokens)))
    indices = None if isinstance(rows, slice) else rows.numpy()
    first, stop = (rows.start, rows.stop) if isinstance(rows, slice) else (0, len(rows))
    taken = np.empty((0 if columns is None else min(count, stop - first), tokens), logits.dtype)
    for start in range(first, stop, count):
        part = slice(start, min(start + count, stop))
        block = logits[part if indices is None else indices[part]]
        if columns is not None:  # "clip" lets NumPy write into `out` without a second buffer
            block = np.take(block, columns, axis=1, out=taken[: len(block)], mode="clip")
        yield block


def sums_of_clipped(
    lattice: ClipLattice,
    logits: np.ndarray,
    columns: "Sequence[np.ndarray | None]",
    rows: "Sequence[torch.Tensor | slice]",
) -> tuple[np.ndarray, np.ndarray]:
    """Adds up clipped logits plus c over each of G batches: (G, A) float64, exact.

    Args:
        lattice: Of the clip.
        logits: (R, V) float32.
        columns: For each batch its (A,) int64 allowed tokens; None for all V.
        rows: For each batch its rows, as in `blocks_of_rows`.

    Returns:
        The sums, and (G,) int64 of how many rows each is.
    """
    tokens = logits.shape[1] if not len(columns) or columns[0] is None else len(columns[0])
    floor = np.full(tokens, lattice.lowest, dtype=np.float32)  # as fast as a number is slow
    sums = np.empty((len(rows), tokens))

    def add_up(batch: int) -> int:
        total = sums[batch]
        used = sum_of_units(lattice, logits, columns[batch], rows[batch], floor=floor, out=total)
        total *= lattice.unit  # whole numbers below 2^53 and a power of two: exact
        return used

    used = map_on_cpu_threads(add_up, range(len(rows)), logits.size)
    return sums, np.array(used, dtype=np.int64)


def sum_of_units(
    lattice: ClipLattice,
    logits: np.ndarray,
    columns: np.ndarray | None,
    rows: "torch.Tensor | slice",
    *,
    floor: np.ndarray,
    out: np.ndarray,
) -> int:
    """Adds up the clipped logits of a batch in units, exact; returns of how many rows.

    Every row is read once, which finds its maximum, and is moved, clipped and added in cache. A
    block with rows without a finite maximum is done without them. Bits are added in int32 over at
    most ROWS_PER_SUM rows. Memory of the sums is used again: fresh pages cost more than adding.

    Args:
        lattice: Of the clip.
        logits: As in `blocks_of_rows`.
        columns: Likewise.
        rows: Likewise.
        floor: (A,) float32, `lattice.lowest` throughout.
        out: (A,) float64 that the sums are written into.
    """
    out[:] = 0.0
    placed = np.empty((0, len(out)), dtype=np.float32)
    bits, block_bits = np.zeros(len(out), dtype=np.int32), np.empty(len(out), dtype=np.int32)
    added = used = 0
    for read in blocks_of_rows(logits, columns, rows):
        block, maximum = usable(read, maxima(read))
        placed = np.empty(read.shape, dtype=np.float32) if len(placed) < len(read) else placed
        moved = _placed(block, maximum, lattice, floor, out=placed[: len(block)])
        if added + len(block) > ROWS_PER_SUM:
            out += lattice.units_of_bits(bits, added)
            bits[:], added = 0, 0
        bits += np.add.reduce(moved.view(np.int32), axis=0, dtype=np.int32, out=block_bits)
        added, used = added + len(block), used + len(block)
    out += lattice.units_of_bits(bits, added)
    return used


def largest_tokens(logits: "torch.Tensor", count: int) -> "torch.Tensor":
    """Lists the (n, count) columns of each row's largest logits, ascending; on any device."""
    import torch

    if is_plain(logits):
        return torch.from_numpy(largest_columns(logits.numpy(), count))
    return logits.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values


def largest_columns(logits: np.ndarray, count: int) -> np.ndarray:
    """Lists the columns of the `count` largest logits of each row; of equal ones the first.

    Args:
        logits: (G, A) float32 without NaN.
        count: 1 <= count <= A.

    Returns:
        (G, count) int64, ascending.
    """
    found = np.empty((len(logits), count), dtype=np.int64)
    for own, row in zip(found, logits, strict=True):
        places = _places_of_largest(row, count)
        values = row[places]
        edge = _nth_largest(values, count)
        columns = places[values >= edge]
        if len(columns) > count:
            equal = columns[row[columns] == edge]
            columns = np.setdiff1d(columns, equal[count - len(columns) :], assume_unique=True)
        own[:] = columns
    return found


def nth_largest(row: np.ndarray, count: int) -> np.float32:
    """Finds the `count`-th largest of (A,) float32 logits, 1 <= count <= A; NaN is the largest."""
    return _nth_largest(row[_places_of_largest(row, count)], count)


def _places_of_largest(row: np.ndarray, count: int) -> np.ndarray:
    """Lists ascending places of (A,) logits among which the `count` largest are, and few others.

    A row is folded so that every column has some of its logits: `count` logits reach the `count`-th
    largest maximum of a column, so no logit below it is looked for. A sort or a selection from all
    would take ten times as long.
    """
    width = max(_LEAST_WIDTH, _COLUMNS_FOR_EACH * count)
    folds = len(row) // width
    if folds < 2:
        return np.arange(len(row))
    maximum = np.maximum.reduce(row[: folds * width].reshape(folds, width), axis=0)
    return np.flatnonzero(~(row < _nth_largest(maximum, count)))  # NaN stays


def _nth_largest(values: np.ndarray, count: int) -> np.float32:
    found: np.float32 = np.partition(values, len(values) - count)[len(values) - count]
    return found


def maxima(logits: np.ndarray) -> np.ndarray:
    """Finds the (n,) float32 maxima of (n, A) logits; NaN where a row has one."""
    found: np.ndarray = np.maximum.reduce(logits, axis=1)
    return found


def usable(logits: np.ndarray, maximum: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leaves out the rows of (n, A) logits, and the (n,) maxima, that have no finite maximum."""
    finite = np.isfinite(maximum)
    return (logits, maximum) if finite.all() else (logits[finite], maximum[finite])


def _placed(
    block: np.ndarray, maximum: np.ndarray, lattice: ClipLattice, floor: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Computes what `ClipLattice.placed` does: (m, A) in [lowest, highest].

    Rounding may lift a row's maximum, and nothing else of it further, above the upper edge.
    """
    shift = lattice.shift(maximum)
    moved = np.add(block, shift[:, None], out=out)
    if (maximum + shift > np.float32(lattice.highest)).any():
        np.minimum(moved, np.float32(lattice.highest), out=moved)
    return np.maximum(moved, floor, out=moved)


def row_sums(terms: np.ndarray) -> np.ndarray:
    """Adds up each row in an order that its length alone decides.

    Every step adds two columns, entry by entry. One addition of two numbers rounds in one way on
    every processor, at every place of an array and in any vector instruction, so a sum is a
    function of its row's numbers, bit for bit. A library's own sum or product need not be: it may
    start at an aligned address, or treat the last rows of a block in other instructions.

    Args:
        terms: float (n, d), d >= 0.

    Returns:
        (n,) sums, of the same type; zeros where d = 0.

    **Privacy** Row i of the result depends on row i only.

    **Source** Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.1 (pairwise
    summation): the error is at most about log2(d) rounding units of the sum of absolute values.
    """
    if terms.shape[1] == 0:
        return np.zeros(len(terms), dtype=terms.dtype)
    while (width := terms.shape[1]) > 1:
        half = width // 2
        folded = terms[:, :half] + terms[:, half : 2 * half]
        if width % 2:
            folded[:, 0] += terms[:, -1]
        terms = folded
    return np.asarray(terms[:, 0])
