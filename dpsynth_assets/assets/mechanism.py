"""How every mechanism runs: reserve, read, release, store, commit, in that order.

This is the one place where private data meets a release. A request that was released before is
loaded from the store and costs nothing; a value that a dying run had already stored is committed,
not drawn again; anything else is charged first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.privacy.errors import LedgerIntegrityError, UnaccountedReleaseError
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
)
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import Unfinished


@dataclass(frozen=True, kw_only=True)
class StoredRelease:
    """What a mechanism leaves behind.

    Attributes:
        reservation: The ledger reservation that paid for it.
        facts: Released facts (JSON).
        rows: Released rows, for a corpus.
    """

    reservation: Reservation
    facts: dict[str, Any]
    rows: pl.DataFrame | None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A freshly drawn release: storable facts, rows and files, with their cost."""

    facts: dict[str, Any]
    rows: pl.DataFrame | None
    cost: Cost
    files: Path | None = None


def release_once(
    *,
    ledger: Ledger,
    store: ReleaseStore,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease],
    draw: Callable[[Reservation], Drawn],
    passes: Callable[[Reservation], Unfinished] | None = None,
) -> StoredRelease:
    """Runs a mechanism exactly once for its payment.

    Args:
        ledger: Charged before `draw` is called.
        store: Where the value is kept, addressed by the reservation.
        request: What is asked for; its identity decides reuse.
        terms: The cohort's budget.
        plan: Every release the dataset file declares, for fixed-plan accounting.
        draw: Reads private data with the reservation it is given and returns the release.
        passes: What an unfinished run kept of a reservation, for a mechanism that can go on where
            a killed run stopped. Its charge is then used, not repeated: what that run drew and
            did not keep was seen by nobody.

    Raises:
        PrivacyError: If the budget, the plan or the declaration refuses; nothing private was read.
        UnaccountedReleaseError: If the mechanism's cost differs from what was charged; the value
            is discarded and the charge stands.
    """
    _commit_stored_values(ledger, store, request)
    reservation = _interrupted(ledger, request, passes) or ledger.reserve(request, terms, plan)
    if reservation.reused:
        facts, rows = store.load(reservation.id)
        _assert_unaltered(store, reservation)
        return StoredRelease(reservation=reservation, facts=facts, rows=rows)
    kept = passes(reservation) if passes is not None else None
    if kept is not None:
        kept.begin()
    drawn = draw(reservation)
    _assert_cost_was_charged(drawn.cost, request)
    digest, path = store.save(reservation.id, drawn.facts, drawn.rows, drawn.files)
    ledger.commit(
        reservation,
        artifact_digest=digest,
        artifact_uri=path,
        ex_post_epsilon=drawn.cost.ex_post_epsilon,
    )
    if kept is not None:
        kept.remove()
    return StoredRelease(reservation=reservation, facts=drawn.facts, rows=drawn.rows)


def _interrupted(
    ledger: Ledger,
    request: ReleaseRequest,
    passes: Callable[[Reservation], Unfinished] | None,
) -> Reservation | None:
    """The charge of a run of this very request that began to draw and did not live to store."""
    if passes is None:
        return None
    return next((r for r in ledger.pending(request) if passes(r).begun), None)


def _commit_stored_values(ledger: Ledger, store: ReleaseStore, request: ReleaseRequest) -> None:
    """Commits what an earlier run stored and paid for, but did not live to commit."""
    if request.guarantee == "ex-post":
        return  # Its realised cost died with the run, so the value cannot be labelled.
    for reservation in ledger.pending(request):
        if store.has(reservation.id):
            ledger.commit(
                reservation,
                artifact_digest=store.digest(reservation.id),
                artifact_uri=str(store.folder(reservation.id)),
            )
            return


def _assert_unaltered(store: ReleaseStore, reservation: Reservation) -> None:
    """A stored value must be the one whose digest the ledger has sealed."""
    if store.digest(reservation.id) != reservation.artifact_digest:
        raise LedgerIntegrityError(
            f"Expected the stored release {reservation.id} as the ledger recorded it, got altered "
            "files. Restore its folder from a backup, or ask for a new release by name, which pays."
        )


def _assert_cost_was_charged(cost: Cost, request: ReleaseRequest) -> None:
    if cost.guarantee != request.guarantee or cost.event != request.event:
        raise UnaccountedReleaseError(
            f"Expected {request.asset} to cost what was charged before private data was read, "
            "got a release with another cost. The value was discarded and the charge stands; "
            "report the mechanism."
        )
