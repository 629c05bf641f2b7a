"""Guarantees of a cohort, as distinct from what an odometer reads of it.

A filter admits releases that were chosen after seeing earlier ones, and guarantees the budget it
compares with. ε of what was spent so far is a reading of an odometer: its best order, and which
releases there were at all, may depend on what came out. It says how much of the budget is left and
is no guarantee. A plan that was fixed before the first charge pins each copy and not their number:
who looks at one round decides on the next. So what is guaranteed is ε of all copies that the budget
admits; whoever stops before the last one publishes less of the same draws.

**Source** Feldman and Zrnic 2021 for filters; Rogers et al. 2016 for odometers and filters.
"""

from collections import Counter
from dataclasses import dataclass

from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.plans import (
    Charges,
    admitted_rounds,
    plan_copies,
    plan_dp_events,
    plan_epsilon,
    plan_rounds,
)

FILTER = "filter"
PLAN = "plan"
SWITCHED = "plan, then filter"


@dataclass(frozen=True, kw_only=True)
class Guaranteed:
    """(ε, δ) that holds for everything charged to a cohort, its ex-post and secret releases aside.

    Attributes:
        epsilon: ε, rounded up; 0 where nothing was charged.
        delta: δ that goes with it: the cohort's, or twice that after a switch of accountants.
        basis: `filter`, `plan` or `plan, then filter`: why it holds.
    """

    epsilon: float
    delta: float
    basis: str


def guaranteed(account: CohortAccount) -> Guaranteed:
    """States what holds for everything charged to a cohort, whatever was chosen in between.

    **Privacy** `filter`: ε is the largest budget under which any release was admitted; it holds if
    that budget was not raised because of what was released. `plan`: ε of the most copies of the
    plan that it admits, of which those that were charged are a part, wherever anybody stops.

    `plan, then filter`: the cohort began with a plan and was switched to the filter, perhaps
    because of what came out. Let ε be the larger of the plan's and the largest budget, and S any
    set of outcomes. Outcomes of S without a charge of the filter are outcomes of the plan, so that
    P[S ∩ plan] <= e^ε P'[S ∩ plan] + δ. All others are outcomes of the filter, which counts the
    plan's charges too: P[S ∩ filter] <= e^ε P'[S ∩ filter] + δ. The two parts are disjoint, and
    their sum is P[S] <= e^ε P'[S] + 2δ.
    """
    delta, planned = account.opened.delta, _planned_epsilon(account)
    if planned is None:
        return Guaranteed(epsilon=account.largest_budget, delta=delta, basis=FILTER)
    if not account.adaptive:
        return Guaranteed(epsilon=planned, delta=delta, basis=PLAN)
    epsilon = max(account.largest_budget, planned)
    return Guaranteed(epsilon=epsilon, delta=min(1.0, 2.0 * delta), basis=SWITCHED)


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
