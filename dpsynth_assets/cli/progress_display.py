"""Progress of `dpsynth run`: bars in a terminal, lines with ETA in a file or a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dpsynth_assets.methods.inputs import ProgressCallback

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_display(console: Console) -> Iterator[None]:
    """Shows the progress of this process's assets for as long as the block lasts."""
    from dpsynth_assets.resources.progress import show_in_terminal

    if not console.is_terminal:
        show_in_terminal(lambda title: progress_lines(title, console))
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[message]}", style="dim"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        show_in_terminal(lambda title: _bar(title, bars))
        yield
        bars.refresh()


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
    """One line at the beginning, at the end, and every so many seconds between."""
    from dpsynth_assets.resources.progress import coarse, progress_line

    started = clock()
    last: float | None = None

    def report(share: float, message: str) -> None:
        nonlocal last
        now = clock()
        if last is not None and now - last < seconds and share < 1:
            return
        last = now
        line = progress_line(coarse(share), message, now - started)
        console.print(f"{title}: {line}", markup=False, highlight=False, soft_wrap=True)

    return report
