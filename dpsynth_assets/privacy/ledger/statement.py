"""Statements of account: what a cohort and a dataset have spent, and what is guaranteed.

A filter admits releases that were chosen after seeing earlier ones, and guarantees the budget it
compares with. ε of what was spent so far is a reading of an odometer: its best order, and which
releases there were at all, may depend on what came out. It says how much of the budget is left and
is no guarantee. A plan that was fixed before the first charge pins each copy and not their number:
who looks at one round decides on the next. So what is guaranteed is ε of all copies that the budget
admits; a person who stops before the last one publishes less of the same draws.

**Source** Feldman and Zrnic 2021 for filters; Rogers et al. 2016 for odometers and filters.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.admission import remaining
from dpsynth_assets.privacy.ledger.charges import (
    Charges,
    admitted_rounds,
    plan_copies,
    plan_dp_events,
    plan_epsilon,
    plan_rounds,
)
from dpsynth_assets.privacy.ledger.schema import TIGHT, ZCDP, BudgetTerms, SecretTerms
from dpsynth_assets.privacy.renyi import float_up

FILTER = "filter"
PLAN = "plan"
SWITCHED = "plan, then filter"


def guaranteed(account: CohortAccount) -> tuple[float, float, str]:
    """States what holds for everything charged to a cohort, for any choices in between.

    Returns:
        ε, rounded up, of all but its ex-post and secret releases; δ that goes with it: the
        cohort's, or twice that after a switch of accountants; why it holds, in a word or three.

    **Privacy** `filter`: ε is the largest budget under which any release was admitted; it holds if
    that budget was not raised because of what was released. `plan`: ε of the most copies of the
    plan that it admits, which include those that were charged, wherever the person stops.

    `plan, then filter`: the cohort began with a plan and was switched to the filter, perhaps
    because of what came out. Let ε be the larger of the plan's and the largest budget, and S any
    set of outcomes. Outcomes of S without a charge of the filter are outcomes of the plan, so that
    P[S ∩ plan] <= e^ε P'[S ∩ plan] + δ. All others are outcomes of the filter, which counts the
    plan's charges too: P[S ∩ filter] <= e^ε P'[S ∩ filter] + δ. The two parts are disjoint, and
    their sum is P[S] <= e^ε P'[S] + 2δ.
    """
    delta, planned = account.opened.delta, _planned_epsilon(account)
    if planned is None:
        return account.largest_budget, delta, FILTER
    if not account.adaptive:
        return planned, delta, PLAN
    return max(account.largest_budget, planned), min(1.0, 2.0 * delta), SWITCHED


def charged_copies(account: CohortAccount) -> tuple[Event, ...]:
    """Events of the DP lines of all copies of the plan that hold its charges; none without one."""
    copies = _copies(account)
    if not copies or account.plan_json is None:
        return ()
    return plan_dp_events(account.plan_json) * copies


def _planned_epsilon(account: CohortAccount) -> float | None:
    """ε of all copies of the plan that may be charged; None where none of it was."""
    copies = _copies(account)
    if not copies or account.plan_json is None:
        return None
    delta = account.opened.delta
    most = admitted_rounds(account.plan_json, copies, delta, account.largest_budget)
    if most is None:  # The budget is above ε of every number of copies that it admits.
        return account.largest_budget
    return plan_epsilon(account.plan_json, most, delta)


def _copies(account: CohortAccount) -> int:
    """The smallest number of copies of the plan that holds all that was charged of it."""
    if account.plan_json is None:
        return 0
    lines = plan_copies(account.plan_json)
    charged: Charges = Counter({line: n for line, n in account.charges.items() if line in lines})
    return plan_rounds(charged, account.plan_json)


DP_TOTAL = "dp"
EX_POST_TOTAL = "none (ex-post only)"
SECRET_TOTAL = "none (secret protection only, which bounds no record)"
MIXED_TOTAL = "none (cohorts differ in neighbouring relation or privacy unit)"


@dataclass(frozen=True, kw_only=True)
class CohortSpend:
    """Spending of one cohort, recomputed from its events.

    Attributes:
        cohort: Name of the cohort.
        dataset: Dataset it belongs to; empty where nothing was charged.
        epsilon: ε of every reserve with an event, rounded up: the reading of an odometer, which
            says what is left and is no guarantee (`guaranteed`). Ex-post bounds are not in it.
        delta: δ that goes with every ε here: the cohort's, or twice that after a switch of
            accountants.
        guaranteed_epsilon: ε that is guaranteed of the same releases, rounded up.
        basis: Why it is: `filter`, `plan` or `plan, then filter`.
        budget_epsilon: ε the terms allow; None where no terms are known.
        remaining_epsilon: Budget minus what is compared with it, rounded down: less than budget
            minus `epsilon` where sampled events are added at one order; None where no terms are
            known.
        accountant: Accountant that computed `epsilon`.
        rho: Sum of ρ of every reserve of a zCDP event; sampled Gaussians have none worth summing.
        releases: Reservations that were committed.
        reserved_uncommitted: Reservations that were not; they stay charged.
        has_ex_post: Whether any ex-post release was reserved.
        ex_post_epsilon_max: Largest realised bound of one ex-post release; infinite if some
            release did not state its own. A function of private data: internal use only.
        secret_prior: p before any release; None where no secrets are declared.
        secret_posterior: Largest probability of guessing a secret after all releases, DP releases
            included, rounded up; 1 where nothing bounds it. Never summed with any ε.
        total_guarantee: `dp`, or `none (…)` once any ex-post or secret release was reserved.
        unit: Privacy unit in words.
        public_facts: Every declared public fact that some release relied on.
    """

    cohort: str
    dataset: str = ""
    epsilon: float = 0.0
    delta: float = 0.0
    guaranteed_epsilon: float = 0.0
    basis: str = FILTER
    budget_epsilon: float | None = None
    remaining_epsilon: float | None = None
    accountant: str = ""
    rho: Fraction = field(default=Fraction(0), repr=False)
    releases: int = 0
    reserved_uncommitted: int = 0
    has_ex_post: bool = False
    ex_post_epsilon_max: float | None = None
    secret_prior: float | None = None
    secret_posterior: float | None = None
    total_guarantee: str = DP_TOTAL
    unit: str = ""
    public_facts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; ρ as a float for reading, never for accounting; infinity as "inf"."""
        values = {
            **vars(self),
            "rho": float_up(self.rho),
            "public_facts": list(self.public_facts),
        }
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class DatasetSpend:
    """Spending of all cohorts of a dataset together.

    Attributes:
        dataset: Name of the dataset.
        epsilon: ε of the whole, rounded up: the reading of an odometer.
        guaranteed_epsilon: ε that is guaranteed of the whole, rounded up.
        delta: δ of the whole, rounded up.
        composition: `parallel` (largest cohort) or `sequential` (sum over cohorts).
        total_guarantee: As of a cohort; no guarantee where cohorts protect different things.
        cohorts: The cohorts' own statements.
    """

    dataset: str
    epsilon: float
    guaranteed_epsilon: float
    delta: float
    composition: str
    total_guarantee: str
    cohorts: tuple[CohortSpend, ...]


def cohort_spend(
    cohort: str, account: CohortAccount | None, terms: BudgetTerms | None = None
) -> CohortSpend:
    """States one account, against `terms` or else against those of its last entry.

    Args:
        cohort: Name of the cohort.
        account: Its account; None before its first charge.
        terms: Terms to hold it against.

    Raises:
        PrivacyError: `terms` has another δ than the cohort was charged at.
    """
    known = terms or (account.latest if account else None)
    if known is None:
        return CohortSpend(cohort=cohort)
    if account is None:
        account = CohortAccount.empty(cohort, "", known)
    elif known.delta != account.opened.delta:
        raise PrivacyError(
            f"Expected delta={account.opened.delta} for cohort {cohort!r}, as in its first ledger "
            f"entry, got {known.delta}. Restore delta in the dataset file."
        )
    accountant = known.accountant
    if accountant == TIGHT and not account.follows_plan:
        accountant = ZCDP
    epsilon = account.epsilon(accountant)
    compared = (
        epsilon if accountant == TIGHT else account.spent.filter_epsilon(known.delta, known.epsilon)
    )
    bounds = _ex_post_bounds(account)
    guaranteed_epsilon, delta, basis = guaranteed(account)
    secret = _promised(account, known)
    return CohortSpend(
        cohort=cohort,
        dataset=account.dataset,
        epsilon=epsilon,
        delta=delta,
        guaranteed_epsilon=guaranteed_epsilon,
        basis=basis,
        budget_epsilon=known.epsilon,
        remaining_epsilon=remaining(known.epsilon, compared),
        accountant=accountant,
        rho=account.rho,
        releases=account.committed,
        reserved_uncommitted=account.reserved - account.committed,
        has_ex_post=account.has_ex_post,
        ex_post_epsilon_max=max(bounds, default=None),
        secret_prior=secret.prior if secret else None,
        secret_posterior=account.secret_posterior(secret) if secret else None,
        total_guarantee=_guarantee([account]),
        unit=account.opened.unit.describe(),
        public_facts=tuple(sorted(account.public_facts)),
    )


def _promised(account: CohortAccount, terms: BudgetTerms) -> SecretTerms | None:
    """The bounds promised to secrets: by `terms`, unless more was promised when charged."""
    if account.secret is None or (terms.secret is not None and terms.secret.keeps(account.secret)):
        return terms.secret
    return account.secret


def dataset_spend(dataset: str, accounts: Iterable[CohortAccount]) -> DatasetSpend:
    """Composes the cohorts of one dataset (docs/privacy.md).

    **Privacy**: the largest cohort stands for all only where one privacy unit is in one cohort:
    under add/remove or zero-out, with records as units, and cohorts that are parts of the dataset.
    A replaced record may move to another cohort, a person may have records in several, and a
    cohort named like the dataset holds all of it: then the cohorts' (ε, δ) add up.
    """
    mine = [account for account in accounts if account.dataset == dataset]
    spends = tuple(cohort_spend(account.cohort, account) for account in mine)
    parallel = len(mine) == 1 or _disjoint(dataset, mine)
    total = max if parallel else _sum_up
    return DatasetSpend(
        dataset=dataset,
        epsilon=total([spend.epsilon for spend in spends] or [0.0]),
        guaranteed_epsilon=total([spend.guaranteed_epsilon for spend in spends] or [0.0]),
        delta=total([spend.delta for spend in spends] or [0.0]),
        composition="parallel" if parallel else "sequential",
        total_guarantee=_joint_guarantee(mine),
        cohorts=spends,
    )


def _disjoint(dataset: str, accounts: Sequence[CohortAccount]) -> bool:
    """Says whether neighbouring datasets differ in one cohort only."""
    one_rule = len({account.opened.partition for account in accounts}) == 1
    return one_rule and all(
        account.opened.relation is not NeighboringRelation.REPLACE_ONE
        and account.opened.unit.column is None
        and account.cohort != dataset
        for account in accounts
    )


def _joint_guarantee(accounts: Sequence[CohortAccount]) -> str:
    if len({(account.opened.relation, account.opened.unit) for account in accounts}) > 1:
        return MIXED_TOTAL
    return _guarantee(accounts)


def _guarantee(accounts: Sequence[CohortAccount]) -> str:
    """One release without (ε, δ) leaves a total without, at any cost of the rest."""
    if any(account.has_ex_post for account in accounts):
        return EX_POST_TOTAL
    return SECRET_TOTAL if any(account.has_secret for account in accounts) else DP_TOTAL


def _ex_post_bounds(account: CohortAccount) -> list[float]:
    return [math.inf if bound is None else bound for bound in account.ex_post.values()]


def _sum_up(values: Sequence[float]) -> float:
    """Exact sum of non-negative numbers, rounded up to a float."""
    if any(math.isinf(value) for value in values):
        return math.inf
    return float_up(sum((Fraction(value) for value in values), Fraction(0)))
