"""Checks a plan against what its dataset file promises to secrets, before anything is read.

Every method counts, not only those that protect secrets: a release under DP reveals as much about a
secret as much as group privacy for all records that hold it allows. The ledger asks again before
each charge (`privacy/ledger/admission.py`); what stands here is for `dpsynth plan` and `datasets
check`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpsynth_assets.datasets import PrivateDatasetSpec, Problem
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.charges import plan_posteriors
from dpsynth_assets.privacy.ledger.schema import plan_to_json


@dataclass(frozen=True, kw_only=True)
class KeptPromise:
    """One promised (p, r) and what the plan reaches.

    Attributes:
        prior: p in (0, 1).
        promised: r in (p, 1).
        reached: Largest probability of naming a secret after every round, rounded up; 1 where an
            ex-post method is planned, which nothing bounds.
    """

    prior: float
    promised: float
    reached: float

    @property
    def kept(self) -> bool:
        """Whether the plan stays within the promise."""
        return self.reached <= self.promised


def kept_promises(spec: PrivateDatasetSpec, plan: DatasetPlan) -> tuple[KeptPromise, ...]:
    """Composes all rounds of a plan for each promised (p, r); none where nothing is promised.

    **Privacy** As the ledger does: the dominating pairs of all lines are convolved, DP lines after
    group privacy for the declared records of a secret, and p is applied last.
    """
    secret = plan.budget.secret
    if secret is None:
        return ()
    if _ex_post_methods(plan):
        reached: Sequence[float] = (1.0,) * len(secret.bounds)
    else:
        reached = plan_posteriors(plan_to_json(plan.releases), spec.budget.rounds, secret)
    return tuple(
        KeptPromise(prior=prior, promised=promised, reached=bound)
        for (prior, promised), bound in zip(secret.bounds, reached, strict=True)
    )


def budget_warnings(spec: PrivateDatasetSpec, plan: DatasetPlan) -> list[Problem]:
    """Says whether all rounds of the plan cost more than the budget."""
    budget = plan.budget
    cost = epsilon_of(plan.events * spec.budget.rounds, budget.delta, budget.accountant)
    if cost <= budget.epsilon:
        return []
    expected = f"releases that cost at most {declared(budget.epsilon)} together"
    return [Problem("budget.epsilon", expected, epsilon_up(cost), _CHEAPER, "warning")]


def promise_problems(spec: PrivateDatasetSpec, plan: DatasetPlan) -> list[Problem]:
    """Says in a line each which promises the plan breaks; the caller names the file."""
    secret = plan.budget.secret
    if spec.secrets is None or secret is None:
        return []
    kinds = [(kind.prior, kind.posterior) for kind in spec.secrets.kinds]
    ex_post = ", ".join(_ex_post_methods(plan))
    unbounded = f"{ex_post}, whose ex-post bound is not known beforehand"
    remedy = f"Drop {ex_post}, or drop secrets." if ex_post else _SMALLER
    return [
        Problem(
            file="",
            field=f"secrets.kinds.{kinds.index((promise.prior, promise.promised))}.posterior",
            expected=f"a plan that keeps a secret with prior {declared(promise.prior)} at a "
            f"posterior of at most {declared(promise.promised)}",
            got=unbounded
            if ex_post
            else f"{rounded_up(promise.reached)} from all releases together "
            f"(neighbouring steps: {secret.occurrences})",
            remedy=remedy,
        )
        for promise in kept_promises(spec, plan)
        if not promise.kept
    ]


_CHEAPER = "Raise it, lower a budget_share, or raise topic_histogram.noise_std."
_SMALLER = (
    "Lower budget.epsilon, secrets.kinds.max_records, a secret_share or budget.rounds, raise "
    "the posterior, or drop secrets and their promise."
)


def _ex_post_methods(plan: DatasetPlan) -> list[str]:
    return [
        planned.folder
        for planned in plan.methods
        if planned.plan.refusal is None and planned.plan.guarantee is GuaranteeType.EX_POST
    ]
