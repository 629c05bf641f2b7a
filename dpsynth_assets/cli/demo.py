"""`dpsynth demo`: the demo's invented records and its run, in a clone or any other folder."""

import subprocess
import sys
from pathlib import Path

from dpsynth_assets.cli.run import run
from dpsynth_assets.paths import project_root

RECORDS = "data/demo"
COHORT = "enquiries"


def demo(yes: bool = False) -> None:
    """Make two corpora from 4,000 invented letters to a bank, and score them.

    Outside a clone the letters are written to `data/demo` of this folder first.

    Args:
        yes: Pay without asking.
    """
    folder = project_root() / RECORDS
    if not (folder / f"private_{COHORT}.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        generator = Path(__file__).parents[1] / "demo" / "write.py"
        subprocess.run([sys.executable, str(generator), str(folder)], check=True)  # noqa: S603
    run(COHORT, yes=yes)
