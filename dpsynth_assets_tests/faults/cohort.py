"""A tiny cohort with one cheap mechanism, in real stores, which says where it is and can be held.

The mechanism releases a noisy histogram in three passes, each kept until the release is committed,
as private prediction keeps its batches. At each point it leaves a mark, and waits there while a
file asks it to: whoever kills it knows where it was without watching a clock.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.assets.launch import ReleaseConfig, release_name
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.private_section import private_section
from dpsynth_assets.orchestration.resources.stores import (
    PrivacyLedger,
    ReleaseStore,
    SensitiveStore,
)
from dpsynth_assets.paths import Folder, located
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, NeighboringRelation, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest, Reservation
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.sensitive.unfinished import StoredPasses
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms
from dpsynth_assets_tests.stored import release_once

COHORT = "letters"
KEY = [COHORT, "counts", "candidate_corpus"]
PASSES = 3
BEFORE, MARKED, PAID, RESERVED, PASS, DRAWN, STORED, COMMITTED = (
    "before the charge",
    "marked, not charged",
    "charged, nothing begun",
    "charged",
    "second pass kept",
    "drawn",
    "stored",
    "committed",
)
NOT_STORED = "not stored"
HISTOGRAM: dict[str, Any] = {
    "noise": "gaussian",
    "scale": 8.0,
    "relation": NeighboringRelation.ADD_REMOVE,
}
EVENT = ComposedEvent(events=(NoisyHistogram(**HISTOGRAM).event(),) * PASSES)
TERMS = make_terms(epsilon=1.8)
"""Three releases and no fourth."""
RECORDS = pl.DataFrame(
    {
        "record_id": [f"r{i}" for i in range(64)],
        "unit_id": [f"r{i}" for i in range(64)],
        "text": [f"Ottoline Brackenbury wrote letter {i}" for i in range(64)],
        "label": ["billing", "delivery"] * 32,
    }
)


def reached(point: str) -> None:
    """Leaves a mark, and waits while a file of the same name asks for it."""
    folder = Path(os.environ["FAULTS_MARKS"])
    (folder / f"{point}.{os.getpid()}").touch()
    while (folder / f"hold {point}").exists():
        time.sleep(0.02)


class MarkedPasses(StoredPasses):
    """Passes of a charge, saying when its mark is on disk."""

    def begin(self, drawn_from: Mapping[str, Any] | None = None) -> None:
        super().begin(drawn_from)
        reached(MARKED)


class MarkedLedger(PrivacyLedger):
    """The ledger, saying when a charge is on disk."""

    def open(self) -> Ledger:
        book = super().open()
        reserve = book.reserve

        def marked(*arguments: Any) -> Reservation:
            reservation = reserve(*arguments)
            if not reservation.reused:
                reached(PAID)
            return reservation

        book.reserve = marked  # type: ignore[method-assign, assignment]
        return book


class MarkedStore(ReleaseStore):
    """The release store, saying when a value is stored or cannot be; FAULTS_STORE moves it."""

    @property
    def base(self) -> Folder:
        place = os.environ.get("FAULTS_STORE", "")
        return located(place) if place else super().base

    def save(self, *arguments: Any) -> tuple[str, str]:
        try:
            stored = super().save(*arguments)
        except StoreUnavailableError:
            reached(NOT_STORED)
            raise
        reached(STORED)
        return stored


def request(release: str, run_id: str) -> ReleaseRequest:
    return make_request(
        cohort=COHORT,
        dataset=COHORT,
        asset="/".join(KEY),
        guarantee=GuaranteeType.DP,
        event=EVENT,
        parameters={"passes": PASSES},
        release=release,
        run_id=run_id,
    )


@dg.asset(key=KEY)
def candidate_corpus(
    context: dg.AssetExecutionContext,
    config: ReleaseConfig,
    ledger: PrivacyLedger,
    sensitive_store: SensitiveStore,
    release_store: ReleaseStore,
) -> dg.Output[dict]:
    """Pays, draws in passes, stores and commits through the code that every mechanism runs."""
    reached(BEFORE)
    with private_section("/".join(KEY)):
        book = ledger.open()

        def draw(reservation: Reservation) -> Release[StageRelease]:
            private = sensitive_store.read_for_release(
                COHORT, ledger=book, reservation=reservation, with_embeddings=False
            )
            reached(RESERVED)
            kept = sensitive_store.passes(COHORT, reservation)
            drawn = []
            for number in range(PASSES):
                values = kept.load(number) or _counted(private.records)
                kept.save(number, values)
                drawn.append(values["dp_counts"])
                if number == 1:
                    reached(PASS)
            reached(DRAWN)
            cost = Cost(guarantee=GuaranteeType.DP, event=EVENT)
            return Release(value=StageRelease(facts={"dp_counts": drawn}), cost=cost)

        stored = release_once(
            ledger=book,
            store=release_store,
            request=request(release_name(context, config), context.run_id),
            terms=TERMS,
            plan=(),
            draw=draw,
            passes=lambda reservation: _marked_passes(sensitive_store, reservation),
            drawn_from=lambda: {"records": sensitive_store.pay_for_records(COHORT)},
        )
    reached(COMMITTED)
    sys.stdout.write("a line for the step's log\n")
    return dg.Output(stored.facts, metadata=spend_metadata(book, stored.reservation, TERMS))


def _marked_passes(store: SensitiveStore, reservation: Reservation) -> MarkedPasses:
    passes = store.passes(COHORT, reservation)
    passes.__class__ = MarkedPasses
    return passes  # type: ignore[return-value]


def _counted(records: pl.DataFrame) -> dict[str, list[int]]:
    counts = [records.filter(pl.col("label") == label).height for label in ("billing", "delivery")]
    return {"dp_counts": [int(n) for n in NoisyHistogram(**HISTOGRAM).release(counts).value]}


def resources() -> dict[str, Any]:
    from dpsynth_assets.orchestration.resources.stores import ArtifactIOManager

    return {
        "io_manager": ArtifactIOManager(),
        "ledger": MarkedLedger(),
        "sensitive_store": SensitiveStore(),
        "release_store": MarkedStore(),
    }


def counts_job() -> dg.JobDefinition:
    """The job, found by its name in processes of their own."""
    executors = {
        "in_process": dg.in_process_executor,
        "multiprocess": dg.multiprocess_executor,
    }
    defs = dg.Definitions(
        assets=[candidate_corpus],
        resources=resources(),
        jobs=[dg.define_asset_job("counts", selection=[dg.AssetKey(KEY)])],
        executor=executors[os.environ.get("FAULTS_EXECUTOR", "in_process")],
    )
    return defs.resolve_job_def("counts")
