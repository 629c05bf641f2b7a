"""Passes of a run that workers draw: the driver plans and collects, and reads no record.

A worker draws a pass whole: it reads the records of that pass, opens the model, draws with noise of
its own entropy, and keeps what it drew, once. The driver reads kept passes back in their order.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.private_prediction.batching import Batch
from dpsynth_assets.methods.private_prediction.corpus import Drawing, draw_pass, written_corpus
from dpsynth_assets.methods.private_prediction.passes import PassProgress, parts_of
from dpsynth_assets.methods.private_prediction.split_batches import SplitBatches, filled_part
from dpsynth_assets.methods.stages import Stage, SyntheticCorpus

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from dpsynth_assets.methods.private_prediction.method import BatchPrediction


@dataclass(frozen=True, kw_only=True)
class DrawPass:
    """Draws one pass in a worker. Holds public values only.

    Attributes:
        method: The bound method.
        stage: Its planned stage.
        batches: All batches of the run, in order.
        reopened: Opens the language model in the worker.
    """

    method: "BatchPrediction[Any]"
    stage: Stage
    batches: tuple[Batch, ...]
    reopened: "Callable[[], PublicInputs]"

    def __call__(self, number: int, tables: "Sequence[pl.DataFrame]") -> dict[str, Any]:
        """Draws the pass of this number from the rows that were sorted into it."""
        drawing = self.method.drawing(self.stage, self.reopened(), len(self.batches))
        part = parts_of(self.batches, self.method.config.batches_per_forward)[number]
        return draw_pass(drawing, filled_part(part, tables, self.method.declared))


def generate_in_workers(
    drawing: Drawing,
    batches: SplitBatches,
    draw: DrawPass,
    private: PrivateInputs,
    progress: ProgressCallback,
) -> SyntheticCorpus:
    """Has workers draw the passes that are not kept yet, and writes rows and facts of all.

    Args:
        drawing: How passes are drawn; its costs are filled in from what is kept.
        batches: The batches of the run.
        draw: Draws one pass.
        private: Records in parts, and where finished passes are kept.
        progress: Told of kept passes alone.

    **Privacy** As `written_corpus`. A pass that is kept is never drawn again; one that a killed
    worker drew and did not keep was seen by nobody and is drawn anew.

    Raises:
        ValueError: There are no parts, or nothing keeps passes.
    """
    passes, records = private.passes, private.parts
    if passes is None or records is None:
        raise ValueError("Expected records in parts and a store of passes, got neither or one.")
    size = drawing.task.config.batches_per_forward
    parts = parts_of(batches.batches, size)
    told = PassProgress(len(parts), len(batches.batches), drawing.task.rules, progress)
    kept: dict[int, Mapping[str, Any]] = {}

    def collect(number: int, values: Mapping[str, Any] | None) -> None:
        if values is None:
            raise ValueError("Expected the pass that a worker drew in the store, got none.")
        if drawing.costs is not None:
            drawing.costs.restore(parts[number].own, values)
        kept[number] = values
        told.finish(0, np.array(values["drawn"]))

    for part in parts:
        if (values := passes.load(part.number)) is not None:
            collect(part.number, values)
    missing = [part.number for part in parts if part.number not in kept]
    steps = batches.steps(missing, len(parts))
    memory = getattr(drawing.task.public.language_model, "weight_bytes", 0)
    with closing(records.draw_passes(steps, draw, missing, memory=memory)) as drawn:
        for number in drawn:
            collect(number, passes.load(number))
    return written_corpus(drawing, batches.batches, [kept[part.number] for part in parts])
