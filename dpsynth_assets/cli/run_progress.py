"""How far a whole run is, from Dagster's events: step k of n, and the minutes that are left."""

import math
import time
from collections.abc import Callable, Mapping, Sequence


class RunProgress:
    """Counts the steps of one run and estimates what is left.

    **Privacy** Knows the names of steps, the clock and the shares that steps report, rounded down
    as in a log. Nothing that a step drew reaches it.
    """

    def __init__(
        self,
        expected: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins with no steps.

        Args:
            expected: Seconds that steps are expected to take, by step key; any may be missing.
            clock: Says the seconds that have passed.
        """
        self._expected, self._clock = dict(expected or {}), clock
        self._steps: tuple[str, ...] = ()
        self._took: dict[str, float] = {}
        self._current: str | None = None
        self._since, self._share = clock(), 0.0
        self._started: Callable[[], None] = lambda: None

    def on_start(self, told: Callable[[], None]) -> None:
        """Has `told` called whenever a step starts."""
        self._started = told

    def plan(self, steps: Sequence[str]) -> None:
        """Takes the keys of all steps that the run is to execute."""
        self._steps = tuple(steps)

    def start(self, step: str) -> None:
        """A step starts; in one process they run one after another."""
        self._current, self._since, self._share = step, self._clock(), 0.0
        self._started()

    def report(self, share: float) -> None:
        """The step that runs has done this share of its work, in [0, 1]."""
        self._share = share

    def end(self, step: str) -> None:
        """A step succeeded, failed or was skipped."""
        self._took[step] = self._clock() - self._since if step == self._current else 0.0
        self._current = None if step == self._current else self._current

    def line(self) -> str:
        """How far the run is, e.g. `Step 8 of 31, about 4 min left: enquiries/aug_pe/population`."""
        number = min(len(self._took) + (self._current is not None), len(self._steps))
        left = self.seconds_left()
        told = "" if left is None else f", about {max(1, math.ceil(left / 60))} min left"
        name = "" if self._current is None else f": {self._current.replace('__', '/')}"
        return f"Step {number} of {len(self._steps)}{told}{name}"

    def seconds_left(self) -> float | None:
        """Seconds until the run ends; None as long as there is nothing to go by.

        A step takes what is expected of it; where nothing is, the mean of the steps that ended. Of
        the step that runs, what its share says counts once a tenth of it is done.
        """
        mean = sum(self._took.values()) / len(self._took) if self._took else None
        left = 0.0
        for step in self._steps:
            if step in self._took:
                continue
            seconds = self._expected.get(step, mean)
            if step == self._current:
                seconds = self._rest_of_current(seconds)
            if seconds is None:
                return None
            left += seconds
        return left

    def _rest_of_current(self, expected: float | None) -> float | None:
        elapsed = self._clock() - self._since
        if 0.1 <= self._share < 1:
            return elapsed * (1 - self._share) / self._share
        return None if expected is None else max(0.0, expected - elapsed)
