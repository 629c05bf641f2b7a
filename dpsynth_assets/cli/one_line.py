"""How `dpsynth` ends where a command cannot be done: one line on stderr, never a traceback.

Exit code 2: the request is wrong, or is refused. 1: something else failed. 130: interrupted.
"""

import os
import sys
from pathlib import PurePath
from typing import Any, cast

import typer
from typer.core import TyperGroup

from dpsynth_assets.files.redaction import may_be_shown, redacted

WRONG_REQUEST, FAILED, INTERRUPTED = 2, 1, 130

_Misuse = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Every error of a command line (an unknown option, too); typer exports only this subclass."""

_NOT_THE_USERS = {"StoreUnavailableError", "SensitiveKeyError"}
_DAGSTER_INTERRUPTED = {"DagsterExecutionInterruptedError", "StepInterruptedError"}
_OF_A_PATH = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class OneLineGroup(TyperGroup):
    """The root of all commands: whatever one of them raises becomes a line and an exit code."""

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
    from dpsynth_assets.datasets.problems import DatasetFileError
    from dpsynth_assets.privacy.errors import PrivacyError
    from dpsynth_assets.records.columns import SourceError

    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in _DAGSTER_INTERRUPTED:
        return "Interrupted. What was charged stays charged; the next run continues from it.", (
            INTERRUPTED
        )
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
        return f"{place}{reason}. Fix the path, or its rights.", WRONG_REQUEST
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
