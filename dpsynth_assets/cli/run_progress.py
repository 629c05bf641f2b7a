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
        """How far the run is: `Step 8 of 31, about 4 min left: enquiries/aug_pe/population`."""
        number = min(len(self._took) + (self._current is not None), len(self._steps))
        left = self.seconds_left()
        told = "" if left is None else f", about {max(1, math.ceil(left / 60))} min left"
        name = "" if self._current is None else f": {self._current.replace('__', '/')}"
        return f"Step {number} of {len(self._steps)}{told}{name}"

    def seconds_left(self) -> float | None:
        """Seconds until the run ends; None where nothing is expected of any step that is left.

        A step of which nothing is expected counts nothing. Of the step that runs, what its share
        says counts once a tenth of it is done.
        """
        ahead = [step for step in self._steps if step not in self._took]
        if not any(step in self._expected for step in ahead):
            return None
        rest = sum(self._expected.get(step, 0.0) for step in ahead if step != self._current)
        return rest + (self._rest_of(self._current) if self._current in ahead else 0.0)

    def _rest_of(self, current: str | None) -> float:
        elapsed = self._clock() - self._since
        if 0.1 <= self._share < 1:
            return elapsed * (1 - self._share) / self._share
        return max(0.0, self._expected.get(current or "", 0.0) - elapsed)
