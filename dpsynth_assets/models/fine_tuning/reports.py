"""Reports of a training run: their content and their steps are public, not set by a clock."""

from collections.abc import Callable, Sequence
from typing import Any

from dpsynth_assets.privacy.directed_rounding import epsilon_up

ProgressCallback = Callable[[float, str], None]
PublicEvaluation = Callable[[Any], float]
EpsilonSoFar = Callable[[int], float]
PublicLoss = tuple[int, float]
"""A number of finished steps, and the loss on public text after them."""

LINES = 20
"""Lines a run tells, at most and evenly spaced: progress in twentieths, which cost nothing."""
LOSSES = 5
"""Losses on public text a run measures, at most and evenly spaced, the last after its last step.

Each costs an evaluation, a reading of the accountant and a checkpoint of three float32 a trained
parameter: 13 MB and 0.03 s for the demo's generator, 1.7 GB for CTCL's of 140 million, 12 GB and
half a minute of disk for a billion. Five of them are little beside any training; twenty would be a
tenth of the demo's."""


def public_steps(steps: int, times: int) -> frozenset[int]:
    """Steps of a run of T after which something happens: multiples of ⌈T / times⌉, and T.

    **Privacy** A function of T alone. Steps picked by a clock would tell the private number of
    records: a step takes as long as its batch, which holds q n of them on average.
    """
    every = max(1, -(-steps // times))
    return frozenset({*range(every, steps + 1, every), steps})


class Reports:
    """Measures and tells at public steps of one run.

    **Privacy** A loss is post-processing of the gradients before it, but of those that were drawn:
    a run killed before they were saved draws others, and both must not be seen. So a loss is
    measured, saved with the step it belongs to, and only then reported. Numbers of steps depend on
    no draw and are reported at once. Whoever can watch the clock sees when.
    """

    def __init__(
        self,
        steps: int,
        progress: ProgressCallback | None = None,
        public_evaluation: PublicEvaluation | None = None,
        epsilon_so_far: EpsilonSoFar | None = None,
    ) -> None:
        """Starts before the first of T steps.

        Args:
            steps: T.
            progress: Called with the share done and a line.
            public_evaluation: Loss of the model on PUBLIC text.
            epsilon_so_far: ε of the first t steps, from the accountant.
        """
        self._steps = steps
        self._progress = progress
        self._evaluate = public_evaluation
        self._epsilon = epsilon_so_far
        self._measured = public_steps(steps, LOSSES)
        self._reported = public_steps(steps, LINES) | self._measured
        self._latest = ""
        self.public_losses: list[PublicLoss] = []

    def resume(self, public_losses: Sequence[PublicLoss]) -> None:
        """Takes over what the checkpoint of a killed run holds: every start tells the same."""
        self.public_losses = list(public_losses)

    def measure(self, model: Any, step: int) -> bool:
        """Evaluates after a public step; True if a loss must be saved before it is reported."""
        if self._evaluate is None or step not in self._measured:
            return False
        import torch

        with torch.no_grad():
            self.public_losses.append((step, float(self._evaluate(model))))
        return True

    def tell(self, step: int) -> None:
        """Reports `step` finished steps, where it is a public step."""
        if self._progress is None or step not in self._reported:
            return
        line = f"step {step} of {self._steps}"
        if step in self._measured:
            found = self._measurements(step)
            line = ", ".join([line, *found])
            self._latest = f" (at step {step}: {', '.join(found)})" if found else ""
        else:
            line += self._latest
        self._progress(step / max(1, self._steps), line)

    def _measurements(self, step: int) -> list[str]:
        found = []
        if self._epsilon is not None:
            found.append(
                f"ε {epsilon_up(self._epsilon(step))} of {epsilon_up(self._epsilon(self._steps))}"
            )
        found += [f"public loss {loss:.3f}" for at, loss in self.public_losses if at == step]
        return found
