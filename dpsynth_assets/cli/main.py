"""The `dpsynth` command: declare, plan, run, evaluate, and audit from a terminal."""

import os
import signal
from typing import Annotated

import typer

from dpsynth_assets.cli.command_table import CommandTable

app = typer.Typer(
    name="dpsynth",
    cls=CommandTable,
    epilog="Examples:\n\ndpsynth\n\ndpsynth init reviews --from reviews.csv\n\ndpsynth run tickets",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    """Prints the installed version, and ends."""
    if not asked:
        return
    from importlib.metadata import version

    typer.echo(f"dpsynth {version('dpsynth_assets')}")
    raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differentially private synthetic text, with every ε (epsilon) in one ledger.

    Without a command it says where it works, what each cohort has spent, and what to do next.
    """
    from dpsynth_assets.privacy.cpu_threads import check_declared_threads

    os.umask(0o077)  # Also of what it starts: daemon, web server, runs.
    try:
        check_declared_threads()
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    if context.invoked_subcommand is None:
        from dpsynth_assets.cli.budgets import overview

        overview()
    else:
        from dpsynth_assets.files.redaction import keep_out_of_core_dumps

        keep_out_of_core_dumps()


def main() -> None:
    """Runs the command; SIGTERM interrupts it as Ctrl-C does."""
    from dpsynth_assets.orchestration.resources.interrupting import never_dropped

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    never_dropped()
    app()
