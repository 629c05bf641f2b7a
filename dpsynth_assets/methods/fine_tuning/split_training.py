"""Training on records that lie in parts: what a worker does with one part in one step.

Each step of DP-Adam is one count over the parts. The driver gives the trained weights of the step;
every worker tosses the coins of its part's records, clips and adds up those that were drawn, and
returns whole numbers (`privacy.split_batches`); the driver adds them up, adds noise once, and steps
the optimizer.

- *The sample* of a part is drawn by whoever works on it, anew in every step and after a restart. It
  is stored nowhere: the union over parts is the Poisson sample of the whole.
- *Weights* of a step travel as a file of the sensitive store, for as long as the step lasts. They
  follow from noisy gradients that were paid for, and are nobody's to see before the stage is
  committed. The public model is opened once a process and kept (`workers.kept`).
- *Sums* have no noise yet: they are private, and travel as files of that store, too.
- Only sums that are exact can be split (`exact_sums: true`): another grouping of records would show
  in the last bits of float32 sums, and the number of records that may share a pass is one of the
  whole sample. No batch is cut to a size, which would need the whole sample, too.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpsynth_assets.methods.fine_tuning.private_training import TrainingStart
from dpsynth_assets.methods.inputs import PartedRecords, PrivateInputs
from dpsynth_assets.models.fine_tuning import FineTuningSettings, PartGradients, SplitExamples
from dpsynth_assets.privacy.split_batches import SampledSum
from dpsynth_assets.workers import forget, kept

_START, _GRADIENTS = "start of a training", "gradients of a training"


class TrainingInputs(Protocol):
    """What a training starts from and what it makes of a record, in any process: public values."""

    def open(self) -> TrainingStart:
        """Opens the public weights."""

    def examples(self, start: TrainingStart, private: PrivateInputs) -> Sequence[Any]:
        """Turns records into what `start.loss` takes, each by itself; some may be left out."""


@dataclass(frozen=True, kw_only=True)
class StepOfPart:
    """One step's clipped sum over a sample of some records, for `PartedRecords.summed`.

    Attributes:
        run: Name of the training's run, for which a process keeps the model open.
        inputs: What the training starts from.
        settings: Arithmetic and threads.
        sampled: What is drawn, and the clip bound.
    """

    run: str
    inputs: TrainingInputs
    settings: FineTuningSettings
    sampled: SampledSum

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Draws, clips and adds up; see `SampledSum.counted`. Private."""
        start = kept(_START, self.run, self.inputs.open)
        gradients = kept(
            _GRADIENTS, self.run, lambda: PartGradients(start.model, start.loss, self.settings)
        )
        gradients.take(private.state)
        drawn = self.sampled.drawn(private.records.height)
        examples = self.inputs.examples(start, private.rows(drawn)) if len(drawn) else ()
        return gradients.counted(examples, self.sampled)


@contextmanager
def training_examples(
    private: PrivateInputs, inputs: TrainingInputs, start: TrainingStart
) -> Iterator[Sequence[Any] | SplitExamples]:
    """The private examples of a training, wherever the records lie, until the block ends.

    Args:
        private: All records, or their parts.
        inputs: What the training starts from.
        start: What `inputs` opened, which is trained in place. A worker that is this very process
            takes it instead of opening another.
    """
    if private.parts is None:
        yield inputs.examples(start, private)
        return
    run = secrets.token_hex(8)
    kept(_START, run, lambda: start)
    try:
        yield _split(private.parts, inputs, run, gpus=_gpus(start.model))
    finally:
        forget()


def _split(parts: PartedRecords, inputs: TrainingInputs, run: str, *, gpus: float) -> SplitExamples:
    def summed(
        settings: FineTuningSettings, sampled: SampledSum, weights: Sequence[np.ndarray]
    ) -> np.ndarray:
        step = StepOfPart(run=run, inputs=inputs, settings=settings, sampled=sampled)
        return parts.summed(step, weights, gpus=gpus)

    return SplitExamples(summed)


def _gpus(model: Any) -> float:
    """A worker needs a GPU where the driver's model is on one: both have to round alike."""
    return 0.0 if next(model.parameters()).device.type == "cpu" else 1.0
