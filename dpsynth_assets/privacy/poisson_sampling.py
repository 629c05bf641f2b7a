"""Poisson batches: every record tosses its own coin in every step, and empty batches count.

Privacy amplification is proved for this sampling. Shuffled epochs of equal batches, which most
training loops use, have no such proof and are measurably weaker (errata B-002.1).

Records may be with several workers. Each tosses the coins of its own records with entropy of its
own operating system, and returns the clipped sum of those that were drawn (`SampledSum`). The
process that holds the charge adds the sums up and adds the noise, once
(`DpSgdMechanism.private_gradient_of_workers`).

Shape letters: n records of one worker, P numbers of all parameters together.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.noise import secure_bernoulli
from dpsynth_assets.privacy.per_example.arithmetic import Products, SumLattice

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients


def poisson_sample(records: int, sampling_probability: float) -> np.ndarray:
    """Draws one batch of record indices.

    Args:
        records: n >= 0 private records.
        sampling_probability: q in [0, 1], of each record independently.

    Returns:
        (B,) int64 ascending indices in [0, n), B >= 0. B is private under add/remove.

    **Source** Abadi et al. 2016, section 3.1, as every Poisson accountant assumes. Opacus samples
    likewise, but with float32 uniforms of a seeded generator.
    """
    return np.flatnonzero(secure_bernoulli(np.full(records, sampling_probability)))


class StepMeter:
    """Allows T batches, and one noisy gradient of each batch drawn, in the order of drawing.

    A loader may draw ahead. A gradient must have one row for each record of its batch: a loop
    that skips empty batches or drops a remainder runs another mechanism than the one charged,
    and is refused as soon as the sizes disagree.
    """

    def __init__(self, steps: int) -> None:
        """Opens a meter for T = `steps` batches."""
        self._steps = self._left = int(steps)
        self._begun = 0
        self._waiting: deque[int] = deque()

    @property
    def left(self) -> int:
        """Batches that may still be drawn."""
        return self._left

    @property
    def released(self) -> int:
        """Batches that have their gradient."""
        return self._steps - self._left - self._begun - len(self._waiting)

    @property
    def private_size(self) -> int | None:
        """Records of the oldest batch without a gradient; None where none waits. Private."""
        return self._waiting[0] if self._waiting else None

    def resume_at(self, step: int) -> None:
        """Counts `step` batches as drawn and released, in a run that this one resumes.

        Raises:
            UnaccountedReleaseError: If a batch was drawn already, or there are not this many steps.
        """
        if self._left != self._steps:
            raise UnaccountedReleaseError(
                "Expected to resume before the first batch, got a started run. Open a new run."
            )
        if not 0 <= step <= self._steps:
            raise UnaccountedReleaseError(
                f"Expected a checkpoint of 0 to {self._steps} steps, got {step}. "
                "Resume with the plan that was charged."
            )
        self._left -= int(step)

    def check(self) -> None:
        """Raises UnaccountedReleaseError if all T batches were drawn."""
        if self._left < 1:
            raise UnaccountedReleaseError(
                "Expected at most the planned steps, got one more batch. Plan more steps."
            )

    def draw(self, private_size: int) -> None:
        """Counts a batch of `private_size` records; raises as `check` does."""
        self.begin()
        self.drawn(private_size)

    def begin(self) -> None:
        """Counts a batch before it is drawn, used or not; raises as `check` does."""
        self.check()
        self._left -= 1
        self._begun += 1

    def drawn(self, private_size: int) -> None:
        """Notes how many records a batch that was begun has."""
        self._begun -= 1
        self._waiting.append(int(private_size))

    def release(self, private_size: int) -> None:
        """Counts the noisy gradient of the oldest batch without one.

        Raises:
            UnaccountedReleaseError: If every batch drawn has its gradient already, or the
                gradient does not have one row for each record of the batch.
        """
        if not self._waiting:
            raise UnaccountedReleaseError(
                "Expected one noisy gradient for each batch, got one more. Draw a batch first."
            )
        if self._waiting.popleft() != private_size:
            raise UnaccountedReleaseError(
                "Expected one gradient row for each record of the drawn batch, got another number. "
                "Pass every batch, empty ones too, whole and in order."
            )


@dataclass(frozen=True, kw_only=True)
class SampledSum:
    """What a worker does with its records in one step; public values.

    Attributes:
        sampling_probability: q in (0, 1] of every record.
        l2_bound: Bound on the norm of one record's gradient over all parameters.

    **Privacy** Every record tosses a coin of its own, on any worker, and lies with one worker:
    so the union of what the workers draw is a Poisson sample of all records, as `event` prices it,
    for any division of the records. Records of one unit toss one coin each, as the event says.
    Which were drawn is known to that worker's memory alone, and how many is part of the private
    sum. Sums are whole units of one public lattice (`SumLattice`), so that the total is the sum one
    process would have, bit for bit.
    """

    sampling_probability: float
    l2_bound: float

    def drawn(self, records: int) -> np.ndarray:
        """Draws (B,) int64 ascending indices of n records; private."""
        return poisson_sample(records, self.sampling_probability)

    def counted(
        self, gradients: "PerExampleGradients", private_parts: "Sequence[LossOfPart]"
    ) -> np.ndarray:
        """Clips and adds up the records that were drawn.

        Args:
            gradients: Of a model at this step's weights, with exact sums.
            private_parts: One record each.

        Returns:
            (P + 1,) int64: units of the sums of all parameters, and the number of records. Private:
            it has no noise yet.

        Raises:
            ValueError: Sums would not be exact.
            UnaccountedReleaseError: Records share a pass, or one was lost or taken twice.
        """
        import torch

        if gradients.products is not Products.FLOAT64:
            raise ValueError(
                "Expected exact sums of gradients where workers share a batch, got sums in "
                f"{gradients.products}. Set exact_sums: true."
            )
        if any(part.examples != 1 for part in private_parts):
            raise UnaccountedReleaseError(
                "Expected each record in a pass of its own, got parts of several records. Cut the "
                "batch into parts of one."
            )
        sums, rows = gradients.private_clipped_sums(private_parts, self.l2_bound)
        if rows != len(private_parts):
            raise UnaccountedReleaseError(
                "Expected one gradient row for each record that was drawn, got another number."
            )
        lattice = SumLattice.of(self.l2_bound)
        flat = torch.cat([lattice.units(each).flatten().cpu() for each in sums])
        return np.append(flat.numpy(), np.int64(rows))

    def sums_of(
        self, counted: np.ndarray, parameters: "Sequence[torch.Tensor]"
    ) -> "tuple[list[torch.Tensor], int]":
        """Turns the total of all workers into float64 sums by parameter, and the number of records.

        Raises:
            ValueError: It is not of these parameters.
        """
        import torch

        expected = sum(each.numel() for each in parameters) + 1
        if counted.shape != (expected,) or counted.dtype != np.int64:
            raise ValueError(
                f"Expected {expected} whole numbers from the workers, got shape {counted.shape} of "
                f"{counted.dtype}. Use one version of dpsynth-assets on every node."
            )
        sizes = [each.numel() for each in parameters]
        parts = torch.from_numpy(counted[:-1]).split(sizes)
        lattice = SumLattice.of(self.l2_bound)
        sums = [
            lattice.sums(part).view(each.shape).to(each.device)
            for part, each in zip(parts, parameters, strict=True)
        ]
        return sums, int(counted[-1])
