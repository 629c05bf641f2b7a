"""What commands share: options, lines as they are, tables, JSON, and refusals in one line.

Where a command cannot be done it ends with a line on stderr, never a traceback. Exit code 2: the
request is wrong, or is refused. 1: something else failed. 130: interrupted.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Annotated, Any, NoReturn, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from dpsynth_assets.files.redaction import may_be_shown, redacted
from dpsynth_assets.privacy.directed_rounding import MISSING

WRONG_REQUEST, FAILED, INTERRUPTED = 2, 1, 130

_Misuse = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Every error of a command line (an unknown option, too); typer exports only this subclass."""

_NOT_THE_USERS = {"StoreUnavailableError", "SensitiveKeyError"}
_DAGSTER_INTERRUPTED = {"DagsterExecutionInterruptedError", "StepInterruptedError"}
_OF_A_PATH = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def say(*lines: str, style: str = "", err: bool = False, to: Console | None = None) -> None:
    """Prints lines as they are: nothing in them is markup, and nothing is wrapped.

    Args:
        lines: The lines.
        style: Colour.
        err: Whether they go to stderr.
        to: Where they go instead.
    """
    console = to or Console(stderr=err)
    for line in lines:
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """Escapes control characters, so that a terminal shows them and does not act on them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def complain(*lines: str) -> None:
    """Says on stderr what is wrong."""
    say(*lines, style="red", err=True)


def refuse(message: str) -> NoReturn:
    """Says why a request is not done, and ends."""
    complain(message)
    raise typer.Exit(WRONG_REQUEST)


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds, whose messages may be shown, into a line and exit code 2."""
    try:
        yield
    except kinds as problem:
        refuse(" ".join(str(problem).split()))


def answer(value: Any, as_json: bool, told: Callable[[], None], code: int = 0) -> None:
    """Ends a command: prints its result as JSON or in words.

    Args:
        value: The result.
        as_json: Whether JSON is asked for.
        told: Prints it in words.
        code: Exit code.
    """
    if as_json:
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        told()
    if code:
        raise typer.Exit(code)


_NUMBER = re.compile(r"[+]?[\d.,]+(e-?\d+)?%?|[—–]|inf|")


def show_table(
    rows: Iterable[Any],
    columns: Mapping[str, Callable[[Any], object]],
    *,
    title: str | None = None,
    caption: str | None = None,
    wraps: Collection[str] | None = None,
    lines: bool = False,
    width: int = 100,
    to: Console | None = None,
) -> None:
    """Prints a table; nothing in it is markup, and no cell is cut that may wrap.

    Columns of numbers are aligned to the right; a column without a value is left out.

    Args:
        rows: What has a row each.
        columns: Title of each column -> what is shown there of a row.
        title: Title of the table.
        caption: What stands below it.
        wraps: Columns whose cells may take several lines; None: all.
        lines: Whether a line is drawn between rows.
        width: Columns of characters that it may take, in a narrower terminal too.
        to: Where it goes; None: stdout.
    """
    table = Table(
        title=None if title is None else Text(title, "table.title"),
        caption=None if caption is None else Text(caption, "table.caption"),
        title_justify="left",
        show_lines=lines,
    )
    rows = list(rows)
    shown = ((name, [cell(row) for row in rows]) for name, cell in columns.items())
    filled = {name: cells for name, cells in shown if {*map(str, cells)} not in ({"—"}, {MISSING})}
    for name, cells in filled.items():
        numeric = all(_NUMBER.fullmatch(str(cell)) for cell in cells)
        table.add_column(
            Text(name),
            justify="right" if numeric else "left",
            no_wrap=wraps is not None and name not in wraps,
            overflow="fold",
        )
    for row in zip(*filled.values(), strict=True):
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    console = to or Console(width=max(width, Console().width))
    console.print(table, highlight=False, markup=False)


Report = Callable[[float, str], None]
"""Takes the share that is done, and a message."""
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Report]:
    """Shows progress on stderr, so that stdout holds results alone."""
    with _line(Console(stderr=True, quiet=quiet)) as line:
        yield line("")


@contextmanager
def progress_display(console: Console) -> Iterator[None]:
    """Shows the steps of this process with progress: a line on a terminal, else several."""
    from dpsynth_assets.orchestration.resources.progress import show_in_terminal

    if not console.is_terminal:
        show_in_terminal(lambda title: progress_lines(title, console))
        yield
        return
    with _line(console) as line:
        show_in_terminal(line)
        yield


def progress_lines(title: str, console: Console, seconds: float = SECONDS_BETWEEN_LINES) -> Report:
    """One line at the beginning, at the end, and every few seconds between."""
    from dpsynth_assets.orchestration.resources.progress import in_lines

    return in_lines(lambda line: say(f"{title}: {line}", to=console), seconds)


@contextmanager
def _line(console: Console) -> Iterator[Callable[[str], Report]]:
    """A line of a terminal for each title that it is given, written over the one before."""
    from dpsynth_assets.orchestration.resources.progress import in_lines

    with console.status("", refresh_per_second=4) as shown:
        yield lambda title: in_lines(lambda line: shown.update(Text(f"{title} {line}")), 0.0)


class OneLineGroup(TyperGroup):
    """The root of all commands: each error becomes a line and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options before the command's name."""
        try:
            return super().parse_args(ctx, args)
        except _Misuse as misuse:
            raise _ended(misuse) from None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last to catch any
            raise _ended(error) from None


def _ended(error: BaseException) -> BaseException:
    """Prints the line of an error; returns what ends the process with its code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error  # Its text is the help.
    line, code = described(error)
    sys.stdout.flush()
    typer.secho(line, err=True, fg=typer.colors.RED)
    return typer.Exit(code)


def described(error: BaseException) -> tuple[str, int]:
    """The line and the exit code of an error.

    **Privacy** Only messages that are written to be shown are shown; of any other error the line
    says what `redacted` does, and the place.
    """
    from dpsynth_assets.datasets.fields import DatasetFileError
    from dpsynth_assets.privacy.errors import PrivacyError
    from dpsynth_assets.records.columns import SourceError

    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in _DAGSTER_INTERRUPTED:
        return "Interrupted. Charges stay; the next run continues from them.", INTERRUPTED
    if isinstance(error, _Misuse):
        return " ".join(error.format_message().split()), WRONG_REQUEST
    if isinstance(error, DatasetFileError):  # A line for each problem.
        return str(error), WRONG_REQUEST
    if isinstance(error, PrivacyError | SourceError):
        code = FAILED if type(error).__name__ in _NOT_THE_USERS else WRONG_REQUEST
        return " ".join(str(error).split()), code
    if isinstance(error, UnicodeDecodeError):
        return "Expected UTF-8 text, got other bytes. Save the file as UTF-8.", WRONG_REQUEST
    if isinstance(error, OSError) and error.errno is not None:
        return _of_the_machine(error)
    if isinstance(error, FileNotFoundError):  # Polars' and ours name a path, which is no record.
        return " ".join(str(error).split()), WRONG_REQUEST
    line = redacted(_place(error), error)
    return (f"{line} {' '.join(str(error).split())}" if may_be_shown() else line), FAILED


def _of_the_machine(error: OSError) -> tuple[str, int]:
    """A path that is wrong is the user's; a disk that is full is not."""
    place = f"{error.filename}: " if isinstance(error.filename, str | PurePath) else ""
    reason = os.strerror(error.errno or 0)
    if isinstance(error, _OF_A_PATH):
        return f"{place}{reason}. Fix the path or its permissions.", WRONG_REQUEST
    return f"{place}{reason}. Fix this and run again.", FAILED


def _place(error: BaseException) -> str:
    """The last line of the package that an error passed."""
    trace, place = error.__traceback__, "An unknown place"
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if name.startswith("dpsynth_assets"):
            place = f"{name}, line {trace.tb_lineno},"
        trace = trace.tb_next
    return place
