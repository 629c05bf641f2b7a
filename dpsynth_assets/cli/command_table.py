"""The commands of `dpsynth`, each imported when it is called, with the examples of its help.

`dpsynth`, its help and the shell's completion list all commands; importing them for that would
take seconds. A test walks all commands: each has an example here, and each example parses.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from dpsynth_assets.cli.one_line import OneLineGroup

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
        command = typer.main.get_command(found if isinstance(found, typer.Typer) else _alone(found))
        command.name = name
        return with_examples(command, name)


ENTRIES: dict[str, Entry] = {
    "init": Entry("init:init", "Write a dataset file for your own data."),
    "plan": Entry("plan:plan", "Price every declared release from public facts alone."),
    "advise": Entry("advise:advise", "Say which method fits declared data, and at what price."),
    "run": Entry("run:run", "Make a cohort's corpora: pays, after asking."),
    "report": Entry("report:report", "Show the corpora of a cohort: guarantee, scores, samples."),
    "export": Entry("export:export", "Write a corpus or a generator as a package that leaves."),
    "verify": Entry("export:verify", "Check such a package, without the ledger."),
    "serve": Entry("serve:serve", "Serve rows of what was released, like OpenAI's API."),
    "evaluate": Entry("evaluate:evaluate", "Score a synthetic corpus against real text."),
    "benchmark": Entry("benchmark:app", "Run methods side by side on public corpora."),
    "purge": Entry("purge:purge", "Remove private intermediates from the store."),
    "leak-scan": Entry("leak_scan:leak_scan", "Search what was written for planted canaries."),
    "ui": Entry("serve:ui", "Serve the web UI and run the daemon, until interrupted."),
    "datasets": Entry("datasets:app", "Check and list dataset files."),
    "account": Entry("pricing:account", "Price mechanisms without any data."),
    "calibrate": Entry("pricing:calibrate", "Find the noise that a target needs."),
    "audit": Entry("audit:app", "Audit a cohort; test mechanisms by their claims."),
    "budgets": Entry("budgets:budgets", "Show ε spent and left of every cohort, and rounds left."),
    "ledger": Entry("ledger:app", "Show, verify and export the privacy ledger."),
    "secrets": Entry("secrets:app", "Compare noise for secrets with Gaussian DP."),
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


def _alone(function: Callable[..., None]) -> typer.Typer:
    """The application of one function that is a command by itself."""
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(function)
    return application


EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": (
        "dpsynth init reviews --from reviews.csv",
        "dpsynth init reviews --from reviews.csv --unit customer --epsilon 4 --records 20000",
    ),
    "plan": (
        "dpsynth plan tickets",
        "dpsynth plan tickets --all",
        "dpsynth plan tickets --optimise --texts public.parquet --output better.yaml",
    ),
    "run": (
        "dpsynth run tickets",
        "dpsynth run tickets --release 2026-12 --yes",
        "dpsynth run tickets --select '+key:\"tickets/shared/*\"'",
    ),
    "advise": (
        "dpsynth advise tickets",
        "dpsynth advise --records 5000 --epsilon 3 --rows 10000 --domain 'customer reviews'",
    ),
    "benchmark run": (
        "dpsynth benchmark run english_leaderboard",
        "dpsynth benchmark run benchmarks/leaderboard/defs.yaml --dataset yelp --minutes 60",
    ),
    "benchmark report": ("dpsynth benchmark report english_leaderboard --output docs",),
    "benchmark export": ("dpsynth benchmark export english_leaderboard cells.jsonl",),
    "benchmark import": ("dpsynth benchmark import english_leaderboard cells.jsonl",),
    "report": ("dpsynth report tickets", "dpsynth report tickets --json"),
    "export": (
        "dpsynth export tickets mean_clustered --license cc-by-4.0 --language en",
        "dpsynth export tickets ctcl --what generator --output tickets_generator",
    ),
    "verify": ("dpsynth verify tickets_generator --head 3f2a...",),
    "serve": ("dpsynth serve tickets", "dpsynth serve tickets --method ctcl --port 8400"),
    "evaluate": (
        "dpsynth evaluate --real real.csv --synthetic corpus.parquet",
        "dpsynth evaluate --real real.csv --synthetic corpus.parquet --output scores",
    ),
    "purge": ("dpsynth purge --dry-run", "dpsynth purge tickets --older-than 30d"),
    "leak-scan": ("dpsynth leak-scan --canaries canaries.txt",),
    "ui": ("dpsynth ui", "dpsynth ui --port 3001 --read-only"),
    "datasets check": ("dpsynth datasets check", "dpsynth datasets check reviews.yaml"),
    "datasets list": ("dpsynth datasets list --json",),
    "datasets cohorts": ("dpsynth datasets cohorts",),
    "datasets fields": ("dpsynth datasets fields",),
    "datasets methods": ("dpsynth datasets methods",),
    "budgets": ("dpsynth budgets", "dpsynth budgets --json"),
    "audit cohort": (
        "dpsynth audit tickets",
        "dpsynth audit cohort tickets --format html --output trail.html",
    ),
    "audit used-by": ("dpsynth audit used-by tickets --record T17",),
    "audit run": ("dpsynth audit run --with-planted-bugs",),
    "audit show": ("dpsynth audit show",),
    "audit list": ("dpsynth audit list",),
    "ledger show": ("dpsynth ledger show --cohort tickets",),
    "ledger verify": ("dpsynth ledger verify",),
    "ledger head": ("dpsynth ledger head", "dpsynth ledger head --entries 120"),
    "ledger export": ("dpsynth ledger export --format csv --output ledger.csv",),
    "ledger restore": (
        'dpsynth ledger restore backup.sqlite --because "the disk failed on 3 March"',
    ),
    "ledger accept": ('dpsynth ledger accept --because "entries 12 to 14 are lost"',),
    "secrets noise-ratio": ("dpsynth secrets noise-ratio --ratios 2,10,50",),
    "account tokens": (
        "dpsynth account tokens --expected-batch-size 250 --clip-bound 10 --temperature 2 "
        "--tokens 100 --delta 1e-6",
    ),
    "account private-prediction": (
        "dpsynth account private-prediction --expected-batch-size 255 --clip-bound 10 "
        "--temperature 2 --private-tokens 100 --svt-noise-scale 0.2 --delta 1e-6",
    ),
    "account svt": (
        "dpsynth account svt --expected-batch-size 255 --noise-scale 0.2 --private-tokens 100 "
        "--delta 1e-6",
    ),
    "account bounded-range": ("dpsynth account bounded-range --eta 0.1 --count 500 --delta 1e-6",),
    "account histogram": ("dpsynth account histogram --scale 4 --delta 1e-6",),
    "account voting": ("dpsynth account voting --noise-std 5 --iterations 10 --delta 1e-6",),
    "account gaussian": ("dpsynth account gaussian --noise-multiplier 2 --delta 1e-6",),
    "account vectors": (
        "dpsynth account vectors --records 4000 --l2-bound 1 --noise-std 0.01 --delta 1e-6",
    ),
    "account dp-sgd": (
        "dpsynth account dp-sgd --records 75316 --expected-batch-size 4096 --steps 2016 "
        "--noise-multiplier 1.2 --delta 1e-6",
    ),
    "account secret": ("dpsynth account secret --prior 0.0001 --posterior 0.005",),
    "account compose": ("dpsynth account compose events.json --delta 1e-6",),
    "account table10": ("dpsynth account table10",),
    "calibrate private-prediction": (
        "dpsynth calibrate private-prediction --expected-batch-size 255 --clip-bound 10 "
        "--temperature 2 --epsilon 10 --delta 1e-6",
    ),
    "calibrate histogram": ("dpsynth calibrate histogram --epsilon 0.5 --delta 1e-6",),
    "calibrate voting": ("dpsynth calibrate voting --iterations 10 --epsilon 4 --delta 1e-6",),
    "calibrate gaussian": ("dpsynth calibrate gaussian --sensitivity 1 --epsilon 1 --delta 1e-6",),
    "calibrate vectors": (
        "dpsynth calibrate vectors --records 4000 --l2-bound 1 --epsilon 2 --delta 1e-6",
    ),
    "calibrate dp-sgd": (
        "dpsynth calibrate dp-sgd --records 75316 --expected-batch-size 4096 --steps 2016 "
        "--epsilon 4 --delta 1e-6",
    ),
    "calibrate secret": ("dpsynth calibrate secret --prior 0.0001 --posterior 0.005",),
}
"""Path of each command below `dpsynth` -> examples."""


def with_examples(command: Any, path: str) -> Any:
    """Ends the help of a command, and of all commands below it, with their examples.

    Args:
        command: A command, or a group of commands.
        path: Its names after `dpsynth`, separated by a space.
    """
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
