"""Writers that release a histogram through the real store and ledger, marking where they are."""

import signal
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any

import polars as pl

from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.guarantees import NeighboringRelation, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest, Reservation
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms
from dpsynth_assets_tests.stored import release_once

PHASES = (
    "before the reserve",
    "between reserve and draw",
    "between draw and store",
    "between store and commit",
    "after the commit",
    "after a refusal",
)
START, RESERVED, DRAWN, STORED, COMMITTED, REFUSED = range(6)

HISTOGRAM = {
    "noise": "gaussian",
    "scale": 10.0,
    "relation": NeighboringRelation.ADD_REMOVE,
}
COUNTS = list(range(0, 640, 10))
EVENT = NoisyHistogram(**HISTOGRAM).event()
TERMS = make_terms(epsilon=2.0)


class Marks:
    """When each writer entered each phase, in memory shared with whoever kills them."""

    def __init__(self, writers: int) -> None:
        self._entered = [RawArray("q", len(PHASES)) for _ in range(writers)]

    def clear(self) -> None:
        for own in self._entered:
            own[:] = [0] * len(PHASES)

    def note(self, writer: int, phase: int) -> None:
        self._entered[writer][phase] = time.monotonic_ns()

    def entered(self, writer: int, phase: int) -> int:
        """Nanoseconds of the monotonic clock; 0 where the phase was not reached."""
        return self._entered[writer][phase]

    def last(self, writer: int) -> int:
        return max((p for p in range(len(PHASES)) if self.entered(writer, p)), default=START)


class MarkingStore(ReleaseStore):
    """The release store, saying when a value is stored."""

    def save(self, *arguments: Any) -> tuple[str, str]:
        stored = super().save(*arguments)
        _note(STORED)
        return stored


_me: list[tuple[Marks, int, int | None]] = []
"""Where this process notes its phases, as which writer, and the phase in which it stops until it is
killed; empty in a process that is not killed."""


def _note(phase: int) -> None:
    for marks, writer, last in _me:
        marks.note(writer, phase)
        while phase == last:
            signal.pause()


def request(cohort: str, release: str) -> ReleaseRequest:
    return make_request(cohort=cohort, asset="tickets/histogram", event=EVENT, release=release)


def writes_rows(wanted: ReleaseRequest) -> bool:
    """Whether the release has a table besides its facts: starting Polars costs half a round."""
    return int(wanted.release.split(",")[0]) % 4 == 0


def release(ledger: Ledger, store: ReleaseStore, wanted: ReleaseRequest) -> StoredRelease:
    def draw(reservation: Reservation) -> Release[StageRelease]:
        assert ledger.is_open(reservation.id)
        _note(RESERVED)
        drawn = NoisyHistogram(**HISTOGRAM).release(COUNTS)
        dp_counts = [int(count) for count in drawn.value]
        _note(DRAWN)
        rows = pl.DataFrame({"count": dp_counts}) if writes_rows(wanted) else None
        made = StageRelease(facts={"dp_counts": dp_counts}, rows=rows)
        return Release(value=made, cost=drawn.cost)

    return release_once(ledger=ledger, store=store, request=wanted, terms=TERMS, plan=(), draw=draw)


def write_and_wait(
    marks: Marks, writer: int, last: int | None, ledger: Ledger, root: str, wanted: ReleaseRequest
) -> None:
    """Releases once, then waits to be killed; never returns to the code it was forked from."""
    _me[:] = [(marks, writer, last)]
    _note(START)
    try:
        release(ledger, MarkingStore.at(root), wanted)
        _note(COMMITTED)
    except BudgetExceededError:
        _note(REFUSED)
    while True:
        signal.pause()
