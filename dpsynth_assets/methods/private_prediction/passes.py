"""Cuts a run's batches into passes of the loop and runs them, side by side for a small model."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.private_prediction.batching import Batch
from dpsynth_assets.methods.private_prediction.loop import GenerationRules
from dpsynth_assets.models.decoding import Decoder
from dpsynth_assets.privacy.cpu_threads import one_thread_each

_Written = TypeVar("_Written")
BatchT = TypeVar("BatchT", bound=Batch)


@dataclass(frozen=True, kw_only=True)
class Part(Generic[BatchT]):
    """Batches of one pass: `number`, index of the first, and the batches."""

    number: int
    start: int
    batches: Sequence[BatchT]

    @property
    def own(self) -> slice:
        """Its batches among those of the run."""
        return slice(self.start, self.start + len(self.batches))


def parts_of(batches: Sequence[BatchT], size: int) -> list[Part[BatchT]]:
    """Cuts batches into parts of `size`; the last may be smaller."""
    starts = range(0, len(batches), size)
    return [
        Part(number=number, start=start, batches=batches[start : start + size])
        for number, start in enumerate(starts)
    ]


class PassProgress:
    """Tells how far the passes of a run are, whatever thread they run in.

    **Privacy** What a killed run drew and did not keep is drawn anew under the same charge, so
    nothing that depends on it may be told: neither tokens nor the step at which a pass ended. Of a
    pass under way only the steps are told that its public rules make certain; what was drawn is
    told of kept passes alone.
    """

    def __init__(
        self, passes: int, batches: int, rules: GenerationRules, progress: ProgressCallback
    ) -> None:
        """Takes the public size of the run, and who is told."""
        self._passes, self._planned = passes, batches * rules.tokens_per_batch
        self._certain, self._most = rules.certain_steps, max(1, rules.most_steps)
        self._progress, self._lock = progress, Lock()
        self._finished, self._under_way = 0, 0
        self._kept = np.zeros(2, dtype=np.int64)

    def step(self, number: int) -> None:
        """A pass took its step of this number, from 1 on."""
        if number <= self._certain:
            with self._lock:
                self._under_way += 1
                self._tell()

    def finish(self, steps: int, kept: np.ndarray | None) -> None:
        """A pass ended after so many steps of this run; shares never fall.

        Args:
            steps: Steps it told of; 0 for a pass that was read back.
            kept: Its (private, public) tokens once they are kept; None where nobody keeps them.
        """
        with self._lock:
            self._under_way -= min(steps, self._certain)
            self._finished += 1
            self._kept += 0 if kept is None else kept
            self._tell()

    def _tell(self) -> None:
        paid, free = self._kept.tolist()
        message = f"{self._finished} of {self._passes} passes"
        if paid or free:
            beside = f", {free} public ones" if free else ""
            message += f" with {paid} of at most {self._planned} private tokens{beside}"
        if self._under_way:
            message += f", {self._under_way} steps under way"
        done = self._finished + self._under_way / self._most
        self._progress(min(1.0, done / self._passes), message)


def run_passes(
    decoder: Decoder, parts: Sequence[Part[BatchT]], run: Callable[[Part[BatchT]], _Written]
) -> list[_Written]:
    """Runs every pass and returns what they wrote, in the order of the parts.

    A small model on a CPU runs as many passes at once as PyTorch has threads, each in one thread.
    If a pass fails, those that have begun run to their end and are kept, and no other begins.

    Args:
        decoder: What decodes for all passes.
        parts: What to run.
        run: Runs one pass; shares nothing with another but what locks guard.
    """
    import torch

    workers = min(len(parts), torch.get_num_threads()) if decoder.is_small else 1
    if workers < 2:
        return [run(part) for part in parts]

    def task_of(part: Part[BatchT]) -> Callable[[], _Written]:
        context = copy_context()
        return lambda: context.run(run, part)

    with one_thread_each(workers) as pool:
        begun = [pool.submit(task_of(part)) for part in parts]
        return [each.result() for each in begun]
