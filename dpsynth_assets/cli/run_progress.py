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
            expected: Seconds that the steps of each release are expected to take together, by its
                folder, and all other steps under ""; none where nothing is known.
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
        """Seconds until the run ends; None where nothing is known.

        Of a release with steps left, what was expected less what its steps took; at least what the
        share of the step that runs says, once a tenth of it is done.
        """
        if not self._expected:
            return None
        left = {self._work_of(step) for step in self._steps if step not in self._took}
        rest = {work: self._expected.get(work, 0.0) for work in left}
        elapsed = self._clock() - self._since
        took = {**self._took} if self._current is None else {**self._took, self._current: elapsed}
        for step, seconds in took.items():
            if (work := self._work_of(step)) in rest:
                rest[work] -= seconds
        if self._current is not None and 0.1 <= self._share < 1:
            work = self._work_of(self._current)
            rest[work] = max(rest[work], elapsed * (1 - self._share) / self._share)
        return sum(max(0.0, seconds) for seconds in rest.values())

    def _work_of(self, step: str) -> str:
        """Folder of the release that a step belongs to, such as `aug_pe`; "" where it is none."""
        return next((part for part in step.split("__")[1:] if part in self._expected), "")
