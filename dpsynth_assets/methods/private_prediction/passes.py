"""Runs the passes of a release, here or on workers, and stores what they draw.

Workers draw where records are in shards. A worker draws a pass whole: it reads the records of that
pass, opens the model, draws with noise of its own entropy, and keeps what it drew, once. The driver
plans and collects, and reads no record.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

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
    told = PassProgress(len(batches.passes), drawing.rules, progress)
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
            self.told.finish()
        return known

    def drawn(self, number: int, batches: Sequence[PrivateBatch]) -> Mapping[str, Any]:
        """Draws one pass here and keeps it, unless it is kept."""
        if (known := self.kept(number)) is not None:
            return known
        values: Mapping[str, Any] = draw_pass(self.drawing, batches, self.told.step)
        if self.passes is not None:
            self.passes.save(number, dict(values))
            kept = self.passes.load(number)  # Another process may have kept this pass before.
            if kept is not None and kept != values:
                values = kept
                self._take_costs(number, values)
        self.told.finish()
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
    """Tells how far the passes of a run are, one after another.

    **Privacy** What a killed run drew and did not keep is drawn again under the same charge, so
    nothing that depends on it may be told: neither tokens nor the step at which a pass ended. Of
    the pass under way only the steps are told that its public rules make certain.
    """

    def __init__(self, passes: int, rules: GenerationRules, progress: ProgressCallback) -> None:
        """Takes the public size of the run, and who is told; shares never fall."""
        self._passes, self._progress = passes, progress
        self._certain, self._most = rules.certain_steps, max(1, rules.most_steps)
        self._finished, self._steps = 0, 0

    def step(self) -> None:
        """The pass under way took a step."""
        if self._steps < self._certain:
            self._steps += 1
            self._tell()

    def finish(self) -> None:
        """A pass is drawn and kept, or was read back."""
        self._finished, self._steps = self._finished + 1, 0
        self._tell()

    def _tell(self) -> None:
        done = self._finished + self._steps / self._most
        message = f"{self._finished} of {self._passes} passes"
        message += f", {self._steps} steps in progress" if self._steps else ""
        self._progress(min(1.0, done / self._passes), message)
