"""Runs the passes of a release, here or on workers, and stores what they draw.

Workers draw where records are in shards. A worker draws a pass whole: it reads the records of that
pass, opens the model, draws with noise of its own entropy, and keeps what it drew, once. The driver
plans and collects, and reads no record.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.inputs import (
    PassStore,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    Shards,
)
from dpsynth_assets.methods.private_prediction.corpus import Drawing, draw_pass, written_corpus
from dpsynth_assets.methods.private_prediction.loop import GenerationRules
from dpsynth_assets.methods.private_prediction.split_batches import PrivateBatch
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.language_model import in_parts

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class DrawPass:
    """Draws one pass in a worker. Holds public values only.

    Attributes:
        drawing: How passes are drawn, without models.
        reopened: Opens the language model in the worker.
    """

    drawing: Drawing
    reopened: "Callable[[], PublicInputs]"

    def __call__(self, number: int, tables: "Sequence[pl.DataFrame]") -> dict[str, Any]:
        """Draws the pass of this number from the rows that were sorted into it."""
        drawing = replace(self.drawing, public=self.reopened())
        return draw_pass(drawing, drawing.batches.filled_pass(number, tables))


def generate_corpus(
    drawing: Drawing, private: PrivateInputs, progress: ProgressCallback
) -> SyntheticCorpus:
    """Draws the passes that are not kept yet, and writes rows and facts of all.

    Args:
        drawing: How passes are drawn; its costs are filled in.
        private: Records, here or in shards, and where finished passes are kept.
        progress: Told how far it is: of draws, what is kept of them (`PassProgress`).

    **Privacy** As `written_corpus`. A pass that is kept is never drawn again; one that a killed
    process drew and did not keep was never shown and is drawn again.

    Raises:
        ValueError: Records are in shards and nothing keeps passes, or no worker can draw them.
    """
    batches, reopened = drawing.batches, drawing.public.reopened
    told = PassProgress(len(batches.passes), len(batches.batches), drawing.rules, progress)
    run = _Run(drawing, told, private.passes)
    if private.parts is None:
        placed = in_parts(batches.placed(private), drawing.method.config.batches_per_forward)
        finished = [run.drawn(number, own) for number, own in enumerate(placed)]
    elif reopened is None or private.passes is None:
        raise ValueError("Expected a store of passes and workers that open models, got neither.")
    else:
        draw = DrawPass(drawing=replace(drawing, public=PublicInputs()), reopened=reopened)
        finished = run.drawn_by_workers(private.parts, draw)
    return written_corpus(drawing, finished)


@dataclass(frozen=True)
class _Run:
    """Reads passes back, or draws and keeps them, and reports each as it is done."""

    drawing: Drawing
    told: "PassProgress"
    passes: PassStore | None

    def kept(self, number: int) -> Mapping[str, Any] | None:
        """A finished pass, with its costs; None where it has to be drawn."""
        known = None if self.passes is None else self.passes.load(number)
        if known is not None:
            self._take_costs(number, known)
            self.told.finish(0, np.array(known["drawn"]))
        return known

    def drawn(self, number: int, batches: Sequence[PrivateBatch]) -> Mapping[str, Any]:
        """Draws one pass here and keeps it, unless it is kept."""
        if (known := self.kept(number)) is not None:
            return known
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1
            self.told.step(steps)

        values: Mapping[str, Any] = draw_pass(self.drawing, batches, count)
        if self.passes is not None:
            self.passes.save(number, dict(values))
            kept = self.passes.load(number)  # Another process may have kept this pass before.
            if kept is not None and kept != values:
                values = kept
                self._take_costs(number, values)
        self.told.finish(steps, None if self.passes is None else np.array(values["drawn"]))
        return values

    def drawn_by_workers(self, records: Shards, draw: DrawPass) -> list[Mapping[str, Any]]:
        """Has workers draw the passes that are not kept; told of kept passes alone."""
        count = len(self.drawing.batches.passes)
        found = {number: self.kept(number) for number in range(count)}
        missing = [number for number, values in found.items() if values is None]
        steps = self.drawing.batches.steps(missing, count)
        memory = getattr(self.drawing.public.language_model, "weight_bytes", 0)
        with closing(records.draw_passes(steps, draw, missing, memory=memory)) as made:
            for number in made:
                found[number] = self.kept(number)
        values = [each for each in found.values() if each is not None]
        if len(values) < count:
            raise ValueError("Expected every pass that a worker drew in the store, got fewer.")
        return values

    def _take_costs(self, number: int, values: Mapping[str, Any]) -> None:
        if self.drawing.costs is not None:
            own = [batch.index for batch in self.drawing.batches.passes[number]]
            self.drawing.costs.restore(own, values)


class PassProgress:
    """Tells how far the passes of a run are.

    **Privacy** What a killed run drew and did not keep is drawn again under the same charge, so
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
        self._progress = progress
        self._finished, self._under_way = 0, 0
        self._kept = np.zeros(2, dtype=np.int64)

    def step(self, number: int) -> None:
        """A pass took its step of this number, from 1 on."""
        if number <= self._certain:
            self._under_way += 1
            self._tell()

    def finish(self, steps: int, kept: np.ndarray | None) -> None:
        """A pass ended after this many steps of this run; shares never fall.

        Args:
            steps: Steps it told of; 0 for a pass that was read back.
            kept: Its (private, public) tokens once they are kept; None where they are not kept.
        """
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
            message += f", {self._under_way} steps in progress"
        done = self._finished + self._under_way / self._most
        self._progress(min(1.0, done / self._passes), message)
