"""Examples of every command, shown at the end of its `--help`.

A test walks all commands: each has an example here, and each example parses.
"""

from typing import Any

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
