"""Homes with a tiny cohort, and runs in processes that can be held, killed and asked."""

import json
import os
import secrets
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.paths import begin
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE
from dpsynth_assets_tests.children import until
from dpsynth_assets_tests.faults.cohort import COHORT, EVENT, RECORDS, TERMS
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.stored import write_records

__all__ = ["bucket", "s3_address"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 300.0
CLOSING_SECONDS = 60.0
MODULE = "dpsynth_assets_tests.faults.runs"


class Forge:
    """The process that runs are forked from."""

    def __init__(self) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: dict[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answered = select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]
        assert answered, f"{command} was not answered in {PATIENCE_SECONDS:.0f} s"
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        wait_or_end(self._process)


@dataclass
class Run:
    """One run worker."""

    house: "House"
    pid: int
    outcome_file: Path
    process: subprocess.Popen | None = None

    def wait(self) -> int:
        if self.process is not None:
            return self.process.wait(PATIENCE_SECONDS)
        return self.house.forge.ask({"wait": self.pid})

    def outcome(self) -> dict[str, Any]:
        """Waits for the end, and returns what its page shows."""
        status = self.wait()
        assert status == 0, f"the run worker ended with status {status}"
        return json.loads(self.outcome_file.read_text())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def at(self, point: str) -> int:
        """Waits until a process of this house is at a point; returns its process id."""
        until(lambda: self.house.passed(point) or self.ended, f"nobody came to {point!r} in time")
        assert self.house.passed(point), f"the run ended without coming to {point!r}"
        return self.house.passed(point)[-1]

    @property
    def ended(self) -> bool:
        """Whether the run worker has ended, though nobody has waited for it yet."""
        state = Path(f"/proc/{self.pid}/stat")
        return not state.exists() or state.read_text().rsplit(")")[-1].split()[0] == "Z"


@dataclass
class House:
    """One DPSYNTH_HOME with its ledger, stores and Dagster instance, on `disk` if one is given."""

    folder: Path
    forge: Forge
    instance: Path
    disk: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    spawned: list[subprocess.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home, self.marks = (self.disk or self.folder) / "home", self.folder / "marks"
        shutil.copytree(self.instance, self.home / "dagster")
        self.marks.mkdir()
        (self.home / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        begin(self.home, lambda: False)
        store = SensitiveStore.at(str(self.home / "sensitive"))
        write_records(store, COHORT, "source", RECORDS)
        store.read_records.note_read(COHORT, "version 1", "declared", "rows")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DPSYNTH_HOME": str(self.home),
            "DAGSTER_HOME": str(self.home / "dagster"),
            "DAGSTER_REDACT_USER_CODE_ERRORS": "1",
            "FAULTS_MARKS": str(self.marks),
            **self.variables,
        }

    @property
    def url(self) -> str:
        default = f"sqlite:///{self.home / 'ledger' / 'ledger.sqlite'}"
        return self.variables.get("DPSYNTH_LEDGER_URL", default)

    @property
    def store(self) -> ReleaseStore:
        return ReleaseStore.at(
            self.variables.get("FAULTS_STORE", "") or str(self.home / "artifacts" / "releases")
        )

    def start(self, **variables: str) -> Run:
        """Forks a run worker."""
        outcome = self.folder / f"outcome {secrets.token_hex(4)}.json"
        asked = {"start": {**self.environment, **variables}, "outcome": str(outcome)}
        return Run(self, self.forge.ask(asked), outcome)

    def killed_at(self, point: str) -> None:
        """Kills a run worker at a point, and lets the next one pass it."""
        self.hold(point)
        run = self.start()
        run.at(point)
        run.kill()
        self.forget_marks()

    def spawn(self) -> Run:
        """Starts a run worker as a new process, which starts its steps as processes again."""
        outcome = self.folder / f"outcome {secrets.token_hex(4)}.json"
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(outcome)],
            cwd=ROOT,
            env={**os.environ, "POLARS_MAX_THREADS": "1", **self.environment},
        )
        self.spawned.append(process)
        return Run(self, process.pid, outcome, process)

    def close(self) -> None:
        """Lets whatever a failed test has left go on to its end."""
        self.forget_marks()
        for process in self.spawned:
            wait_or_end(process)

    def run(self, **variables: str) -> dict[str, Any]:
        return self.start(**variables).outcome()

    def hold(self, point: str) -> None:
        (self.marks / f"hold {point}").touch()

    def free(self, point: str) -> None:
        (self.marks / f"hold {point}").unlink()

    def passed(self, point: str) -> list[int]:
        """Process ids that were at a point."""
        return [int(path.suffix[1:]) for path in self.marks.glob(f"{point}.*")]

    def wait_for(self, point: str) -> None:
        until(lambda: self.passed(point), f"nobody came to {point!r}")

    def said(self) -> str:
        """What the pages of the runs show, read from outside."""
        texts = []
        for path in self.home.glob("dagster/history/runs/*.db"):
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                try:
                    rows = connection.execute("SELECT event FROM event_logs").fetchall()
                except sqlite3.OperationalError:
                    continue  # Its tables are about to be made.
                texts += [row[0] for row in rows]
        return " ".join(texts)

    def forget_marks(self, point: str = "") -> None:
        """Removes the marks of a point, so that the next one is news, or all."""
        for path in self.marks.glob(f"{point}.*" if point else "*"):
            path.unlink()

    def ledger(self) -> Ledger:
        return Ledger(self.url)

    def charges(self) -> int:
        return self.ledger().count_charges()

    def released(self) -> list[str]:
        """Digests that the ledger has committed."""
        return [e.artifact_digest or "" for e in self.ledger().entries() if e.kind == COMMIT]

    def assert_whole(self, *, charges: int, released: int) -> None:
        """The chain verifies, every charge is in the sum, every committed value is in the store."""
        ledger, store = self.ledger(), self.store
        report = ledger.verify()
        assert report.ok, report.problems
        entries = ledger.entries()
        kinds = Counter(entry.kind for entry in entries)
        assert (kinds[RESERVE], kinds[COMMIT]) == (charges, released)
        spend = ledger.spend(COHORT, TERMS)
        assert spend.rho >= charges * EVENT.rho
        assert spend.epsilon <= TERMS.epsilon
        for entry in entries:
            if entry.kind == COMMIT:
                assert store.digest(entry.reservation) == entry.artifact_digest


def wait_or_end(process: subprocess.Popen) -> None:
    """Waits for the end of a process, and ends it if it does not come."""
    try:
        process.wait(CLOSING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(CLOSING_SECONDS)


@pytest.fixture(scope="session")
def forge():
    process = Forge()
    yield process
    process.close()


@pytest.fixture(scope="session")
def instance(tmp_path_factory):
    """A DAGSTER_HOME with its tables, to be copied: making them takes longer than a run."""
    folder = tmp_path_factory.mktemp("instance")
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(folder)) as made:
        made.get_runs()
    return folder


@pytest.fixture
def house(tmp_path, forge, instance, monkeypatch):
    for name in ("LEDGER_URL", "STORE_URL", "SENSITIVE_KEY", "SENSITIVE_URL"):
        monkeypatch.delenv(f"DPSYNTH_{name}", raising=False)
    made = House(tmp_path, forge, instance)
    yield made
    made.close()
