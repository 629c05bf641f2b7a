"""The monthly allowance: a budget of its own for what one calendar month may add.

It bounds the pace, beside the total, never instead of it. What a month was charged is composed by
the accountant of the cohort, exactly as the whole is: under `zcdp` the charges of the month are
added by the same filter, of a budget that is the allowance; under `tight` a month pays for whole
copies of the plan, as many as hold its charges.

**Privacy** All releases of one calendar month together are (monthly ε, δ)-DP, whatever was released
before: a filter holds for releases that follow from earlier outputs, those of earlier months
included (docs/privacy.md). Allowances of several months do not add up to a guarantee of their own;
the cohort's total does.
"""

from collections import Counter

from dpsynth_assets.privacy.directed_rounding import (
    declared,
    digits_that_differ,
    rounded_down,
    rounded_up,
)
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.charges import FilterSum
from dpsynth_assets.privacy.ledger.months import MonthSpend, month_after
from dpsynth_assets.privacy.ledger.plans import Charges, plan_epsilon, plan_rounds
from dpsynth_assets.privacy.ledger.schema import ReleaseRequest
from dpsynth_assets.privacy.ledger.terms import BudgetTerms


def month_epsilon(
    account: CohortAccount | None,
    month: str,
    terms: BudgetTerms,
    plan_json: str | None,
    charge: tuple[str, str] | None = None,
) -> float:
    """ε at δ of what a cohort was charged in `month`, as compared with its allowance, rounded up.

    Args:
        account: The cohort; None before its first charge.
        month: Month of the ledger's clock.
        terms: Its terms; `monthly_epsilon` must be set.
        plan_json: Its plan where `tight` composes it, else None.
        charge: One more (asset, canonical event), as if it were charged already.
    """
    spend = account.this_month.within(month) if account else MonthSpend(month)
    if plan_json is not None:
        charges: Charges = spend.charges + (Counter([charge]) if charge else Counter())
        return plan_epsilon(plan_json, plan_rounds(charges, plan_json), terms.delta)
    total: FilterSum = spend.spent.plus(charge[1] if charge else None)
    return total.filter_epsilon(terms.delta, terms.monthly_epsilon or terms.epsilon)


def over_allowance(
    request: ReleaseRequest, terms: BudgetTerms, month: str, spent: float, total: float
) -> str | None:
    """Gives the reason why a charge does not fit into its month, in one line; None if it does."""
    allowance = terms.monthly_epsilon
    if allowance is None or total <= allowance:
        return None
    form = f".{digits_that_differ(total, allowance)}f"
    return (
        f"Publishing {request.asset} would exceed the monthly allowance of cohort "
        f"{request.cohort!r}: {month} would come to ε={rounded_up(total, form)} of "
        f"{rounded_down(allowance, form)} (δ={declared(terms.delta)}), "
        f"ε={rounded_up(spent, form)} of it is spent. A new allowance opens on "
        f"{month_after(month)} (UTC): wait, or raise budget.monthly_epsilon in the dataset file."
    )
