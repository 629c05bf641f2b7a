"""Audits of the ledger's rules and of what is stated, on a scratch ledger in a temporary folder.

A release is drawn once: a retry returns the stored value. The starts of a generator follow the
order that every mechanism asset follows: reserve, draw, store, commit.

No plan is charged whose posterior of a declared secret exceeds r: the ledger is asked for one
Gaussian release under DP, of records of which fifty hold one secret. The best attack on it is known
in closed form, whatever the ledger thinks of the release.

The mechanisms may all be right and a reader still be told too little: by a digit rounded the wrong
way, by the δ of one rule where two were in force, or by a reading that later releases outgrow.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    Audit,
    Bug,
    Finding,
)
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import Event, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    CohortSpend,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    SecretTerms,
)
from dpsynth_assets.privacy.units import PrivacyUnit

STARTS = 4
BINS = 64
SCALE = 10.0
RELATION = ADD_REMOVE
DELTA = 0.01
COUNTS = NoisyHistogram(noise="laplace", scale=SCALE, relation=RELATION).event()

PRIOR, POSTERIOR, HOLDERS = 1e-4, 1e-3, 50
SUM_NOISE = 1.5
"""Standard deviation of a release, in moves of one record: ε is about 3."""

SECRET = SecretTerms(prior=PRIOR, posterior=POSTERIOR, occurrences=HOLDERS)

FORMS = ("g", ".3g", ".4g", ".2f", ".4f", ".1e")
AWKWARD = (3.3232799769432324, 7.103492595599145e-2, 0.0499999999, 1.00000001e-6, 0.35020067)
"""Bounds that lie a little above a number of few digits."""

EVENT = GaussianEvent(noise_multiplier=3.0)
BUDGET = {"epsilon": 4.0, "delta": DELTA}

Start = Callable[[Ledger, Path], bytes]
"""One start of a generator: what it gives out."""


@contextmanager
def _ledger() -> Iterator[tuple[Ledger, Path]]:
    """A scratch ledger, and a folder beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        yield Ledger(f"sqlite:///{folder / 'ledger' / 'ledger.sqlite'}"), folder


def _terms(
    accountant: str, *, epsilon: float = 8.0, delta: float = 1e-6, **more: Any
) -> BudgetTerms:
    return BudgetTerms(
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        relation=RELATION,
        unit=PrivacyUnit(),
        **more,
    )


def _request(asset: str, event: Event, release: str = "1") -> ReleaseRequest:
    return ReleaseRequest(
        cohort="audit",
        dataset="audit",
        asset=f"audit/{asset}",
        mechanism=asset,
        guarantee=GuaranteeType.DP,
        event=event,
        parameters={},
        code_version="1",
        data_version="1",
        release=release,
    )


def _draw() -> bytes:
    drawn = NoisyHistogram(noise="laplace", scale=SCALE, relation=RELATION).release([0] * BINS)
    return drawn.value.tobytes()


def _reserving_start(ledger: Ledger, folder: Path) -> bytes:
    """Reserves, and reads the stored release where there is one."""
    reservation = ledger.reserve(_request("histogram", COUNTS), _terms("zcdp"))
    if reservation.reused:
        return Path(str(reservation.artifact_uri)).read_bytes()
    value = _draw()
    path = folder / hashlib.sha256(value).hexdigest()
    path.write_bytes(value)
    ledger.commit(reservation, artifact_digest=path.name, artifact_uri=str(path))
    return value


def _renoising_start(ledger: Ledger, _folder: Path) -> bytes:
    """Planted: the un-noised value is kept, and each start adds noise to it."""
    reservation = ledger.reserve(_request("histogram", COUNTS), _terms("zcdp"))
    if not reservation.reused:
        ledger.commit(reservation, artifact_digest="un-noised", artifact_uri="un-noised")
    return _draw()


def _values_a_charge(start: Start) -> Finding:
    """Counts the different values that several starts gave out, against charges in the ledger."""
    with _ledger() as (ledger, folder):
        values = {start(ledger, folder) for _ in range(STARTS)}
        charges = sum(entry.kind == "reserve" for entry in ledger.entries("audit"))
    return Finding(claimed=float(charges), observed=float(len(values)))


def _attained_posterior(secret: SecretTerms | None) -> Finding:
    """Measures how often a secret is named after asking the ledger: at the prior if it refused."""
    from scipy.special import ndtr, ndtri

    request = _request("sum", GaussianEvent(noise_multiplier=SUM_NOISE))
    plan = [PlannedRelease(request.asset, request.event)]
    with _ledger() as (ledger, _):
        try:
            ledger.reserve(request, _terms("tight", secret=secret), plan)
            attained = float(ndtr(HOLDERS / SUM_NOISE + ndtri(PRIOR)))
        except BudgetExceededError:
            attained = PRIOR
    return Finding(claimed=POSTERIOR, observed=attained, note=f"at a prior of {declared(PRIOR)}")


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
    with _ledger() as (ledger, _):
        plan = [PlannedRelease("audit/plan", EVENT)]
        ledger.reserve(_request("plan", EVENT), _terms("tight", **BUDGET), plan)
        ledger.reserve(_request("filter", EVENT), _terms("zcdp", **BUDGET))
        return Finding(claimed=stated(ledger.spend("audit")), observed=1 - (1 - DELTA) ** 2)


def _both(stated: Callable[[CohortSpend], float]) -> Finding:
    """The worse of a filter and of a plan that has several rounds."""
    found = [_still_to_come(stated, accountant) for accountant in ("zcdp", "tight")]
    return max(found, key=lambda each: each.observed - each.claimed)


def _still_to_come(stated: Callable[[CohortSpend], float], accountant: str) -> Finding:
    """Compares the ε stated after one release with that of all that are then admitted.

    Whoever sees one release decides on the next, so that any number of them may follow.
    """
    plan, terms = [PlannedRelease("audit/sum", EVENT)], _terms(accountant, **BUDGET)
    with _ledger() as (ledger, _):
        ledger.reserve(_request("sum", EVENT), terms, plan)
        claimed = stated(ledger.spend("audit"))
        for release in range(2, 1000):
            try:
                ledger.reserve(_request("sum", EVENT, str(release)), terms, plan)
            except BudgetExceededError:
                break
        return Finding(claimed=claimed, observed=ledger.spend("audit").epsilon)


def _to_nearest(bound: float, form: str) -> str:
    return format(bound, form)


AUDITS = (
    Audit(
        name="one-draw-a-charge",
        mechanism="ledger and stored releases",
        claim="However often a generator starts, it gives out one value for each charge.",
        measure="different values given out, against charges",
        observe=lambda: _values_a_charge(_reserving_start),
        planted={Bug.RENOISED: lambda: _values_a_charge(_renoising_start)},
    ),
    Audit(
        name="promise-to-secrets",
        mechanism="ledger that charges releases of records with declared secrets",
        claim="No cohort is charged for a plan that reveals a secret with probability above r.",
        measure="probability of naming a secret",
        observe=lambda: _attained_posterior(SECRET),
        # A promise that counts only beside methods that protect secrets is none for this plan.
        planted={Bug.PROMISE_UNCHECKED: lambda: _attained_posterior(None)},
    ),
    Audit(
        name="written-bounds",
        mechanism="every number on cards, statements, pages and the command line",
        claim="No bound is written smaller than it is.",
        measure="share by which it falls short",
        observe=lambda: _shortfall(rounded_up),
        planted={Bug.ROUNDED_TO_NEAREST: lambda: _shortfall(_to_nearest)},
    ),
    Audit(
        name="switched-delta",
        mechanism="ledger of a cohort that went from a plan to the filter",
        claim="The δ it states covers both rules.",
        measure="δ",
        observe=lambda: _two_rules(lambda spend: spend.delta),
        planted={Bug.ONE_DELTA: lambda: _two_rules(lambda _: DELTA)},
    ),
    Audit(
        name="guaranteed-epsilon",
        mechanism="ledger of a cohort under the filter, and under a plan of several rounds",
        claim="The ε it states as guaranteed covers all that is still to be admitted.",
        measure=f"ε at δ = {rounded_up(DELTA)}",
        observe=lambda: _both(lambda spend: spend.guaranteed_epsilon),
        planted={Bug.ODOMETER: lambda: _both(lambda spend: spend.epsilon)},
    ),
)
