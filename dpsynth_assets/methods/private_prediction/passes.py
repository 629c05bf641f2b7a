"""Cuts a run's batches into passes of the loop and runs them, side by side for a small model."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from dpsynth_assets.methods.base import ProgressCallback
from dpsynth_assets.methods.private_prediction.batching import PrivateBatch
from dpsynth_assets.models.worker_threads import one_thread_each

SMALL_MODEL_PARAMETERS = 20_000_000
"""Operations of a model up to this size are too short for threads to share."""

_Written = TypeVar("_Written")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Batches of one pass: `number`, index of the first, and the batches."""

    number: int
    start: int
    batches: Sequence[PrivateBatch]

    @property
    def own(self) -> slice:
        """Its batches among those of the run."""
        return slice(self.start, self.start + len(self.batches))


def parts_of(batches: Sequence[PrivateBatch], size: int) -> list[Part]:
    """Cuts batches into parts of `size`; the last may be smaller."""
    starts = range(0, len(batches), size)
    return [
        Part(number=number, start=start, batches=batches[start : start + size])
        for number, start in enumerate(starts)
    ]


class DrawCounter:
    """Adds up the draws of all passes, whatever thread they run in, and reports the share."""

    def __init__(self, planned: int, progress: ProgressCallback) -> None:
        """Takes the private tokens that are planned in all, and who is told."""
        self._planned, self._progress = max(1, planned), progress
        self._drawn = np.zeros(2, dtype=np.int64)
        self._lock = Lock()

    def add(self, private: int, public: int) -> None:
        """Counts one step of a pass; shares never fall."""
        with self._lock:
            self._drawn += private, public
            paid, free = self._drawn.tolist()
            beside = f", {free} public ones" if free else ""
            message = f"{paid} of at most {self._planned} private tokens{beside}"
            self._progress(min(1.0, paid / self._planned), message)


def run_passes(
    model: Any, parts: Sequence[Part], run: Callable[[Part], _Written]
) -> list[_Written]:
    """Runs every pass and returns what they wrote, in the order of the parts.

    A small model on a CPU runs as many passes at once as PyTorch has threads, each in one thread.
    If a pass fails, those that have begun run to their end and are kept, and no other begins.

    Args:
        model: The transformers model that all passes read.
        parts: What to run.
        run: Runs one pass; shares nothing with another but what locks guard.
    """
    import torch

    parameters = sum(parameter.numel() for parameter in model.parameters())
    small = model.device.type == "cpu" and parameters <= SMALL_MODEL_PARAMETERS
    workers = min(len(parts), torch.get_num_threads()) if small else 1
    if workers < 2:
        return [run(part) for part in parts]

    def task_of(part: Part) -> Callable[[], _Written]:
        context = copy_context()
        return lambda: context.run(run, part)

    with one_thread_each(workers) as pool:
        begun = [pool.submit(task_of(part)) for part in parts]
        return [each.result() for each in begun]
