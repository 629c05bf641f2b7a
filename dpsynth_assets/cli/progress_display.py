"""Shows the progress of a run: bars on a terminal, lines with a remaining time elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dpsynth_assets.cli.terminal import say
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.orchestration.instance import RunProgress

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_display(console: Console, run: RunProgress) -> Iterator[None]:
    """Shows the progress of this process's assets, and of the run, for as long as the block lasts.

    Args:
        console: Where it is shown.
        run: How far the whole run is.
    """
    from dpsynth_assets.orchestration.resources.progress import show_in_terminal

    if not console.is_terminal:
        run.on_start(lambda: say(run.line(), to=console))
        show_in_terminal(lambda title: progress_lines(title, console))
        yield
        return
    with _Bars(run, console) as bars:
        show_in_terminal(lambda title: _bar(title, bars))
        yield
        bars.refresh()


class _Bars(Progress):
    """A bar for each piece of work, and below them the line of the run."""

    def __init__(self, run: RunProgress, console: Console) -> None:
        self._run = run
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[message]}", style="dim"),
            console=console,
            refresh_per_second=4,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, and the line as it is now."""
        yield from super().get_renderables()
        yield Text(self._run.line(), style="bold")


def _bar(title: str, bars: Progress) -> ProgressCallback:
    task: TaskID = bars.add_task(title, total=1.0, message="")

    def report(share: float, message: str) -> None:
        bars.update(task, completed=share, message=message)

    return report


def progress_lines(
    title: str,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
    seconds: float = SECONDS_BETWEEN_LINES,
) -> ProgressCallback:
    """One line at the beginning, at the end, and every few seconds between."""
    from dpsynth_assets.orchestration.resources.progress import ProgressLine

    told = ProgressLine(clock())
    last: float | None = None

    def report(share: float, message: str) -> None:
        nonlocal last
        now = clock()
        line = told.line(share, message, now)
        if last is not None and now - last < seconds and share < 1:
            return
        last = now
        say(f"{title}: {line}", to=console)

    return report
