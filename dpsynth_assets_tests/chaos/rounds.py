"""Rounds of two racing writers, killed at chosen moments, and what must hold after each of them.

Runs as a process of its own, which imports everything once and forks each writer from there:

    python -m dpsynth_assets_tests.chaos.rounds < {"url": …, "folder": …, "rounds": …, "seed": …}

It must never use Polars itself: a thread pool does not survive a fork. Writes one JSON report.
"""

import gc
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from itertools import product
from pathlib import Path

from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry, ReleaseRequest
from dpsynth_assets.privacy.ledger.database import Database
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE
from dpsynth_assets_tests.chaos.writers import (
    COMMITTED,
    COUNTS,
    EVENT,
    HISTOGRAM,
    PHASES,
    REFUSED,
    START,
    TERMS,
    Marks,
    release,
    request,
    write_and_wait,
    writes_rows,
)

ROUNDS_PER_COHORT = 10
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.0004
FIRST_GUESS_SECONDS = 0.004


class Chaos:
    """One ledger, one store, and everything that was found wrong."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.root = url, str(folder / "releases")
        self.store = ReleaseStore.at(self.root)
        self.marks, self.random = Marks(2), random.Random(seed)
        self.ledger: Ledger | None = None
        self.problems: list[str] = []
        self.killed: Counter[str] = Counter()
        self.refused = 0
        self.lasted = [FIRST_GUESS_SECONDS] * len(PHASES)
        self.ahead: list[tuple[int, int]] = []
        self.known: set[str] = set()

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            cohort = f"tickets/{number // ROUNDS_PER_COHORT}"
            names = [f"{number}", f"{number}" if number % 2 else f"{number}, another"]
            wanted = [request(cohort, name) for name in names]
            cold = number % ROUNDS_PER_COHORT == 0
            self.race(wanted, cold=cold, held=number % 2 == 0)
            self.ledger = self.ledger or self._warm_ledger()
            for asked in wanted[: 1 if wanted[0] == wanted[1] else 2]:
                self.retry(asked, cold=cold)
        self.check_all()

    def _warm_ledger(self) -> Ledger:
        """A ledger that has run each of its statements once, so that no fork compiles them."""
        ledger = Ledger(self.url)
        reservation = ledger.reserve(request("warm up", "1"), TERMS)
        digest, path = self.store.save(reservation.id, {"dp_counts": COUNTS})
        ledger.commit(reservation, artifact_digest=digest, artifact_uri=path)
        self.known.add(reservation.id)
        return ledger

    def race(self, wanted: list[ReleaseRequest], *, cold: bool, held: bool) -> None:
        """Lets two writers run and kills each at a random moment of a random phase.

        Cold writers open the ledger themselves, and create it in the first round of all. Held
        writers stop where their phase begins, so that a short one is hit on a busy machine too.
        """
        self.marks.clear()
        targets = self._targets()
        delays = [int(1e9 * self.random.uniform(0, 1.2 * self.lasted[t])) for t in targets]
        ledger = None if cold else self.ledger
        running = {
            writer: _fork(
                lambda writer=writer, asked=asked: write_and_wait(
                    self.marks,
                    writer,
                    targets[writer] if held else None,
                    ledger or Ledger(self.url),
                    self.root,
                    asked,
                )
            )
            for writer, asked in enumerate(wanted)
        }
        deadline = time.monotonic() + PATIENCE_SECONDS
        while running:
            for writer, pid in list(running.items()):
                if self._is_due(writer, targets[writer], delays[writer], deadline):
                    self._kill(pid)
                    self._note_death(writer)
                    del running[writer]
            time.sleep(POLL_SECONDS)

    def _targets(self) -> tuple[int, int]:
        """Phases in which the two writers are to die: each pair once before any comes again."""
        if not self.ahead:
            self.ahead = list(product(range(REFUSED), repeat=2))
            self.random.shuffle(self.ahead)
        return self.ahead.pop()

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        self._expect(os.WIFSIGNALED(status), "a writer failed before it was killed", pid)

    def _is_due(self, writer: int, target: int, delay: int, deadline: float) -> bool:
        if time.monotonic() > deadline or self.marks.last(writer) >= COMMITTED:
            return True  # also where a reused release skipped the phase aimed at
        entered = self.marks.entered(writer, target)
        return bool(entered) and time.monotonic_ns() >= entered + delay

    def _note_death(self, writer: int) -> None:
        self.killed[PHASES[self.marks.last(writer)]] += 1
        for phase in range(START, COMMITTED):
            begin, end = self.marks.entered(writer, phase), self.marks.entered(writer, phase + 1)
            if begin and end:
                self.lasted[phase] += 0.2 * ((end - begin) / 1e9 - self.lasted[phase])

    def retry(self, wanted: ReleaseRequest, *, cold: bool) -> None:
        """A process that is left alone finishes what the killed ones began, and pays once at most.

        What was stored is never drawn again; what is released once never changes.
        """
        self._let_the_dead_rest()
        before = self.check(wanted.cohort)
        mine = [e for e in before if e.release == wanted.release]
        released = next((e.artifact_digest for e in mine if e.kind == COMMIT), None)
        stored = {self.store.digest(e.reservation) for e in mine if self.store.has(e.reservation)}
        first, again = self._answers(wanted, cold=cold)
        paid = _charges(self.check(wanted.cohort)) - _charges(before)
        self._expect(first == again, "a second retry was answered differently", wanted)
        self._expect(released in (None, first), "a released value changed", wanted)
        self._expect(not stored or first in stored, "a stored release was not used", wanted)
        drawn = first not in {*stored, "refused"}
        self._expect(paid == drawn, f"paid {paid} times for {int(drawn)} draws", wanted)
        self.refused += first == "refused"

    def _let_the_dead_rest(self) -> None:
        """Waits for the lock, hence for a commit that a killed writer had sent to its server."""
        with Database(self.url).appending():
            pass

    def _answers(self, wanted: ReleaseRequest, *, cold: bool) -> list[str]:
        """Digests (or `refused`) of what a process gets that asks twice.

        This one, which has seen every round, or a new one where it must be cold or use Polars.
        """
        if not cold and not writes_rows(wanted):
            return [self._answer(self.ledger, wanted) for _ in range(2)]
        reader, writer = os.pipe()

        def ask() -> None:
            for _ in range(2):
                ledger = Ledger(self.url) if cold else self.ledger
                os.write(writer, f"{self._answer(ledger, wanted)}\n".encode())

        pid = _fork(ask)
        os.close(writer)
        with os.fdopen(reader) as answers:
            told = answers.read().split()
        status = os.waitpid(pid, 0)[1]
        self._expect(status == 0 and len(told) == 2, "a retry failed", wanted.release)
        return told if len(told) == 2 else ["failed", "failed"]

    def _answer(self, ledger: Ledger | None, wanted: ReleaseRequest) -> str:
        assert ledger
        try:
            made = release(ledger, self.store, wanted)
        except BudgetExceededError:
            return "refused"
        same = made.facts == self.store.load(made.reservation.id)[0]
        return self.store.digest(made.reservation.id) if same else "another value"

    def check(self, cohort: str) -> list[LedgerEntry]:
        """Spent is at least released, and both are within the budget; returns the entries."""
        assert self.ledger
        spend, entries = self.ledger.spend(cohort, TERMS), self.ledger.entries(cohort)
        mine = [entry for entry in entries if entry.kind == RESERVE]
        stored = [entry for entry in mine if self.store.has(entry.reservation)]
        self._expect(spend.epsilon <= TERMS.epsilon, "overspent", cohort)
        self._expect(spend.rho >= len(mine) * EVENT.rho, "a charge was lost", cohort)
        self._expect(spend.releases <= len(stored), "committed without a value", cohort)
        for entry in stored:
            if entry.reservation not in self.known:
                self._check_value(entry)
        folders = {path.name for path in self._folders()}
        self.known |= {entry.reservation for entry in stored}
        self._expect(folders <= self.known, "stored without a charge", cohort)
        return entries

    def _folders(self) -> list[Path]:
        root = Path(self.root)
        return [path for path in root.iterdir() if path.name[0] != "."] if root.exists() else []

    def _check_value(self, charge: LedgerEntry) -> None:
        """A stored value is complete, and was drawn after it was paid for."""
        folder = self.store.folder(charge.reservation)
        names = {path.name for path in folder.iterdir()}
        rows = folder / "rows.parquet"
        complete = {"facts.json"} | ({"rows.parquet"} if writes_rows(charge.request()) else set())
        self._expect(names == complete, "half a release", names)
        facts = json.loads((folder / "facts.json").read_text())
        self._expect(len(facts["dp_counts"]) == len(COUNTS), "half a fact", folder)
        table = rows.read_bytes() if rows.exists() else b"PAR1"
        self._expect(table[:4] == table[-4:] == b"PAR1", "half a table", folder)
        drawn_at = (folder / "facts.json").stat().st_mtime
        charged = datetime.fromisoformat(charge.recorded_at).timestamp()
        self._expect(charged <= drawn_at + 0.01, "stored before it was paid for", folder)

    def check_all(self) -> None:
        assert self.ledger
        report = Ledger(self.url).verify(self.ledger.head())
        self.problems += [str(problem) for problem in report.problems]
        for entry in self.ledger.entries():
            if entry.kind == COMMIT:
                same = self.store.digest(entry.reservation) == entry.artifact_digest
                self._expect(same, "a committed value changed", entry.reservation)

    def _expect(self, holds: bool, otherwise: str, where: object) -> None:
        if not holds:
            self.problems.append(f"{otherwise}: {where}")


def _charges(entries: list[LedgerEntry]) -> int:
    return sum(entry.kind == RESERVE for entry in entries)


def _fork(run: Callable[[], None]) -> int:
    """Starts a copy of this process that only runs `run`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        run()
        os._exit(0)
    except BaseException:  # noqa: BLE001 (whatever happens, the copy must not run on)
        traceback.print_exc()
        os._exit(70)


def main() -> None:
    asked = json.load(sys.stdin)
    NoisyHistogram(**HISTOGRAM).release(COUNTS)  # imports the noise library before the first fork
    gc.freeze()
    chaos = Chaos(asked["url"], Path(asked["folder"]), asked["seed"])
    chaos.run(asked["rounds"])
    told = {
        "killed": dict(chaos.killed),
        "refused": chaos.refused,
        "problems": chaos.problems,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
