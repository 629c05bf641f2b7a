"""Private gradients whose records lie with several workers: the driver's side and a worker's.

The driver holds weights, optimizer, charge and noise, and no record. A worker holds the same public
model, takes the trained weights of the step, and returns the clipped sum of what it drew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.fine_tuning.losses import ExampleLoss
from dpsynth_assets.models.fine_tuning.settings import FineTuningSettings
from dpsynth_assets.models.fine_tuning.sources import (
    autocast,
    micro_batches,
    refuse_dropout,
    thread_count,
)
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import (
    LossOfPart,
    PerExampleGradients,
    trainable_parameters,
)
from dpsynth_assets.privacy.split_batches import SampledSum

if TYPE_CHECKING:
    import torch

SumOfWorkers = Callable[[FineTuningSettings, SampledSum, Sequence[np.ndarray]], np.ndarray]
"""Given settings, what is drawn and the weights of a step: the total of what all workers return
(`SampledSum.counted`). Private."""


@dataclass(frozen=True)
class SplitExamples:
    """Private examples that no process reads together, in the place of a sequence of them.

    Attributes:
        summed: Has workers draw and clip one step's records.
    """

    summed: SumOfWorkers = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SplitGradients:
    """Noisy clipped gradients of batches that workers draw; a `GradientSource`.

    Attributes:
        mechanism: Charged for all its steps; sums are exact.
        settings: Arithmetic and threads, the same for every worker.

    **Privacy** As `PrivateGradients`: what a step yields is the mechanism's release. Weights that
    workers are given follow from earlier releases under the same charge; they are nobody's to see
    before the stage is committed, and travel by the sensitive store.
    """

    mechanism: DpSgdMechanism
    settings: FineTuningSettings

    @property
    def steps(self) -> int:
        """T."""
        return self.mechanism.steps

    def resume_at(self, step: int) -> None:
        """Resumes under the charge of the run whose checkpoint holds `step` steps."""
        self.mechanism.resume_at(step)

    def gradients(
        self, model: Any, examples: SplitExamples
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields noisy mean gradients; batches without a record yield noise.

        Raises:
            ValueError: Dropout is active, or sums are not exact.
        """
        refuse_dropout(self.settings)
        parameters = tuple(trainable_parameters(model).values())
        for _ in range(self.mechanism.released_steps, self.steps):
            summed = partial(_summed, examples, self.settings, parameters)
            yield parameters, self.mechanism.private_gradient_of_workers(summed, parameters)


def _summed(
    examples: SplitExamples,
    settings: FineTuningSettings,
    parameters: "Sequence[torch.Tensor]",
    sampled: SampledSum,
) -> np.ndarray:
    weights = [each.detach().cpu().numpy() for each in parameters]
    return examples.summed(settings, sampled, weights)


class PartGradients:
    """A worker's model, which stays open over the steps of one training."""

    def __init__(self, model: Any, loss: ExampleLoss, settings: FineTuningSettings) -> None:
        """Takes a model with the weights that the driver's began with, trained ones aside.

        Raises:
            TypeError: It has a trainable parameter that cannot be clipped by example.
            ValueError: Dropout is active.
        """
        refuse_dropout(settings)
        self._loss, self._settings = loss, settings
        self._model = model.train(settings.dropout)
        self._clipped = PerExampleGradients(model, settings.products, thread_count(settings))

    def take(self, weights: Sequence[np.ndarray]) -> None:
        """Puts the weights of the step in the place of the trained ones.

        Raises:
            ValueError: They are those of another model.
        """
        import torch

        expected = [tuple(each.shape) for each in self._clipped.parameters]
        if [each.shape for each in weights] != expected:
            raise ValueError(
                "Expected trained weights of the shapes of this model, got others. Use one version "
                "of dpsynth-assets on every node."
            )
        with torch.no_grad():
            for parameter, own in zip(self._clipped.parameters, weights, strict=True):
                parameter.copy_(torch.from_numpy(np.array(own)))

    def counted(self, examples: Sequence[Any], sampled: SampledSum) -> np.ndarray:
        """The clipped sum of examples that were drawn; see `SampledSum.counted`. Private."""
        alone = micro_batches(examples, np.arange(len(examples)), self._loss, 1)
        return sampled.counted(
            self._clipped, [LossOfPart(1, partial(self._losses, part)) for part in alone]
        )

    def _losses(self, part: Sequence[Any], model: Any) -> "torch.Tensor":
        with autocast(model, self._settings):
            return self._loss(model, part)
