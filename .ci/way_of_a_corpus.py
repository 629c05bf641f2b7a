"""Counts the modules on two ways through the package: how much one reads to follow one act.

`corpus`: cohort `tickets`, method mean_clustered, from records to a labelled corpus, by a tiny
model with random weights. `epsilon`: the ε of that file, from its YAML over plan and charge to the
label. A module is imported where Python loaded it, and entered where a function of it ran after
that. Each way runs in a process of its own. Prints one line a way; with limits, fails where a way
enters more modules.

    python .ci/way_of_a_corpus.py [CORPUS EPSILON]
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = f"{ROOT / 'dpsynth_assets'}{os.sep}"
FILE = ROOT / "dpsynth_assets" / "defs" / "tickets" / "defs.yaml"
METHOD = "mean_clustered"
ROWS = 200
SMALL = {
    "expected_batch_size": 16,
    "max_batches": 4,
    "clip_bound": 4.5,
    "max_document_tokens": 8,
    "max_example_tokens": 24,
    "min_tokens_for_new_document": 2,
}


def corpus(folder: Path) -> Callable[[], object]:
    """Prepares a corpus of `tickets`: the records, and a public base with a tiny model."""
    import polars as pl

    from dpsynth_assets_tests.tiny_models import write_language_model

    demo = ROOT / "data" / "demo"
    private = pl.read_ndjson(demo / "private_tickets.jsonl").head(ROWS).select("text", "label")
    public = pl.read_parquet(demo / "public.parquet").head(ROWS).select("text", "label")
    model = write_language_model(folder / "model", public["text"].to_list())

    def way() -> object:
        from dpsynth_assets import PublicBase, run_method

        base = PublicBase(public, language_model={"kind": "pretrained", "model": str(model)})
        labels = sorted(private["label"].unique())
        return run_method(
            METHOD, private, base, epsilon=60.0, delta=1e-6, settings=SMALL, labels=labels,
            cohort="tickets",
        ).corpus  # fmt: skip

    return way


def epsilon(folder: Path) -> Callable[[], object]:
    """Prepares nothing: the way of an ε reads the file, plans, charges and writes a label."""

    def way() -> object:
        from dpsynth_assets.datasets.files import parse_dataset_file
        from dpsynth_assets.methods.dataset_plan import stage_request
        from dpsynth_assets.methods.planning import plan_dataset
        from dpsynth_assets.privacy.ledger import Ledger
        from dpsynth_assets.report.label import corpus_label

        ((file, *_), _) = parse_dataset_file(FILE)
        plan = plan_dataset(file.spec)
        planned = next(each for each in plan.methods if each.method.name == METHOD)
        request = stage_request(file.spec, planned, planned.plan.stages[0], release="1")
        ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
        charge = ledger.reserve(request, plan.budget, plan.releases)
        ledger.commit(charge, artifact_digest="0" * 64, artifact_uri="nowhere")
        return corpus_label(ledger.entries(), charge.id)["guarantee"]["epsilon"]

    return way


WAYS = {"corpus": corpus, "epsilon": epsilon}


def walked(prepare: Callable[[Path], Callable[[], object]]) -> tuple[int, int]:
    """Walks a way; returns how many modules of the package it imported and entered."""
    entered: set[str] = set()
    here = threading.local()

    def note(frame: Any, event: str, _: object) -> None:
        code, depth = frame.f_code, getattr(here, "imports", 0)
        if (
            code.co_name == "<module>"
        ):  # What runs while a module is imported is no step of the way.
            here.imports = depth + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and depth == 0 and code.co_filename.startswith(PACKAGE):
            entered.add(code.co_filename)

    sys.path.insert(0, str(ROOT))  # This tree's package, whichever one is installed.
    with tempfile.TemporaryDirectory(prefix="dpsynth-way-") as scratch:
        os.environ["DPSYNTH_HOME"] = str(Path(scratch) / "home")
        way = prepare(Path(scratch))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            way()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    imported = [
        module
        for module in list(sys.modules.values())
        if str(getattr(module, "__file__", "") or "").startswith(PACKAGE)
    ]
    return len(imported), len(entered)


def main() -> int:
    """Walks every way, each in a process of its own."""
    limits = dict(zip(WAYS, map(int, sys.argv[1:]), strict=False))
    ended = 0
    for name in WAYS:
        command = [sys.executable, __file__, f"--way={name}"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        imported, entered = map(int, said.stdout.split()[-2:])
        sys.stdout.write(f"{name}: {imported} modules imported, {entered} entered\n")
        if entered > limits.get(name, entered):
            sys.stderr.write(f"{name}: expected at most {limits[name]} entered, got {entered}.\n")
            ended = 1
    return ended


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--way="):
        sys.stdout.write("{} {}".format(*walked(WAYS[sys.argv[1].removeprefix("--way=")])))
    else:
        sys.exit(main())
