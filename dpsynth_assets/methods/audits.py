"""Every audit there is, of mechanisms and of methods, by its name and by the events it concerns."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpsynth_assets.attacks.audits import MECHANISM_AUDITS, latest_results
from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, claims, event_types
from dpsynth_assets.methods.canaries import CANARY_AUDITS
from dpsynth_assets.privacy.events import Event

_MADE = {audit.name: audit for audit in (*MECHANISM_AUDITS, *CANARY_AUDITS)}
AUDITS: tuple[Audit, ...] = tuple(_MADE[name] for name in claims())
"""Every audit, in the order in which labels print them."""


def find_audit(name: str) -> Audit:
    """Returns the audit of this name.

    Raises:
        ValueError: There is none; the message lists the names.
    """
    for audit in AUDITS:
        if audit.name == name:
            return audit
    names = ", ".join(audit.name for audit in AUDITS)
    raise ValueError(f"Expected an audit among {names}, got {name!r}.")


def audits_for(events: Iterable[Event | None]) -> tuple[Audit, ...]:
    """Lists the audits that releases rest on.

    Args:
        events: Events of ledger entries or of a plan; None stands for a release without one, as
            ex-post releases are. The audits of what all releases share are always among them.
    """
    wanted = {EVERY_RELEASE, *(kind for event in events for kind in event_types(event))}
    return tuple(audit for audit in AUDITS if wanted & set(audit.events))


def results_for(path: Path, events: Iterable[Event | None]) -> list[dict[str, Any]]:
    """Picks the last results that releases of these events rest on, as a label prints them.

    Args:
        path: File that `save_results` wrote, or none.
        events: As `audits_for` takes them.

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
        for audit in audits_for(events)
        if audit.name in latest
    ]
