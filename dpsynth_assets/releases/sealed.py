"""Releases as the ledger sealed them: what lies in the store is compared before it is used.

An asset hands on a copy of what was released, in a file beside others. Whoever can write that file
could put other rows into a corpus, which would carry the label of what was paid for. So what
follows from a release is made from the stored release, whose digest the ledger holds; and a
candidate is published only if it equals the stored release, and if everything that it was made
from is in the ledger and in the store as it was sealed.
"""

from typing import Any

import polars as pl

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import ChargeGraph, Ledger
from dpsynth_assets.releases.store import StoredReleases, StoreUnavailableError


def sealed_release(
    ledger: Ledger, store: StoredReleases, reservation: str, asset: str
) -> tuple[dict[str, Any], pl.DataFrame | None]:
    """Loads a release that the ledger has sealed.

    Args:
        ledger: Where it was charged and committed.
        store: Where it lies.
        reservation: Its charge, as an upstream value names it.
        asset: Asset it has to be a release of, parts joined by `/`.

    Returns:
        Its facts and rows.

    Raises:
        LedgerIntegrityError: The ledger has sealed no such release, or the store holds another.
        StoreUnavailableError: It is not in the store.
    """
    charge, digest = ledger.charge(reservation), ledger.sealed_digest(reservation)
    if charge is None or digest is None or charge.asset != asset:
        got = "none" if charge is None else f"one of {charge.asset}, not committed"
        if charge is not None and digest is not None:
            got = f"one of {charge.asset}"
        raise LedgerIntegrityError(
            f"Expected a value of {asset} that names its release in the ledger, got {got}. "
            f"Materialise {asset} again, which is free where it was released before."
        )
    facts, rows = store.load(reservation)
    refuse_altered(store, reservation, asset, digest)
    return facts, rows


def refuse_altered(store: StoredReleases, reservation: str, asset: str, digest: str) -> None:
    """Refuses a stored release that is not the one the ledger has sealed.

    Raises:
        LedgerIntegrityError: Its digest is another one.
    """
    if store.digest(reservation) != digest:
        raise LedgerIntegrityError(
            f"Expected the stored release {reservation} of {asset} as the ledger recorded it, got "
            "altered files. Restore its folder from a backup, or ask for a new release by name, "
            "which pays."
        )


def candidate_problem(
    candidate: pl.DataFrame, asset: str, account: str, ledger: Ledger, store: StoredReleases
) -> str | None:
    """Says why a candidate is not what was paid for; None where it is.

    Args:
        candidate: Rows, with the column `reservation` that names their release.
        asset: Asset of the candidate, parts joined by `/`.
        account: Cohort that the ledger charges for it.
        ledger: Where it was charged.
        store: Where releases lie.

    **Privacy** Compares released rows with released rows: post-processing.
    """
    named = candidate["reservation"].unique().to_list() if "reservation" in candidate else []
    if len(named) != 1:
        return f"Expected rows of one release of {asset}, got rows of {len(named)}."
    reservation = str(named[0])
    try:
        _, rows = sealed_release(ledger, store, reservation, asset)
    except (LedgerIntegrityError, StoreUnavailableError) as problem:
        return str(problem)
    if rows is None or not rows.equals(candidate.drop("reservation")):
        return (
            f"Expected the rows of {asset} that the ledger sealed, got other rows. Materialise "
            f"{asset} again, which is free."
        )
    graph = ledger.provenance()
    if (cohort := graph.charges[reservation].cohort) != account:
        return f"Expected a release charged to {account!r}, got {cohort!r}."
    return problem_behind(reservation, graph, ledger, store)


def problem_behind(
    reservation: str, graph: ChargeGraph, ledger: Ledger, store: StoredReleases
) -> str | None:
    """Says what is missing or altered of what a release was made from; None where nothing is."""
    for name in graph.behind(reservation):
        charge, digest = graph.charges.get(name), ledger.sealed_digest(name)
        if charge is None or digest is None:
            return (
                f"Expected the release {name}, which the rows were made from, in the ledger, got "
                "none: it was charged to another ledger, or this one was replaced."
            )
        if not store.has(name) or store.digest(name) != digest:
            return (
                f"Expected the stored release {name} of {charge.asset}, which the rows were made "
                "from, as the ledger recorded it, got none or altered files. Restore its folder "
                "from a backup."
            )
    return None
