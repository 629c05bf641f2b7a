"""The `dpsynth` command: declare, plan, run, evaluate, and audit from a terminal.

`dpsynth`, its help and the shell's completion list all commands; importing them for that would
take seconds, so each is imported when it is called. A test walks all commands: each has an example
in its help, and each example parses.
"""

import importlib
import inspect
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpsynth_assets.cli.terminal import OneLineGroup

_CLI = "dpsynth_assets.cli"


@dataclass(frozen=True)
class Entry:
    """A command that is not imported yet.

    Attributes:
        place: Module below `dpsynth_assets.cli` and the name in it: `plan:plan`.
        help: Its line in the list of commands.
    """

    place: str
    help: str

    def load(self, name: str) -> Any:
        """Imports the command, or group of commands; `name` is what it is called by."""
        module, _, attribute = self.place.partition(":")
        found = getattr(importlib.import_module(f"{_CLI}.{module}"), attribute)
        command = (typer.main.get_group if isinstance(found, typer.Typer) else _alone)(found)
        command.name = name
        return with_examples(command, name)


ENTRIES: dict[str, Entry] = {
    "demo": Entry("run:demo", "Make two corpora from invented letters: the demo."),
    "init": Entry("init:init", "Write a dataset file for your own data."),
    "plan": Entry("plan:plan", "Show the privacy cost of each declared release."),
    "advise": Entry("advise:advise", "Recommend methods for declared data, with costs."),
    "key": Entry("approvals:key", "Print the key that signs ledger entries, or make one."),
    "approve": Entry("approvals:approve", "Approve a cohort's plan, so that others may run it."),
    "run": Entry("run:run", "Make a cohort's corpora; asks before it spends ε."),
    "report": Entry("report:report", "Show the corpora of a cohort: guarantee, scores, samples."),
    "statement": Entry("report:statement", "Print a privacy statement, or an officer's pack."),
    "export": Entry("report:export", "Write a corpus or a generator as a package to share."),
    "verify": Entry("report:verify", "Check a shared package, without the ledger."),
    "serve": Entry("serve:serve", "Serve synthetic rows through OpenAI's API."),
    "evaluate": Entry("evaluate:evaluate", "Score a synthetic corpus against real text."),
    "benchmark": Entry("benchmark:app", "Run methods side by side on public corpora."),
    "purge": Entry("purge:purge", "Remove private files from the sensitive store."),
    "leak-scan": Entry("purge:leak_scan", "Search written files for planted canaries."),
    "ui": Entry("serve:ui", "Serve the web UI and run the daemon, until interrupted."),
    "doctor": Entry("doctor:doctor", "Show versions, kernels and problems for a bug report."),
    "datasets": Entry("datasets:app", "Check dataset files; list cohorts, fields and methods."),
    "audit": Entry("audit:app", "Audit a cohort; test mechanisms against claims."),
    "budgets": Entry("cohorts:budgets", "Show the ε spent, the ε left and rounds left."),
    "ledger": Entry("ledger:app", "Show, verify and recover the privacy ledger."),
}
"""Name of each command -> where it is; in the order of the help."""


class CommandTable(OneLineGroup):
    """The root of all commands; lists them all, imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        """Takes the settings of a group; the commands are those of the table."""
        super().__init__(**settings)
        for name, entry in ENTRIES.items():
            self.commands[name] = TyperCommand(name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Imports the command that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in ENTRIES:
            command = ENTRIES[name].load(name)
        return name, command, rest


def _alone(function: Callable[..., None]) -> Any:
    """The command of one function."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(function)
    return typer.main.get_command(application)


def _examples() -> Iterator[tuple[str, tuple[str, ...]]]:
    text = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")
    for block in re.split(r"\n(?! )", text.rstrip()):
        path, *examples = block.splitlines()
        yield path, tuple(map(str.strip, examples))


EXAMPLES = dict(_examples())
"""Path of each command below `dpsynth` -> examples."""


_SECTION = re.compile(r"^(?:Args|Attributes):\n(?: .*\n?|\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)


def parted(docstring: str) -> tuple[str, dict[str, str]]:
    """Parts a docstring into its text and what it says of each argument or attribute."""
    text = inspect.cleandoc(docstring)
    entries = [pair for part in _SECTION.findall(text) for pair in _ENTRY.findall(part)]
    return _SECTION.sub("", text).strip(), {name: " ".join(s.split()) for name, s in entries}


def with_examples(command: Any, path: str) -> Any:
    """Completes the help of a command and of all below it: its arguments, and examples at the end.

    What an option is, its function's docstring says below `Args`.

    Args:
        command: A command, or a group of commands.
        path: Its names after `dpsynth`, separated by a space.
    """
    command.help, said = parted(command.help or "")
    for option in command.params:
        option.help = said.get(option.name, option.help)
    below = getattr(command, "commands", {})
    for name, each in below.items():
        with_examples(each, f"{path} {name}")
    examples = EXAMPLES.get(path) or tuple(
        EXAMPLES[f"{path} {name}"][0] for name in below if f"{path} {name}" in EXAMPLES
    )
    if examples:
        command.epilog = "\n\n".join(
            ("Examples:", *(each.replace("[", r"\[") for each in examples))
        )
    return command


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

    Without a command it shows its folder, what each cohort has spent, and what to do next.
    """
    from dpsynth_assets.privacy.cpu import check_declared_threads

    os.umask(0o077)  # Also of what it starts: daemon, web server, runs.
    try:
        check_declared_threads()
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    if context.invoked_subcommand is None:
        from dpsynth_assets.cli.cohorts import overview

        overview()
    else:
        from dpsynth_assets.files.redaction import keep_out_of_core_dumps

        keep_out_of_core_dumps()


def main() -> None:
    """Runs the command; SIGTERM interrupts it as Ctrl-C does."""
    from dpsynth_assets.orchestration.resources.live_runs import never_dropped

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    never_dropped()
    app()
