"""Audit of the rule of the ledger that a release is drawn once: a retry returns the stored value.

A scratch ledger and store in a temporary folder stand for the installation; the starts of a
generator follow the order that every mechanism asset follows: reserve, draw, store, commit.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, AuditKind, Bug, Finding
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import histogram_event, release_histogram
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, ReleaseRequest
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

STARTS = 4
BINS = 64
SCALE = 10.0
RELATION = NeighboringRelation.ADD_REMOVE
TERMS = BudgetTerms(
    epsilon=8.0, delta=1e-6, accountant="zcdp", relation=RELATION, unit=PrivacyUnit()
)

Start = Callable[[Ledger, Path], bytes]
"""One start of a generator: what it gives out."""


def _request() -> ReleaseRequest:
    """One histogram of invented counts."""
    return ReleaseRequest(
        cohort="audit",
        dataset="audit",
        asset="audit/histogram",
        mechanism="histogram",
        guarantee=GuaranteeType.DP,
        event=histogram_event(noise="laplace", scale=SCALE, relation=RELATION),
        parameters={"scale": SCALE},
        code_version="1",
        data_version="1",
    )


def _draw() -> bytes:
    drawn = release_histogram([0] * BINS, noise="laplace", scale=SCALE, relation=RELATION)
    return drawn.value.tobytes()


def _reserving_start(ledger: Ledger, folder: Path) -> bytes:
    """Reserves, and reads the stored release where there is one."""
    reservation = ledger.reserve(_request(), TERMS)
    if reservation.reused:
        return Path(str(reservation.artifact_uri)).read_bytes()
    value = _draw()
    path = folder / hashlib.sha256(value).hexdigest()
    path.write_bytes(value)
    ledger.commit(reservation, artifact_digest=path.name, artifact_uri=str(path))
    return value


def _renoising_start(ledger: Ledger, _folder: Path) -> bytes:
    """Planted: the un-noised value is kept, and each start adds noise to it."""
    reservation = ledger.reserve(_request(), TERMS)
    if not reservation.reused:
        ledger.commit(reservation, artifact_digest="un-noised", artifact_uri="un-noised")
    return _draw()


def _values_a_charge(start: Start) -> Finding:
    """Counts the different values that several starts gave out, against charges in the ledger."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ledger = Ledger(f"sqlite:///{folder / 'ledger' / 'ledger.sqlite'}")
        values = {start(ledger, folder) for _ in range(STARTS)}
        charges = sum(entry.kind == "reserve" for entry in ledger.entries("audit"))
    return Finding(claimed=float(charges), observed=float(len(values)))


AUDITS = (
    Audit(
        name="one-draw-a-charge",
        mechanism="ledger and stored releases",
        events=(EVERY_RELEASE,),
        claim="However often a generator starts, it gives out one value for each charge.",
        measure="different values given out, against charges",
        kind=AuditKind.EXACT,
        observe=lambda: _values_a_charge(_reserving_start),
        planted={Bug.RENOISED: lambda: _values_a_charge(_renoising_start)},
    ),
)
