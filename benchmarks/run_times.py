"""Minutes that `dpsynth plan` predicts, and those that a run from an empty home then takes.

    python benchmarks/run_times.py enquiries tickets savings feedback
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
        FBGEMM_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/run_times.py --json enquiries

The second line runs without AVX-512 and VNNI.

Each cohort runs in processes of its own with a home of its own. `ratio` is measured over predicted.
Nothing else may run on the machine meanwhile.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

PATH_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "FBGEMM_ENABLE_INSTRUCTIONS",
)
TELLING_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_COMMAND = "from dpsynth_assets.cli.main import main; main()"
_STEPS = """
import json
import dagster as dg

with dg.DagsterInstance.get() as instance:
    run = instance.get_run_records(limit=1)[0].dagster_run
    stats = instance.get_run_step_stats(run.run_id)
    print(json.dumps({s.step_key: s.end_time - s.start_time for s in stats if s.end_time}))
"""


def main() -> None:
    """Runs the cohorts one after the other and prints a line for each method and each whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("cohorts", nargs="+", help="Names of declared datasets.")
    parser.add_argument("--json", action="store_true", help="One JSON object a line.")
    options = parser.parse_args()
    here = {"processor": processor(), "path": path()}
    if not options.json:
        print(f"{here['processor']}; {here['path']}")
    for cohort in options.cohorts:
        for row in timed(cohort):
            print(json.dumps(here | row) if options.json else in_words(row), flush=True)


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def timed(cohort: str) -> list[dict[str, Any]]:
    """Predicts a cohort's minutes in a new home, runs it there, and compares."""
    with tempfile.TemporaryDirectory(prefix="run_times_") as folder:
        home = {"DPSYNTH_HOME": folder, "DAGSTER_HOME": f"{folder}/dagster"}
        environment = os.environ | home
        planned = json.loads(_ran(["-c", _COMMAND, "plan", cohort, "--json"], environment))
        # The clock of a newcomer starts before anything is unpacked: the plan's own time is shown.
        began = os.times().elapsed
        _ran(["-c", _COMMAND, "run", cohort, "--yes", "--json"], environment)
        whole = (os.times().elapsed - began) / 60
        steps = json.loads(_ran(["-c", _STEPS], environment))
    measured: dict[str, float] = defaultdict(float)
    for key, seconds in steps.items():
        measured[_folder(key)] += seconds / 60
    rows = []
    for release in planned["releases"]:
        folder, _, stage = release["release"].partition("/")
        name = stage if folder == "shared" else folder
        rows.append(_row(cohort, name, release["minutes"], measured[name]))
    return [*rows, _row(cohort, "whole run", planned["minutes"], whole)]


def _folder(step: str) -> str:
    """Method's folder in a step's key `cohort__folder__stage`; of what is shared, the stage."""
    parts = step.split("__")
    if len(parts) < 3:
        return step
    return parts[2] if parts[1] == "shared" else parts[1]


def _row(cohort: str, part: str, predicted: float | None, measured: float) -> dict[str, Any]:
    ratio = measured / predicted if predicted else None
    return {
        "cohort": cohort,
        "part": part,
        "predicted_minutes": None if predicted is None else round(predicted, 2),
        "measured_minutes": round(measured, 2),
        "ratio": None if ratio is None else round(ratio, 2),
    }


def in_words(row: dict[str, Any]) -> str:
    """One line of the table."""
    predicted = "not known" if row["predicted_minutes"] is None else row["predicted_minutes"]
    return (
        f"{row['cohort']:12} {row['part']:20} predicted {predicted!s:>9}  "
        f"measured {row['measured_minutes']:6}  ratio {row['ratio']}"
    )


def _ran(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(arguments[-4:])} ended with exit code {done.returncode}.")
    return done.stdout


def processor() -> str:
    """Name of the processor, its telling instruction sets, and the cores of this process."""
    cores = f"{len(os.sched_getaffinity(0))} cores" if hasattr(os, "sched_getaffinity") else ""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    said = dict(line.partition(":")[::2] for line in lines)
    known = {name.strip(): value.strip() for name, value in said.items()}
    flags = known.get("flags", known.get("Features", "")).split()
    found = " ".join(flag for flag in TELLING_FLAGS if flag in flags)
    return f"{known.get('model name', platform.processor())}, {cores}, {found}"


def path() -> str:
    """Variables that switch kernels off; none: the processor's own."""
    chosen = [f"{name}={os.environ[name]}" for name in PATH_VARIABLES if name in os.environ]
    return " ".join(chosen) or "own kernels"


if __name__ == "__main__":
    main()
