"""Audit of the ledger's promise to declared secrets: no plan is charged whose posterior exceeds r.

A scratch ledger is asked for one Gaussian release under DP, of records of which fifty hold one
secret. The best attack on it is known in closed form, whatever the ledger thinks of the release.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, AuditKind, Bug, Finding
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    SecretTerms,
)
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

PRIOR, POSTERIOR, HOLDERS = 1e-4, 1e-3, 50
NOISE = 1.5
"""Standard deviation of the release, in moves of one record: ε is about 3."""

TERMS = BudgetTerms(
    epsilon=8.0,
    delta=1e-6,
    accountant="tight",
    relation=NeighboringRelation.ADD_REMOVE,
    unit=PrivacyUnit(),
    secret=SecretTerms(prior=PRIOR, posterior=POSTERIOR, occurrences=HOLDERS),
)


def _request() -> ReleaseRequest:
    return ReleaseRequest(
        cohort="audit",
        dataset="audit",
        asset="audit/sum",
        mechanism="sum",
        guarantee=GuaranteeType.DP,
        event=GaussianEvent(noise_multiplier=NOISE),
        parameters={"noise": NOISE},
        code_version="1",
        data_version="1",
    )


def _attained_posterior(terms: BudgetTerms) -> Finding:
    """Measures how often a secret is named after asking the ledger: at the prior if it refused."""
    from scipy.special import ndtr, ndtri

    request = _request()
    with tempfile.TemporaryDirectory() as scratch:
        ledger = Ledger(f"sqlite:///{Path(scratch) / 'ledger' / 'ledger.sqlite'}")
        try:
            ledger.reserve(request, terms, [PlannedRelease(request.asset, request.event)])
            attained = float(ndtr(HOLDERS / NOISE + ndtri(PRIOR)))
        except BudgetExceededError:
            attained = PRIOR
    return Finding(claimed=POSTERIOR, observed=attained, note=f"at a prior of {declared(PRIOR)}")


AUDITS = (
    Audit(
        name="promise-to-secrets",
        mechanism="ledger that charges releases of records with declared secrets",
        events=(EVERY_RELEASE,),
        claim="Whatever its methods, no cohort is charged for a plan that tells more than r.",
        measure="probability of naming a secret",
        kind=AuditKind.EXACT,
        observe=lambda: _attained_posterior(TERMS),
        # A promise that counts only beside methods that protect secrets is none for this plan.
        planted={Bug.PROMISE_UNCHECKED: lambda: _attained_posterior(replace(TERMS, secret=None))},
    ),
)
