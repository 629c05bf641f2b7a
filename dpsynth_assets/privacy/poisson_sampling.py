"""Poisson batches: every record tosses its own coin in every step, and empty batches count.

Privacy amplification is proved for this sampling. Shuffled epochs of equal batches, which most
training loops use, have no such proof and are measurably weaker (errata B-002.1).
"""

from collections import deque

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.noise import secure_bernoulli


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
            UnaccountedReleaseError: If a batch was drawn already, or there are not so many steps.
        """
        if self._left != self._steps:
            raise UnaccountedReleaseError(
                "Expected to resume before the first batch, got a run under way. Open a new run."
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
        """Counts a batch before it is drawn, whatever becomes of it; raises as `check` does."""
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
