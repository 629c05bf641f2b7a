"""Lists all audits, of mechanisms and of methods, by name and by subject."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dpsynth_assets.attacks.audits import MECHANISM_AUDITS, latest_results
from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, Charge, claims, event_types
from dpsynth_assets.methods.canaries import CANARY_AUDITS
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import ChargeGraph, LedgerEntry

_MADE = {audit.name: audit for audit in (*MECHANISM_AUDITS, *CANARY_AUDITS)}
AUDITS: tuple[Audit, ...] = tuple(_MADE[name] for name in claims())
"""Every audit, in the order in which labels print them."""


def find_audit(name: str) -> Audit:
    """Returns the audit of this name.

    Raises:
        ValueError: There is none; the message lists the names.
    """
    if name not in _MADE:
        raise ValueError(f"Expected an audit among {', '.join(claims())}, got {name!r}.")
    return _MADE[name]


def audits_for(charges: Iterable[Charge]) -> tuple[Audit, ...]:
    """Lists the audits that releases rest on: of their events, of their methods, and of all.

    Args:
        charges: Of a ledger or of a plan.
    """
    wanted = {EVERY_RELEASE}.union(*((name, *event_types(event)) for name, event in charges))
    return tuple(audit for audit in AUDITS if wanted & set(audit.events))


def results_for(path: Path, charges: Iterable[Charge]) -> list[dict[str, Any]]:
    """Picks the last results that these releases rest on, as a label prints them.

    Args:
        path: File that `save_results` wrote, or none.
        charges: As `audits_for` takes them.

    Returns:
        One mapping an audit that was run here, with its result, mechanism, claim and measure.
    """
    latest = {result.name: result for result in latest_results(path)}
    return [
        {
            **latest[audit.name].printed(),
            "mechanism": audit.mechanism,
            "claim": audit.claim,
            "measure": audit.measure,
        }
        for audit in audits_for(charges)
        if audit.name in latest
    ]


def results_behind(entries: Sequence[LedgerEntry], reservation: str) -> list[dict[str, Any]]:
    """Picks the last results here that a release, and all it was made from, rest on."""
    behind = ChargeGraph(entries).charges_behind(reservation)
    return results_for(home().audits, [(each.mechanism, each.event) for each in behind])
