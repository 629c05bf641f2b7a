"""Shows the progress of a run: bars on a terminal, lines with a remaining time elsewhere."""

from collections.abc import Iterator
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

from dpsynth_assets.cli.terminal import say
from dpsynth_assets.methods.inputs import ProgressCallback

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_display(console: Console) -> Iterator[None]:
    """Shows the steps of this process with progress; bars on a terminal, else lines.

    Args:
        console: Where it is shown.
    """
    from dpsynth_assets.orchestration.resources.progress import show_in_terminal

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


def _bar(title: str, bars: Progress) -> ProgressCallback:
    task: TaskID = bars.add_task(title, total=1.0, message="")

    def report(share: float, message: str) -> None:
        bars.update(task, completed=share, message=message)

    return report


def progress_lines(
    title: str, console: Console, seconds: float = SECONDS_BETWEEN_LINES
) -> ProgressCallback:
    """One line at the beginning, at the end, and every few seconds between."""
    from dpsynth_assets.orchestration.resources.progress import in_lines

    return in_lines(lambda line: say(f"{title}: {line}", to=console), seconds)
