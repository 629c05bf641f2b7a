"""Decides, before anything private is read, whether a release may be charged."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_assets.privacy.errors import PlanChangedError, PrivacyError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import (
    Book,
    CohortAccount,
    plan_copies,
    plan_epsilon,
    plan_rounds,
    rho_units,
    zcdp_epsilon_of_units,
)
from dpsynth_assets.privacy.ledger.schema import (
    TIGHT,
    BudgetTerms,
    PlannedRelease,
    ReleaseRequest,
    plan_to_json,
)

Plan = Sequence[PlannedRelease] | None


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What the ledger says to a request.

    Attributes:
        budget_epsilon: ε the dataset file allows the cohort.
        delta: δ of the cohort.
        spent_epsilon: ε of what was charged so far, rounded up.
        total_epsilon: ε after this release, rounded up; infinite where it cannot be charged at all.
        reused: The release exists already and costs nothing.
        refusal: Why not, in one line; None where the release is admitted.
    """

    budget_epsilon: float
    delta: float
    spent_epsilon: float
    total_epsilon: float
    reused: bool = False
    refusal: str | None = None

    @property
    def admitted(self) -> bool:
        """Whether `reserve` would succeed."""
        return self.refusal is None

    @property
    def requested_epsilon(self) -> float:
        """What the release would add to the total, rounded up."""
        return increase(self.spent_epsilon, self.total_epsilon)

    @property
    def remaining_epsilon(self) -> float:
        """What is left before this release, rounded down."""
        return remaining(self.budget_epsilon, self.spent_epsilon)


def increase(spent: float, total: float) -> float:
    """`total` − `spent`, rounded up, and zero where nothing is added."""
    return math.nextafter(total - spent, math.inf) if total > spent else 0.0


def remaining(budget: float, spent: float) -> float:
    """`budget` − `spent`, rounded down, and zero where it was overspent."""
    return max(0.0, math.nextafter(budget - spent, -math.inf)) if spent else budget


def admit(book: Book, request: ReleaseRequest, terms: BudgetTerms, plan: Plan = None) -> Admission:
    """Prices a request against its cohort. Writes nothing.

    Returns:
        The decision; `refusal` is set where the budget does not suffice.

    Raises:
        PlanChangedError: The cohort is fixed to a plan that does not hold this release.
        PrivacyError: The request has no guarantee that can be charged, or contradicts the terms
            under which the cohort was opened.

    **Privacy**: `zcdp` is a privacy filter, valid for releases chosen after seeing earlier ones
    (Feldman and Zrnic 2021; Whitehouse et al. 2023): it admits while the sum of ρ of every reserve
    stays below the ρ whose ε is the budget. A sum of privacy loss distributions is not a filter,
    so `tight` charges whole copies of a plan fixed before the first charge (PRIVACY.md D.6).
    """
    _check_guarantee(request, terms)
    account = book.accounts.get(request.cohort)
    if account is not None:
        _check_unchanged(account, request, terms)
    spent = account.epsilon(terms.accountant) if account else 0.0
    if book.released(request.key(terms.relation, terms.unit)) is not None:
        return _answer(terms, spent, spent, reused=True)
    plan_json = _pinned_plan(account, request, terms, plan) if terms.accountant == TIGHT else None
    total = _total(account, request, terms, plan_json)
    fits = request.event is None or total <= terms.epsilon  # False also for a NaN
    refusal = None if fits else _overspend(request, terms, spent, total)
    return _answer(terms, spent, total, refusal=refusal)


def _answer(
    terms: BudgetTerms,
    spent: float,
    total: float,
    *,
    reused: bool = False,
    refusal: str | None = None,
) -> Admission:
    return Admission(
        budget_epsilon=terms.epsilon,
        delta=terms.delta,
        spent_epsilon=spent,
        total_epsilon=total,
        reused=reused,
        refusal=refusal,
    )


def _check_guarantee(request: ReleaseRequest, terms: BudgetTerms) -> None:
    """Every admitted request has an event to charge, or is accepted as ex-post."""
    where = f"{request.asset} of cohort {request.cohort!r}"
    if request.guarantee is GuaranteeType.EX_POST:
        if not terms.accepts_ex_post:
            raise PrivacyError(
                f"Expected a release with an (ε, δ) guarantee for {where}, got an ex-post one. "
                "Choose another method, or accept ex-post releases in the dataset file."
            )
    elif request.guarantee is GuaranteeType.NONE:
        raise PrivacyError(
            f"Expected a guarantee for {where}, got none. Keep the value internal: do not release."
        )
    elif request.event is None:
        raise PrivacyError(
            f"Expected an accounting event for {where}, got none ({request.guarantee} release). "
            "A release without one would cost an infinite ε."
        )


def _check_unchanged(account: CohortAccount, request: ReleaseRequest, terms: BudgetTerms) -> None:
    """What composition takes for granted must not change once something was charged."""
    opened = account.opened
    facts: dict[str, tuple[object, object]] = {
        "dataset": (account.dataset, request.dataset),
        "delta": (opened.delta, terms.delta),
        "relation": (str(opened.relation), str(terms.relation)),
        "privacy unit": (opened.unit.describe(), terms.unit.describe()),
    }
    for name, (before, now) in facts.items():
        if before != now:
            raise PrivacyError(
                f"Expected {name}={before} for cohort {account.cohort!r}, as in its first ledger "
                f"entry, got {now}: earlier and later releases would not compose. Restore "
                f"{name} in the dataset file, or name a cohort of other records."
            )


def _pinned_plan(
    account: CohortAccount | None, request: ReleaseRequest, terms: BudgetTerms, plan: Plan
) -> str:
    """The plan that binds this cohort, after checking that the request keeps to it."""
    remedy = "Keep the plan, or set `accountant: zcdp` in the dataset file."
    if plan is None:
        raise PlanChangedError(
            f"Expected a plan for cohort {request.cohort!r} (accountant: {TIGHT}), got none. "
            f"{remedy}"
        )
    plan_json = plan_to_json(plan)
    if account is not None and account.plan_json not in (plan_json, None):
        raise PlanChangedError(
            f"Expected the plan that cohort {request.cohort!r} was first charged for, got another "
            f"one: a fixed plan cannot follow its own releases. {remedy}"
        )
    if account is not None and account.adaptive:
        raise PlanChangedError(
            f"Expected accountant zcdp for cohort {request.cohort!r}, got {terms.accountant}: it "
            "was charged without a plan already. Set `accountant: zcdp` in the dataset file."
        )
    if request.event is not None and (request.asset, request.event_json) not in plan_copies(
        plan_json
    ):
        raise PlanChangedError(
            f"Expected a planned release of cohort {request.cohort!r}, got {request.asset} with an "
            f"event that the plan does not hold. {remedy}"
        )
    return plan_json


def _total(
    account: CohortAccount | None,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan_json: str | None,
) -> float:
    """ε at δ of the cohort once the request's event is charged, rounded up."""
    charges = Counter(account.charges) if account else Counter()
    if request.event_json is not None:
        charges[request.asset, request.event_json] += 1
    if plan_json is not None:
        return plan_epsilon(plan_json, plan_rounds(charges, plan_json), terms.delta)
    units = account.units if account else 0
    units += rho_units(request.event) if request.event else 0
    return zcdp_epsilon_of_units(units, terms.delta)


def _overspend(request: ReleaseRequest, terms: BudgetTerms, spent: float, total: float) -> str:
    """Says what was asked and what is left, with digits enough to see why it does not fit."""
    asked, left = increase(spent, total), remaining(terms.epsilon, spent)
    digits = next(
        (
            n
            for n in (2, 4, 8, 16)
            if round(asked, n) > round(left, n) and round(terms.epsilon, n) == terms.epsilon
        ),
        17,
    )
    return (
        f"Publishing {request.asset} would overspend cohort {request.cohort!r}: "
        f"requested ε={asked:.{digits}f}, remaining ε={left:.{digits}f} of "
        f"{terms.epsilon:.{digits}f} (δ={terms.delta:g}); the total would be ε={total:.{digits}f}. "
        "Lower its budget_share or raise budget.epsilon in the dataset file."
    )
