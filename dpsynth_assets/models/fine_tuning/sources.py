"""Where gradients come from: a charged mechanism, or plain backward passes.

Shape letters: n examples, B of one batch.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.models.fine_tuning.losses import ExampleLoss
from dpsynth_assets.models.fine_tuning.settings import FineTuningSettings
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients

if TYPE_CHECKING:
    import torch


class GradientSource(Protocol):
    """Batches of a run, and the gradient of each, in turn."""

    @property
    def steps(self) -> int:
        """T of the whole run."""

    def resume_at(self, step: int) -> None:
        """Skips the first `step` steps."""

    def gradients(
        self, model: Any, examples: Sequence[Any]
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields parameters and their gradients, one pair a step."""


@dataclass(frozen=True, kw_only=True)
class PrivateGradients:
    """Noisy clipped gradients of true Poisson batches.

    Attributes:
        mechanism: Charged for all its steps.
        loss: Losses of single examples.
        settings: Micro-batches and arithmetic.

    **Privacy** What a step yields is the mechanism's release; everything made of it is
    post-processing. Sorting a batch by length and cutting it into micro-batches changes no
    example's loss, which is a mean over its own tokens.
    """

    mechanism: DpSgdMechanism
    loss: ExampleLoss
    settings: FineTuningSettings

    @property
    def steps(self) -> int:
        """T."""
        return self.mechanism.steps

    def resume_at(self, step: int) -> None:
        """Goes on under the charge of the run whose checkpoint holds `step` steps."""
        self.mechanism.resume_at(step)

    def gradients(
        self, model: Any, examples: Sequence[Any]
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields noisy mean gradients; empty batches yield noise."""
        clipped = PerExampleGradients(model, self.settings.products)
        for batch in self.mechanism.batches(len(examples)):
            parts = self._parts(model, examples, batch)
            yield clipped.parameters, self.mechanism.private_gradient_of_losses(clipped, parts)

    def _parts(
        self, model: Any, examples: Sequence[Any], batch: np.ndarray
    ) -> Iterator[LossOfPart]:
        for part in micro_batches(examples, batch, self.loss, self.settings.micro_batch):
            yield LossOfPart(len(part), partial(self._losses, model, part))

    def _losses(self, model: Any, part: Sequence[Any]) -> "torch.Tensor":
        with autocast(model, self.settings):
            return self.loss(model, part)


@dataclass(frozen=True, kw_only=True)
class PlainSampling:
    """Batches of a run without privacy: ε = ∞.

    Attributes:
        steps: T.
        batch_size: Examples of a batch, drawn without replacement.
        seed: Public seed of the batches.
    """

    steps: int
    batch_size: int
    seed: int = 0


class PlainGradients:
    """Mean gradients of plain batches, for references. NOT private."""

    def __init__(
        self, sampling: PlainSampling, loss: ExampleLoss, settings: FineTuningSettings
    ) -> None:
        """Starts before the first step."""
        self._sampling = sampling
        self._loss = loss
        self._settings = settings
        self._first = 0

    @property
    def steps(self) -> int:
        """T."""
        return self._sampling.steps

    def resume_at(self, step: int) -> None:
        """Skips steps; each has a seed of its own."""
        self._first = step

    def gradients(
        self, model: Any, examples: Sequence[Any]
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields mean gradients."""
        parameters = [each for each in model.parameters() if each.requires_grad]
        size = min(self._sampling.batch_size, len(examples))
        for step in range(self._first, self.steps):
            generator = np.random.default_rng((self._sampling.seed, step))
            batch = generator.choice(len(examples), size, replace=False)
            for part in micro_batches(examples, batch, self._loss, self._settings.micro_batch):
                with autocast(model, self._settings):
                    losses = self._loss(model, part)
                (losses.sum() / size).backward()
            yield parameters, [_taken_gradient(each) for each in parameters]


def _taken_gradient(parameter: Any) -> "torch.Tensor":
    """The accumulated gradient, which the parameter loses; zero where it was not used."""
    import torch

    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if gradient is None else gradient


def micro_batches(
    examples: Sequence[Any], batch: np.ndarray, loss: ExampleLoss, size: int
) -> Iterator[list[Any]]:
    """Cuts a batch into parts of examples of similar length, longest first."""
    order = sorted(batch.tolist(), key=lambda index: -loss.length(examples[index]))
    for start in range(0, len(order), size):
        yield [examples[index] for index in order[start : start + size]]


def autocast(model: Any, settings: FineTuningSettings) -> AbstractContextManager[Any]:
    """Runs passes in bfloat16 where the settings ask for it."""
    import torch

    if not settings.autocast:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16)
