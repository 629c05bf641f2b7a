"""Decides, before anything private is read, whether a release may be charged."""

import math
from collections import Counter
from dataclasses import dataclass

from dpsynth_assets.privacy.directed_rounding import (
    declared,
    digits_that_differ,
    rounded_down,
    rounded_up,
)
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.charges import FilterSum, epsilon_alone
from dpsynth_assets.privacy.ledger.conditions import (
    Plan,
    check_guarantee,
    check_one_account,
    check_partition,
    check_unchanged,
    pinned_plan,
)
from dpsynth_assets.privacy.ledger.plans import Charges, plan_epsilon, plan_posteriors, plan_rounds
from dpsynth_assets.privacy.ledger.schema import ReleaseRequest
from dpsynth_assets.privacy.ledger.terms import TIGHT, BudgetTerms


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Answer of the ledger to a request.

    Attributes:
        budget_epsilon: ε the dataset file allows the cohort.
        delta: δ of the cohort.
        spent_epsilon: ε of what was charged so far, rounded up.
        total_epsilon: ε after this release, rounded up; infinite where it cannot be charged at all.
        filter_epsilon: What is compared with the budget, rounded up: as `total_epsilon`, but read
            at the one order that the budget fixes where sampled events are among the charges.
        secret_posterior: Largest probability of guessing a secret after this release, rounded up;
            None where nothing is promised, or nothing charged. Of the first (p, r) promised.
        reused: The release exists already and costs nothing.
        refusal: Why not, in one line; None where the release is admitted.
    """

    budget_epsilon: float
    delta: float
    spent_epsilon: float
    total_epsilon: float
    filter_epsilon: float = 0.0
    secret_posterior: float | None = None
    reused: bool = False
    refusal: str | None = None

    @property
    def admitted(self) -> bool:
        """Says whether `reserve` would succeed."""
        return self.refusal is None

    @property
    def requested_epsilon(self) -> float:
        """The amount that the release would add to the total, rounded up."""
        return increase(self.spent_epsilon, self.total_epsilon)

    @property
    def remaining_epsilon(self) -> float:
        """The amount left before this release, rounded down."""
        return remaining(self.budget_epsilon, self.spent_epsilon)


def increase(spent: float, total: float) -> float:
    """`total` − `spent`, rounded up, and zero where nothing is added."""
    return math.nextafter(total - spent, math.inf) if total > spent else 0.0


def remaining(budget: float, spent: float) -> float:
    """`budget` − `spent`, rounded down, and zero where it was overspent."""
    return max(0.0, math.nextafter(budget - spent, -math.inf)) if spent else budget


def admit(
    book: Book,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Plan = None,
    *,
    released: bool = False,
) -> Admission:
    """Prices a request against its cohort. Writes nothing.

    Args:
        book: All accounts, up to the last entry.
        request: What would be released.
        terms: The cohort's budget.
        plan: All releases of the cohort; required by accountant `tight`.
        released: Whether a release of this key was committed already.

    Returns:
        The decision; `refusal` is set where the budget or the secrets' bound does not suffice.

    Raises:
        PlanChangedError: The cohort is fixed to a plan that does not hold this release.
        PrivacyError: The request has no guarantee that can be charged, or contradicts the terms
            under which the cohort was opened, or its dataset was charged to another account.

    **Privacy**: `zcdp` is a privacy filter, valid for releases chosen after seeing earlier ones
    (Feldman and Zrnic 2021; Whitehouse et al. 2023): it admits while the sum of ρ of every reserve
    stays below the ρ whose ε is the budget, or, with sampled events, while the sum of divergences
    at one order fixed by the budget does (`FilterSum.filter_epsilon`). A sum of privacy loss
    distributions is not a filter, so `tight` charges whole copies of a plan fixed before the first
    charge. Secrets are bounded beside ε, never within it (docs/privacy.md).
    """
    check_guarantee(request, terms)
    account = book.accounts.get(request.cohort)
    if account is not None:
        check_unchanged(account, request.dataset, terms)
    check_partition(book.partitions, request, terms)
    spent = account.epsilon(terms.accountant) if account else 0.0
    if released:
        return Admission(
            budget_epsilon=terms.epsilon,
            delta=terms.delta,
            spent_epsilon=spent,
            total_epsilon=spent,
            reused=True,
        )
    check_one_account(book.accounts, request)
    plan_json = pinned_plan(account, request, terms, plan) if terms.accountant == TIGHT else None
    total, compared = _totals(account, request, terms, plan_json)
    posteriors = _posteriors(account, request, terms, plan_json)
    return Admission(
        budget_epsilon=terms.epsilon,
        delta=terms.delta,
        spent_epsilon=spent,
        total_epsilon=total,
        filter_epsilon=compared,
        secret_posterior=posteriors[0] if posteriors else None,
        refusal=_refusal(request, terms, (spent, total, compared), posteriors),
    )


def _refusal(
    request: ReleaseRequest,
    terms: BudgetTerms,
    epsilons: tuple[float, float, float],
    posteriors: tuple[float, ...],
) -> str | None:
    """Compares what the request would lead to with every bound; a NaN is refused."""
    if _costs_epsilon(request) and not epsilons[2] <= terms.epsilon:
        return _overspend(request, terms, *epsilons)
    bounds = terms.secret.bounds if terms.secret and posteriors else ()
    for (prior, allowed), reached in zip(bounds, posteriors, strict=True):
        if not reached <= allowed:
            return _tells_too_much(
                request, terms, f"{declared(allowed)} (prior {declared(prior)})", reached
            )
    return None


def _costs_epsilon(request: ReleaseRequest) -> bool:
    if request.event is None or is_post_processing(request.event):
        return False
    return request.guarantee is not GuaranteeType.SECRET


def _totals(
    account: CohortAccount | None,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan_json: str | None,
) -> tuple[float, float]:
    """ε at δ of the cohort once the request is charged: as it would be shown, and as compared."""
    event_json = request.event_json if _costs_epsilon(request) else None
    if plan_json is not None:
        charges = account.charges.copy() if account else Counter()
        if event_json is not None:
            charges[request.asset, event_json] += 1
        total = plan_epsilon(plan_json, plan_rounds(charges, plan_json), terms.delta)
        return total, total
    charged = (account.spent if account else FilterSum()).plus(event_json)
    return charged.epsilon(terms.delta), charged.filter_epsilon(terms.delta, terms.epsilon)


def _posteriors(
    account: CohortAccount | None,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan_json: str | None,
) -> tuple[float, ...]:
    """Computes the posterior of secrets once the request is charged; 1 where nothing bounds it.

    One for each promised (p, r); none where nothing is promised, and for what costs nothing: text
    that is written from releases tells no more than they do.

    **Privacy** Every charge of the cohort is under this bound, whatever its method: a DP release
    tells of a secret, too, as much as group privacy for all records that hold it allows.
    """
    if terms.secret is None or (request.event is not None and is_post_processing(request.event)):
        return ()
    if plan_json is None or _is_ex_post(account, request):
        return (1.0,) * len(terms.secret.bounds)
    charges: Charges = account.charges + account.secret_charges if account else Counter()
    charges[request.asset, request.event_json or ""] += 1
    return plan_posteriors(plan_json, plan_rounds(charges, plan_json), terms.secret)


def _is_ex_post(account: CohortAccount | None, request: ReleaseRequest) -> bool:
    """Says whether the cohort would hold a release without a dominating pair."""
    return request.guarantee is GuaranteeType.EX_POST or bool(account and account.has_ex_post)


def _overspend(
    request: ReleaseRequest, terms: BudgetTerms, spent: float, total: float, compared: float
) -> str:
    """Says what was asked and what is left, with digits enough to see why it does not fit."""
    asked, left = increase(spent, total), remaining(terms.epsilon, spent)
    form = f".{digits_that_differ(compared, terms.epsilon)}f"
    order = (
        f" (ε={rounded_up(compared, form)} at the one order of a filter of this budget)"
        if compared > total
        else ""
    )
    alone = math.inf  # Of a total beyond floats.
    if math.isfinite(total):
        alone = epsilon_alone(request.event_json or "", terms.delta, terms.accountant)
    return (
        f"Publishing {request.asset} would overspend cohort {request.cohort!r}: "
        f"ε={rounded_up(alone, form)} alone, adds ε={rounded_up(asked, form)} to the total, "
        f"remaining ε={rounded_down(left, form)} of "
        f"{rounded_down(terms.epsilon, form)} (δ={declared(terms.delta)}); the total would be "
        f"ε={rounded_up(total, form)}{order}. Nothing was charged, and what was released stays: "
        "use it again, at no charge, under the name of its release. For another release, "
        "lower its budget_share or raise budget.epsilon in the dataset file; budget.rounds, "
        "declared before the first release, shares ε among as many rounds as are to be run."
    )


def _tells_too_much(
    request: ReleaseRequest, terms: BudgetTerms, bound: str, posterior: float
) -> str:
    if terms.accountant != TIGHT or request.guarantee is GuaranteeType.EX_POST:
        return (
            f"Expected releases of a fixed plan, none of them ex-post, for cohort "
            f"{request.cohort!r}, whose secrets are protected up to {bound}; {request.asset} would "
            "end that bound. Keep `accountant: tight` and the plan, or release it of other records."
        )
    return (
        f"Publishing {request.asset} would tell too much of the secrets of cohort "
        f"{request.cohort!r}: expected a posterior of at most {bound}, all planned releases "
        f"together give {rounded_up(posterior, '.6g')}. Lower budget.epsilon, secret_share or "
        "secrets.kinds.max_records, or, before anything is charged, raise "
        "secrets.kinds.posterior, in the dataset file."
    )
