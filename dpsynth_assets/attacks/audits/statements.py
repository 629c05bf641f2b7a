"""Audits of what is stated: numbers as they are written, and what a ledger says is guaranteed.

The mechanisms may all be right and a reader still be told too little: by a digit rounded the wrong
way, by the δ of one rule where two were in force, or by a reading that later releases outgrow.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, AuditKind, Bug, Finding
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    CohortSpend,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
)
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

FORMS = ("g", ".3g", ".4g", ".2f", ".4f", ".1e")
AWKWARD = (3.3232799769432324, 7.103492595599145e-2, 0.0499999999, 1.00000001e-6, 0.35020067)
"""Bounds that lie a little above a number of few digits."""

EVENT = GaussianEvent(noise_multiplier=3.0)
DELTA = 0.01


def _shortfall(write: Callable[[float, str], str]) -> Finding:
    """The largest share by which a written bound is below the bound itself."""
    short = max(
        1 - Decimal(write(bound, form)) / Decimal(repr(bound))
        for bound in AWKWARD
        for form in FORMS
    )
    return Finding(claimed=0.0, observed=max(0.0, float(short)))


def _two_rules(stated: Callable[[CohortSpend], float]) -> Finding:
    """Compares the δ stated after a switch of accountants with what two rules of δ each allow.

    Each rule may spend its whole δ. Who stops where the plan told everything, and continues under
    the filter where it did not, meets the one or the other: 1 − (1 − δ)².
    """
    with _ledger() as ledger:
        plan = [PlannedRelease("audit/plan", EVENT)]
        ledger.reserve(_request("audit/plan"), _terms("tight"), plan)
        ledger.reserve(_request("audit/filter"), _terms("zcdp"))
        return Finding(claimed=stated(ledger.spend("audit")), observed=1 - (1 - DELTA) ** 2)


def _both(stated: Callable[[CohortSpend], float]) -> Finding:
    """The worse of a filter and of a plan that has several rounds."""
    found = [_still_to_come(stated, accountant) for accountant in ("zcdp", "tight")]
    return max(found, key=lambda each: each.observed - each.claimed)


def _still_to_come(stated: Callable[[CohortSpend], float], accountant: str) -> Finding:
    """Compares the ε stated after one release with that of all that are then admitted.

    Whoever sees one release decides on the next, so that any number of them may follow.
    """
    plan = [PlannedRelease("audit/sum", EVENT)]
    with _ledger() as ledger:
        ledger.reserve(_request("audit/sum"), _terms(accountant), plan)
        claimed = stated(ledger.spend("audit"))
        for release in range(2, 1000):
            try:
                ledger.reserve(_request("audit/sum", str(release)), _terms(accountant), plan)
            except BudgetExceededError:
                break
        return Finding(claimed=claimed, observed=ledger.spend("audit").epsilon)


@contextmanager
def _ledger() -> Iterator[Ledger]:
    with tempfile.TemporaryDirectory() as scratch:
        yield Ledger(f"sqlite:///{Path(scratch) / 'ledger' / 'ledger.sqlite'}")


def _terms(accountant: str) -> BudgetTerms:
    return BudgetTerms(
        epsilon=4.0,
        delta=DELTA,
        accountant=accountant,
        relation=NeighboringRelation.ADD_REMOVE,
        unit=PrivacyUnit(),
    )


def _request(asset: str, release: str = "1") -> ReleaseRequest:
    return ReleaseRequest(
        cohort="audit",
        dataset="audit",
        asset=asset,
        mechanism="sum",
        guarantee=GuaranteeType.DP,
        event=EVENT,
        parameters={},
        code_version="1",
        data_version="1",
        release=release,
    )


def _to_nearest(bound: float, form: str) -> str:
    return format(bound, form)


AUDITS = (
    Audit(
        name="written-bounds",
        mechanism="every number on cards, statements, pages and the command line",
        events=(EVERY_RELEASE,),
        claim="No bound is written smaller than it is.",
        measure="share by which it falls short",
        kind=AuditKind.EXACT,
        observe=lambda: _shortfall(rounded_up),
        planted={Bug.ROUNDED_TO_NEAREST: lambda: _shortfall(_to_nearest)},
    ),
    Audit(
        name="switched-delta",
        mechanism="ledger of a cohort that went from a plan to the filter",
        events=(EVERY_RELEASE,),
        claim="The δ it states covers both rules.",
        measure="δ",
        kind=AuditKind.EXACT,
        observe=lambda: _two_rules(lambda spend: spend.delta),
        planted={Bug.ONE_DELTA: lambda: _two_rules(lambda _: DELTA)},
    ),
    Audit(
        name="guaranteed-epsilon",
        mechanism="ledger of a cohort under the filter, and under a plan of several rounds",
        events=(EVERY_RELEASE,),
        claim="The ε it states as guaranteed covers all that is still to be admitted.",
        measure=f"ε at δ = {rounded_up(DELTA)}",
        kind=AuditKind.EXACT,
        observe=lambda: _both(lambda spend: spend.guaranteed_epsilon),
        planted={Bug.ODOMETER: lambda: _both(lambda spend: spend.epsilon)},
    ),
)
