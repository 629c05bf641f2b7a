"""How far a whole run is, from Dagster's events: step k of n, and the minutes that are left."""

import time
from collections.abc import Callable, Mapping, Sequence

OTHERS = ""
"""Stands for all steps that are no method's: audits, embeddings, references, scores."""

TOLD_FROM = 0.1
"""Share of a step from which on it says how long the rest takes."""


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
            expected: Seconds that all steps of a method are expected to take, by its folder; those
                of all other steps by `OTHERS`. Any may be missing.
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
        from dpsynth_assets.orchestration.resources.progress import in_time

        number = min(len(self._took) + (self._current is not None), len(self._steps))
        left = self.seconds_left()
        told = "" if left is None else f", about {in_time(max(60.0, left))} left"
        name = "" if self._current is None else f": {self._current.replace('__', '/')}"
        return f"Step {number} of {len(self._steps)}{told}{name}"

    def seconds_left(self) -> float | None:
        """Seconds until the run ends; None where nothing is expected of any step that is left.

        What is expected of a method, less what its steps took, is left as long as one of them is;
        of the step that runs at least what its share says, once a tenth of it is done.
        """
        ahead = {self._group(step) for step in self._steps if step not in self._took}
        known = [group for group in ahead if group in self._expected]
        return sum(map(self._left_of, known)) if known else None

    def _group(self, step: str) -> str:
        return next((each for each in self._expected if each and f"__{each}__" in step), OTHERS)

    def _left_of(self, group: str) -> float:
        took = sum(seconds for step, seconds in self._took.items() if self._group(step) == group)
        if self._current is None or self._group(self._current) != group:
            return max(0.0, self._expected[group] - took)
        elapsed = self._clock() - self._since
        told = elapsed * (1 - self._share) / self._share if self._share >= TOLD_FROM else 0.0
        return max(told, self._expected[group] - took - elapsed)
