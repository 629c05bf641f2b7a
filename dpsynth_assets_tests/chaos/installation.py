"""Rounds of runs that are killed in an installation with a pool, and what must hold after each.

    python -m dpsynth_assets_tests.chaos.installation --rounds 100 --database sqlite --seed 1

Each round kills runs at random moments: two that race for one release, the holder of a place in a
pool, one that waits for it, or both, or one that is replacing the published folder; or it leaves a
killed launch behind, takes the ledger away, or kills a daemon, alone or with its runs, while it
works off a queue that the next daemon then empties. The published folder is the old or the new one,
whole. Then one run is left alone. It must come to its end, whoever died before, and pay once. The
database holds Dagster's runs and pools and the ledger. Writes one JSON report.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg

if __name__ == "__main__":
    os.environ["FAULTS_POOL"] = "1"  # Read when the cohort below is imported.

from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE
from dpsynth_assets_tests.chaos import daemons
from dpsynth_assets_tests.chaos.databases import SQLITE, Storage, storage
from dpsynth_assets_tests.faults.cohort import (
    COHORT,
    EVENT,
    PASS,
    POOL,
    PUBLISHED,
    PUBLISHING,
    RESERVED,
    counts_job,
    published,
)

HANG_SECONDS = 120.0
LAUNCH_LIMIT_SECONDS = 15
SETTINGS = f"""
telemetry: {{enabled: false}}
concurrency: {{pools: {{granularity: op, default_limit: 1}}}}
run_monitoring:
  enabled: true
  start_timeout_seconds: {LAUNCH_LIMIT_SECONDS}
  cancel_timeout_seconds: {LAUNCH_LIMIT_SECONDS}
"""
KINDS = ("race", "holder", "waiter", "both", "launch", "ledger", "publish", "daemon")
UNDER_WAY = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


class Installation:
    """One house on one database, and everything that was found wrong in it."""

    def __init__(self, house: Any, place: Storage, seed: int) -> None:
        self.house, self.place, self.random = house, place, random.Random(seed)
        self.problems: list[str] = []
        self.recovered: list[float] = []
        self.rounds: Counter[str] = Counter()
        self.kills = 0
        self.lasts = 2.0
        self.open = dg.DagsterInstance.from_config(str(house.home / "dagster"))
        self.queue = daemons.Queue(house, self.open)

    def run(self, rounds: int, minutes: float) -> None:
        deadline = time.monotonic() + 60 * minutes
        for number in range(rounds):
            if time.monotonic() > deadline:
                break
            kind = KINDS[number % len(KINDS)]
            release = f"release {number}"
            self.rounds[kind] += 1
            getattr(self, f"_{kind}")(release)
            self._leave_alone(kind, release)
            sys.stderr.write(f"{number} {kind} {self.recovered[-1:]} {self.problems[-1:]}\n")
        self._end_launches()

    def _start(self, release: str) -> Any:
        return self.house.start(
            FAULTS_RELEASE=release, FAULTS_EXECUTOR="declared", FAULTS_PUBLISH="1"
        )

    def _kill(self, run: Any) -> None:
        if not run.ended:
            self.kills += 1
        run.kill()

    def _race(self, release: str) -> None:
        """Two runs ask for one release, and each is killed at a random moment."""
        runs = [self._start(release), self._start(release)]
        for run in runs:
            time.sleep(self.random.uniform(0, self.lasts))
            self._kill(run)

    def _holds(self, release: str) -> Any:
        """A run that holds the pool's place, in the middle of its draw."""
        self.house.forget_marks()
        self.house.hold(PASS)
        run = self._start(release)
        run.at(PASS)
        return run

    def _holder(self, release: str) -> None:
        run = self._holds(release)
        time.sleep(self.random.uniform(0, 0.1))
        self._kill(run)
        self.house.forget_marks()

    def _waiter(self, release: str) -> None:
        """The waiter is killed, the holder ends: its place is assigned to a dead step."""
        run = self._holds(f"{release}, another")
        waiter = self._start(release)
        self._until_it_waits()
        self._kill(waiter)
        self.house.forget_marks()
        if not run.outcome()["success"]:
            self.problems.append(f"{release}: the holder failed")

    def _both(self, release: str) -> None:
        run = self._holds(f"{release}, another")
        waiter = self._start(release)
        self._until_it_waits()
        killed = [run, waiter]
        self.random.shuffle(killed)
        for one in killed:
            self._kill(one)
            time.sleep(self.random.uniform(0, 0.2))
        self.house.forget_marks()

    def _launch(self, release: str) -> None:
        """What a daemon leaves that is killed between marking a run and starting its worker."""
        run = self.open.create_run_for_job(counts_job(), tags={"dpsynth/release": release})
        event = dg.DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name)
        self.open.report_dagster_event(event, run_id=run.run_id)

    def _ledger(self, release: str) -> None:
        """The ledger is lost after a killed run: refused, uncharged, until it is back."""
        run = self._holds(release)
        self._kill(run)
        self.house.forget_marks()
        with self.place.lost():
            outcome = self._start(release).outcome()
            if outcome["success"]:
                self.problems.append(f"{release}: paid into a ledger that is not the one it knew")

    def _publish(self, release: str) -> None:
        """A run dies while it replaces the published folder, before or after the exchange."""
        self.house.forget_marks()
        self.house.hold(PUBLISHING)
        run = self._start(release)
        step = run.at(PUBLISHING)
        self.house.forget_marks()
        time.sleep(self.random.uniform(0, 0.06))
        if step != run.pid:
            with suppress(ProcessLookupError):
                os.kill(step, signal.SIGKILL)
        self._kill(run)
        self._published(release)

    def _daemon(self, release: str) -> None:
        """A daemon dies with two runs of one release in its queue; the next one works them off."""
        runs = [self.queue.put(release), self.queue.put(release)]
        point = self.random.choice(("", RESERVED, PASS, PUBLISHING))
        self.house.forget_marks()
        if point:
            self.house.hold(point)
        first = self.queue.daemon()
        deadline = time.monotonic() + HANG_SECONDS
        while point and not self.house.passed(point) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(self.random.uniform(0, 0.2 if point else 10.0))
        daemons.kill(first, group=self.random.random() < 0.5)
        self.kills += 1
        self.house.forget_marks()
        began, second = time.monotonic(), self.queue.daemon()
        while not all(map(self.queue.finished, runs)):
            if time.monotonic() - began > HANG_SECONDS:
                self.problems.append(f"{release}: the next daemon does not work off the queue")
                break
            time.sleep(0.1)
        self.recovered.append(time.monotonic() - began)
        for daemon in (first, second):
            daemons.end(daemon)

    def _published(self, release: str) -> str | None:
        """The release that the published folder is of, by its charge; it is whole."""
        folder = published()
        if not folder.exists():
            return None
        files = {path.name: path.read_text().splitlines() for path in folder.iterdir()}
        lines = {line for content in files.values() for line in content}
        if (
            set(files) != set(PUBLISHED)
            or len(lines) != 1
            or {len(c) for c in files.values()} != {500}
        ):
            self.problems.append(f"{release}: the published folder is not whole")
            return None
        return lines.pop().split()[0]

    def _until_it_waits(self) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            if self.open.event_log_storage.get_concurrency_info(POOL).pending_run_ids:
                return
            time.sleep(0.05)
        self.problems.append("nobody waited for the pool")

    def _leave_alone(self, kind: str, release: str) -> None:
        """One run that nobody kills comes to its end; spent covers released; nothing is held."""
        began = time.monotonic()
        run = self._start(release)
        while not run.ended and time.monotonic() - began < HANG_SECONDS:
            time.sleep(0.05)
        if not run.ended:
            self.problems.append(f"{release} ({kind}): hangs")
            self._kill(run)
            return
        seconds = time.monotonic() - began
        self.recovered.append(seconds)
        self.lasts += 0.2 * (seconds - self.lasts)
        outcome = run.outcome()
        if not outcome["success"]:
            self.problems.append(f"{release} ({kind}): {outcome['failures']}")
        self._check(kind, release)

    def _check(self, kind: str, release: str) -> None:
        ledger = self.house.ledger()
        entries = ledger.entries(COHORT)
        mine = [entry for entry in entries if entry.release == release]
        paid = sum(entry.kind == RESERVE for entry in mine)
        released = [entry for entry in entries if entry.kind == COMMIT]
        if paid != 1:
            self.problems.append(f"{release} ({kind}): paid {paid} times")
        charges = sum(entry.kind == RESERVE for entry in entries)
        stored = [path.name for path in self.house.store.base.iterdir() if path.name[0] != "."]
        if charges < len(stored):
            self.problems.append(f"{release} ({kind}): {len(stored)} values, {charges} charges")
        if self._published(release) not in {entry.reservation for entry in released}:
            self.problems.append(f"{release} ({kind}): what is published was not released")
        for entry in released[-2:]:
            if self.house.store.digest(entry.reservation) != entry.artifact_digest:
                self.problems.append(f"{release} ({kind}): a released value changed")

    def _end_launches(self) -> None:
        """Launches that were killed are over once their time is, and nothing is held any more."""
        time.sleep(LAUNCH_LIMIT_SECONDS)
        free_dead_runs(self.open)
        left = self.open.get_runs(dg.RunsFilter(statuses=UNDER_WAY))
        self.problems += [f"run {run.run_id[:8]} is still {run.status.value}" for run in left]
        info = self.open.event_log_storage.get_concurrency_info(POOL)
        if info.active_run_ids | info.assigned_run_ids | info.pending_run_ids:
            self.problems.append("places of the pool are still held")
        ledger = self.house.ledger()
        self.problems += [str(problem) for problem in ledger.verify().problems]
        if ledger.spend(COHORT, _terms()).rho < ledger.count_charges() * EVENT.rho:
            self.problems.append("a charge was lost")


def _terms() -> Any:
    from dpsynth_assets_tests.faults.cohort import TERMS

    return TERMS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=25.0, help="begins no round after them")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default=SQLITE)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ["FAULTS_EPSILON"] = "1000"  # Room for every round.
    os.environ["OMP_NUM_THREADS"] = "1"
    from dpsynth_assets_tests.faults.conftest import Forge, House

    folder = Path(tempfile.mkdtemp(prefix="dpsynth-chaos-"))
    (folder / "instance").mkdir()
    forge, began = Forge(), time.monotonic()
    try:
        house = House(folder, forge, folder / "instance")
        os.environ["DPSYNTH_HOME"] = str(house.home)
        with storage(asked.database, house) as place:
            settings = SETTINGS + daemons.SETTINGS + place.settings
            (house.home / "dagster" / "dagster.yaml").write_text(settings)
            chaos = Installation(house, place, asked.seed)
            chaos.run(asked.rounds, asked.minutes)
            chaos.open.dispose()
    finally:
        forge.close()
        shutil.rmtree(folder, ignore_errors=True)
    recovered = sorted(chaos.recovered)
    told = {
        "database": asked.database,
        "rounds": dict(chaos.rounds),
        "kills": chaos.kills,
        "problems": chaos.problems,
        "recovery_seconds": {
            "median": round(recovered[len(recovered) // 2], 1),
            "longest": round(recovered[-1], 1),
        },
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(told))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
