"""Sources of gradients: a charged mechanism, or plain backward passes.

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
from dpsynth_assets.privacy.cpu_threads import one_thread_each, useful_threads
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import (
    LossOfPart,
    PerExampleGradients,
    refuse_undeclared_slack,
)

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
        self, model: Any, examples: Any
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields parameters and their gradients, one pair a step.

        Args:
            model: As it is trained.
            examples: What this source draws from.
        """


@dataclass(frozen=True, kw_only=True)
class PrivateGradients:
    """Noisy clipped gradients of true Poisson batches.

    Attributes:
        mechanism: Charged for all its steps.
        loss: Losses of single examples.
        settings: Micro-batches and arithmetic.

    **Privacy** What a step yields is the mechanism's release; everything made of it is
    post-processing. Sorting a batch by length and cutting it into micro-batches changes no
    example's loss, which is a mean over its own tokens; what it changes in the last bits of a
    gradient is kept back by the mechanism, and where a batch is larger than that covers, every
    record passes alone.
    """

    mechanism: DpSgdMechanism
    loss: ExampleLoss
    settings: FineTuningSettings

    @property
    def steps(self) -> int:
        """T."""
        return self.mechanism.steps

    def resume_at(self, step: int) -> None:
        """Resumes under the charge of the run whose checkpoint holds `step` steps."""
        self.mechanism.resume_at(step)

    def gradients(
        self, model: Any, examples: Sequence[Any]
    ) -> "Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]":
        """Yields noisy mean gradients; empty batches yield noise.

        Raises:
            ValueError: If dropout is active, or passes of several records need a declared slack.
        """
        self._refuse_unbounded(model)
        threads = thread_count(self.settings)
        clipped = PerExampleGradients(model, self.settings.products, threads)
        for batch in self.mechanism.batches(len(examples)):
            parts = self._parts(examples, batch, clipped.threads)
            yield clipped.parameters, self.mechanism.private_gradient_of_losses(clipped, parts)

    def _parts(
        self, examples: Sequence[Any], batch: np.ndarray, threads: int
    ) -> Iterator[LossOfPart]:
        together = self.mechanism.may_share_passes(len(batch))
        size = part_size(len(batch), self.settings.micro_batch, threads) if together else 1
        for part in micro_batches(examples, batch, self.loss, size):
            yield LossOfPart(len(part), partial(self._losses, part))

    def _refuse_unbounded(self, model: Any) -> None:
        refuse_dropout(self.settings)
        if self.mechanism.most_in_company and self.mechanism.gradient_slack is None:
            refuse_undeclared_slack(model, autocast=self.settings.autocast)

    def _losses(self, part: Sequence[Any], model: Any) -> "torch.Tensor":
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
        threads = useful_threads(parameters, thread_count(self._settings))
        size = min(self._sampling.batch_size, len(examples))
        rows = part_size(size, self._settings.micro_batch, threads)
        for step in range(self._first, self.steps):
            generator = np.random.default_rng((self._sampling.seed, step))
            batch = generator.choice(len(examples), size, replace=False)
            parts = list(micro_batches(examples, batch, self._loss, rows))
            yield parameters, self._mean(model, parameters, parts, threads)

    def _mean(
        self, model: Any, parameters: "Sequence[torch.Tensor]", parts: list[Any], threads: int
    ) -> "list[torch.Tensor]":
        """The mean gradient of all parts, each worked on by one of the threads."""
        if threads == 1:
            return self._share(model, parameters, parts, parts)
        with one_thread_each(threads) as executor:
            running = [
                executor.submit(self._share, model, parameters, parts[own::threads], parts)
                for own in range(threads)
            ]
            first, *others = [each.result() for each in running]
        for gradients in others:
            for total, gradient in zip(first, gradients, strict=True):
                total.add_(gradient)
        return first

    def _share(
        self, model: Any, parameters: "Sequence[torch.Tensor]", own: list[Any], parts: list[Any]
    ) -> "list[torch.Tensor]":
        """Share of some parts in the mean over all parts; zero where a parameter is not used."""
        import torch

        size = sum(len(part) for part in parts)
        totals: list[torch.Tensor | None] = [None] * len(parameters)
        for part in own:
            with autocast(model, self._settings):
                loss = self._loss(model, part).sum() / size
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for place, gradient in enumerate(gradients):
                total = totals[place]
                if gradient is not None:
                    totals[place] = gradient if total is None else total.add_(gradient)
        return [
            torch.zeros_like(parameter) if total is None else total
            for parameter, total in zip(parameters, totals, strict=True)
        ]


def refuse_dropout(settings: FineTuningSettings) -> None:
    """Refuses private runs in which a record's gradient would follow from its place.

    Raises:
        ValueError: Dropout is active.
    """
    if settings.dropout:
        raise ValueError(
            "Expected dropout: false in a private run, got true: what is dropped of a record "
            "follows from its place among others. Train without dropout; noise regularises."
        )


def thread_count(settings: FineTuningSettings) -> int:
    """Threads that the settings ask for, or as many as torch has."""
    import torch

    return torch.get_num_threads() if settings.threads is None else settings.threads


def part_size(batch: int, micro_batch: int, threads: int) -> int:
    """Examples of a part: parts come in rounds of one a thread, all of about one size."""
    rounds = -(-batch // micro_batch)
    return max(1, -(-batch // max(1, rounds * threads)))


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
