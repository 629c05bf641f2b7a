"""A whole cohort through a Ray cluster: corpora are published, nothing private stays with Ray."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.cards import LABEL_FILE
from dpsynth_assets_tests.children import until
from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.end_to_end.conftest import (
    CANARY,
    LABELS,
    private_spec,
    public_spec,
    write_sources,
)
from dpsynth_assets_tests.ray.conftest import SOON

pytestmark = pytest.mark.slow

CORPORA = ("mean_uniform", "dp_fine_tuning")
CHARGED, PREDICTED = (
    "letters/dp_fine_tuning/finetuned_generator",
    "letters/mean_uniform/candidate_corpus",
)
ROWS = 40
RUN_SECONDS = 1200.0


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters")
    write_sources(folder)
    datasets = folder / "datasets"
    base = public_spec(folder).model_dump(mode="json", exclude_unset=True)
    written(datasets / "tiny.yaml", base, "PublicData")
    written(datasets / "letters.yaml", cohort(folder))
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return folder


def started(folder, cluster, selection, **variables):
    """Starts a run that submits its steps to the cluster."""
    environment = {
        **os.environ,
        **cluster.variables,
        **SOON,
        "DPSYNTH_HOME": str(folder / "home"),
        "DPSYNTH_DATASETS": str(folder / "datasets"),
        "DPSYNTH_EXECUTOR": "ray",
        "DAGSTER_HOME": str(folder / "dagster"),
        "DAGSTER_REDACT_USER_CODE_ERRORS": "1",
        **variables,
    }
    code = "from dagster._cli import main; main()"
    command = ["asset", "materialize", "-m", "dpsynth_assets.definitions", "--select", selection]
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(run):
    """Waits for a run, but not for ever; returns its exit code and what it said."""
    try:
        said, _ = run.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    return run.returncode, said


def cohort(folder):
    """A cohort of one method that predicts and one that trains, each with half of the budget."""
    spec = private_spec(folder)
    shared = {"name", "source", "columns", "public_data"}
    training = {"steps": 40, "expected_batch_size": 32, "max_document_tokens": 40, "rows": ROWS}
    settings = {"mean_uniform": spec.methods[0].settings, "dp_fine_tuning": training}
    return spec.model_dump(mode="json", exclude_unset=True, include=shared) | {
        "public_facts": {"labels": {"label": list(LABELS)}, "records": 402},
        "budget": {"epsilon": 60.0, "delta": 1e-5},
        "methods": [
            {"method": name, "budget_share": 0.5, "settings": own} for name, own in settings.items()
        ],
    }


def ledger_of(folder):
    return folder / "home" / "ledger" / "ledger.sqlite"


def charges(folder):
    """Assets that a cohort was charged for; what follows from releases costs nothing."""
    entries = Ledger(f"sqlite:///{ledger_of(folder)}").entries("letters")
    paid = [e for e in entries if e.kind == "reserve" and not is_post_processing(e.event)]
    return sorted(entry.asset for entry in paid)


def is_charged(folder, asset):
    """Asks the file itself, in a hundredth of the time: a step may live for a second only."""
    if not ledger_of(folder).exists():
        return False
    with closing(sqlite3.connect(f"file:{ledger_of(folder)}?mode=ro", uri=True)) as book:
        try:
            asked = "SELECT 1 FROM privacy_ledger WHERE kind = 'reserve' AND asset = ?"
            return book.execute(asked, (asset,)).fetchone() is not None
        except sqlite3.OperationalError:  # Its table is about to be made, or it is locked.
            return False


def process_of(step):
    """The process that executes a step, not the shell that Ray starts it by; None without one."""
    named = f"DAGSTER_RUN_STEP_KEY={step}\0".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            python = (place / "exe").resolve().name.startswith("python")
            runs = python and b"execute_step" in (place / "cmdline").read_bytes()
            if runs and named in (place / "environ").read_bytes():
                return int(place.name)
        except OSError:
            continue
    return None


def test_a_run_that_no_node_can_hold_is_refused_at_once(installation, cluster):
    asked = 'key:"public/tiny/public_language_model"'
    code, said = ended(started(installation, cluster, asked, DPSYNTH_GPU="nvidia.com/gpu"))
    assert code != 0
    assert "Expected a node of the Ray cluster with 1 GPU(s)" in said


def test_a_cohort_whose_step_was_killed_is_published_and_leaves_nothing_private_with_ray(
    installation, cluster
):
    """The step that trains dies under its charge, the others go on, and a second run pays nothing.

    Both corpora have one charge, and the one that may write any number has the rows asked for.
    """
    wanted = " or ".join(f'+key:"letters/{method}/corpus"' for method in CORPORA)
    run = started(installation, cluster, wanted)
    until(lambda: is_charged(installation, CHARGED), "nothing came in time", RUN_SECONDS)
    os.kill(process_of(CHARGED.replace("/", "__")), signal.SIGKILL)
    code, said = ended(run)
    assert code != 0, said
    entries = Ledger(f"sqlite:///{ledger_of(installation)}").entries("letters")
    assert CHARGED not in [entry.asset for entry in entries if entry.kind == "commit"]
    again = f'(key:"{CHARGED}"+ or key:"{PREDICTED}"+) and ({wanted})'
    code, said = ended(started(installation, cluster, again))
    assert code == 0, said
    assert charges(installation) == [CHARGED, PREDICTED]
    released = installation / "home" / "released" / "letters"
    labels = {
        path.parent.name: json.loads(path.read_text()) for path in released.glob(f"*/{LABEL_FILE}")
    }
    assert set(labels) == {"mean_uniform", "dp_fine_tuning"}
    for name, label in labels.items():
        assert 0 < label["guarantee"]["epsilon"] <= 60
        assert pl.read_parquet(released / name / "data").height > 0
    assert pl.read_parquet(released / "dp_fine_tuning" / "data").height == ROWS
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert b"Brackenbury" not in content, path
