"""Decides whether a release may be charged, before private data is read.

Conditions on a request come first: a guarantee, the terms and the plan of the first charge, one
account and one partition of its records, and approvals. Then it is priced.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsynth_assets.privacy.directed_rounding import (
    declared,
    digits_that_differ,
    rounded_down,
    rounded_up,
)
from dpsynth_assets.privacy.errors import PlanChangedError, PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.actors import Approvals
from dpsynth_assets.privacy.ledger.charges import (
    Charges,
    epsilon_alone,
    is_secret,
    plan_copies,
    plan_epsilon,
    plan_posteriors,
    plan_rounds,
)
from dpsynth_assets.privacy.ledger.schema import (
    TIGHT,
    BudgetTerms,
    PlannedRelease,
    ReleaseRequest,
    SecretTerms,
    plan_to_json,
)

Plan = Sequence[PlannedRelease] | None


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Answer of the ledger to a request.

    Attributes:
        spent_epsilon: ε of what was charged so far, rounded up.
        total_epsilon: ε after this release, rounded up; infinite where it cannot be charged at all.
        filter_epsilon: What is compared with the budget, rounded up: as `total_epsilon`, but read
            at the one order that the budget fixes where sampled events are among the charges.
        secret_posterior: Largest probability of guessing a secret after this release, rounded up;
            None where nothing is promised, or nothing charged. Of the first (p, r) promised.
        reused: The release exists already and costs nothing.
        refusal: Why not, in one line; None where the release is admitted.
    """

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
    launcher: str = "",
    as_one: bool = False,
) -> Admission:
    """Prices a request against its cohort. Writes nothing.

    Args:
        book: All accounts, up to the last entry.
        request: What would be released.
        terms: The cohort's budget.
        plan: All releases of the cohort; required by accountant `tight`.
        released: Whether a release of this key was committed already.
        launcher: Actor who would sign the charge.
        as_one: Whether releases of the plan may be priced as one, which cannot be charged so.

    Returns:
        The decision; `refusal` is set where the budget or the secrets' bound does not suffice.

    Raises:
        PlanChangedError: The cohort is fixed to a plan that does not hold this release.
        PrivacyError: The request has no guarantee that can be charged, or contradicts the terms
            under which the cohort was opened, its dataset was charged to another account, or its
            plan lacks approvals.

    **Privacy**: `zcdp` is a privacy filter, valid for releases chosen after seeing earlier ones
    (Feldman and Zrnic 2021; Whitehouse et al. 2023): it admits while the sum of ρ of every reserve
    stays below the ρ whose ε is the budget, or, with sampled events, while the sum of divergences
    at one order fixed by the budget does (`FilterSum.filter_epsilon`). A sum of privacy loss
    distributions is not a filter, so `tight` charges whole copies of a plan fixed before the first
    charge. Secrets are bounded beside ε, never within it (docs/privacy.md).
    """
    check_guarantee(request, terms)
    cohort, dataset = request.cohort, request.dataset
    account = book.accounts.get(cohort) or CohortAccount.empty(cohort, dataset, terms)
    check_unchanged(account, dataset, terms)
    check_partition(book.partitions, request, terms)
    spent = account.epsilon(terms.accountant)
    if released:
        return Admission(spent_epsilon=spent, total_epsilon=spent, reused=True)
    check_one_account(book.accounts, request)
    approvals = book.approvals.get(request.dataset, Approvals())
    approvals.check(request, terms, plan, launcher, as_one=as_one)
    plan_json = pinned_plan(account, request, terms, plan) if terms.accountant == TIGHT else None
    total, compared = _totals(account, request, terms, plan_json)
    posteriors = _posteriors(account, request, terms, plan_json)
    return Admission(
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
    account: CohortAccount, request: ReleaseRequest, terms: BudgetTerms, plan_json: str | None
) -> tuple[float, float]:
    """ε at δ of the cohort once the request is charged: as it would be shown, and as compared."""
    event_json = request.event_json if _costs_epsilon(request) else None
    if plan_json is not None:
        charges = account.charges.copy()
        if event_json is not None:
            charges[request.asset, event_json] += 1
        total = plan_epsilon(plan_json, plan_rounds(charges, plan_json), terms.delta)
        return total, total
    charged = account.spent.plus(event_json)
    return charged.epsilon(terms.delta), charged.filter_epsilon(terms.delta, terms.epsilon)


def _posteriors(
    account: CohortAccount, request: ReleaseRequest, terms: BudgetTerms, plan_json: str | None
) -> tuple[float, ...]:
    """Computes the posterior of secrets once the request is charged; 1 where nothing bounds it.

    One for each promised (p, r); none where nothing is promised, and for what costs nothing: text
    that is written from releases tells no more than they do.

    **Privacy** Every charge of the cohort is under this bound, regardless of its method: a DP
    release reveals something about a secret, too, as much as group privacy for all records that
    hold it allows.
    """
    if terms.secret is None or (request.event is not None and is_post_processing(request.event)):
        return ()
    is_ex_post = request.guarantee is GuaranteeType.EX_POST or account.has_ex_post
    if plan_json is None or is_ex_post:  # No dominating pair.
        return (1.0,) * len(terms.secret.bounds)
    charges: Charges = account.charges + account.secret_charges
    charges[request.asset, request.event_json or ""] += 1
    return plan_posteriors(plan_json, plan_rounds(charges, plan_json), terms.secret)


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
        f"remaining ε={rounded_down(left, form)} of {rounded_down(terms.epsilon, form)} "
        f"(δ={declared(terms.delta)}); the total would be ε={rounded_up(total, form)}{order}. "
        "Nothing was charged. Earlier releases stay valid and can be used again at no charge, by "
        "their names and settings. For a new release, lower its budget_share (of topic_histogram: "
        "raise noise_std) or raise budget.epsilon in the dataset file; budget.rounds, declared "
        "before the first release, divides ε among the planned rounds."
    )


def _tells_too_much(
    request: ReleaseRequest, terms: BudgetTerms, bound: str, posterior: float
) -> str:
    if terms.accountant != TIGHT or request.guarantee is GuaranteeType.EX_POST:
        return (
            "Expected releases of a fixed plan, none of them ex-post, for cohort "
            f"{request.cohort!r}, whose secrets are protected up to {bound}; {request.asset} would "
            "break that bound. Keep `accountant: tight` and the plan, or make this release from "
            "other records."
        )
    return (
        f"Publishing {request.asset} would reveal too much about the secrets of cohort "
        f"{request.cohort!r}: expected a posterior of at most {bound}, all planned releases "
        f"together give {rounded_up(posterior, '.6g')}. Lower budget.epsilon, secret_share or "
        "secrets.kinds.max_records, or, before anything is charged, raise secrets.kinds.posterior, "
        "in the dataset file."
    )


def check_guarantee(request: ReleaseRequest, terms: BudgetTerms) -> None:
    """Every admitted request has an event to charge, or is accepted as ex-post."""
    where = f"{request.asset} of cohort {request.cohort!r}"
    if request.guarantee is GuaranteeType.EX_POST:
        if not terms.accepts_ex_post:
            raise PrivacyError(
                f"Expected a release with an (ε, δ) guarantee for {where}, got an ex-post one. "
                "Choose another method, or accept ex-post releases in the dataset file."
            )
    elif request.guarantee is GuaranteeType.NONE:
        raise PrivacyError(f"Expected a guarantee for {where}, got none. Do not release the value.")
    elif request.event is None:
        raise PrivacyError(
            f"Expected an accounting event for {where}, got none ({request.guarantee} release). "
            "A release without one would cost an infinite ε."
        )
    _check_secrets(request, terms, where)


def _check_secrets(request: ReleaseRequest, terms: BudgetTerms, where: str) -> None:
    """Keeps dominating pairs of secrets out of ε, and in a plan fixed beforehand."""
    if request.guarantee is not GuaranteeType.SECRET:
        if request.event is not None and is_secret(request.event):
            raise PrivacyError(
                f"Expected guarantee secret for {where}, whose event bounds neighbours of a secret "
                f"only, got {request.guarantee}. Such an event bounds nothing for a record."
            )
        return
    if request.event is not None and not is_secret(request.event, entirely=True):
        raise PrivacyError(
            f"Expected mixture-of-Gaussians events for {where}, a secret release, got another "
            "event. Charge a release that also protects records as a DP release."
        )
    if terms.secret is None:
        raise PrivacyError(
            f"Expected terms for the secrets of {where}, got none. Declare prior, posterior and "
            "occurrences in the dataset file."
        )
    if terms.accountant != TIGHT:
        raise PrivacyError(
            f"Expected accountant {TIGHT} for {where}, a secret release, got {terms.accountant}: "
            "a (p, r) bound is composed from dominating pairs, which need a fixed plan. "
            f"Set `accountant: {TIGHT}` in the dataset file."
        )


def check_unchanged(account: CohortAccount, dataset: str, terms: BudgetTerms) -> None:
    """Refuses a change, after a charge, of what composition takes for granted.

    Args:
        account: The account that would be charged.
        dataset: Name of the dataset whose release is asked for.
        terms: Its terms now.

    Raises:
        PrivacyError: They are others than at the first charge.
    """
    opened = account.opened
    facts: dict[str, tuple[object, object]] = {
        "dataset": (account.dataset, dataset),
        "delta": (opened.delta, terms.delta),
        "relation": (str(opened.relation), str(terms.relation)),
        "privacy unit": (opened.unit.describe(), terms.unit.describe()),
    }
    if account.secret is not None:
        occurrences = terms.secret.occurrences if terms.secret else None
        facts["secret occurrences"] = (account.secret.occurrences, occurrences)
    for name, (before, now) in facts.items():
        if before != now:
            raise PrivacyError(
                f"Expected {name}={before} for cohort {account.cohort!r}, as in its first ledger "
                f"entry, got {now}: earlier and later releases would not compose. Restore "
                f"{name} in the dataset file, or name a cohort of other records."
            )
    _check_promise(account, terms)


def _check_promise(account: CohortAccount, terms: BudgetTerms) -> None:
    """A (p, r) under which something was charged may be made stronger, never weaker."""
    before, now = account.secret, terms.secret
    if before is not None and now is not None and not now.keeps(before):
        raise PrivacyError(
            f"Expected secrets bounded by {_bounds(before)} or less for cohort {account.cohort!r}, "
            f"as promised when it was charged, got {_bounds(now)}: promises cover all releases. "
            "Restore secrets.kinds in the dataset file, or name a cohort of other records."
        )


def _bounds(secret: SecretTerms) -> str:
    return " and ".join(
        f"posterior {declared(posterior)} (prior {declared(prior)})"
        for prior, posterior in secret.bounds
    )


def check_one_account(accounts: Mapping[str, CohortAccount], request: ReleaseRequest) -> None:
    """A dataset with charges of its own does not go over to another account.

    The first part of an asset's key names its dataset. What costs nothing is not refused. Cohorts
    of one dataset have an account each (`check_partition`).

    **Privacy** Records that were paid for from two accounts have lost the sum of both, which
    neither account states.
    """
    if request.event is not None and is_post_processing(request.event):
        return
    name = request.asset.split("/", 1)[0]
    for account in accounts.values():
        if account.cohort == request.cohort or account.dataset == request.dataset:
            continue
        if account.is_charged and name in (account.cohort, account.dataset):
            raise PrivacyError(
                f"Expected account {account.cohort!r} for {request.asset}, which has charges of "
                f"its own for {name!r}, got account {request.cohort!r}: neither account would "
                "state the whole privacy loss. Nothing was charged. Remove `shares_records_with` "
                f"from the dataset file of {name!r} if its records are different; release nothing "
                "more from records that both accounts have paid for."
            )


def check_partition(
    partitions: Mapping[str, str | None], request: ReleaseRequest, terms: BudgetTerms
) -> None:
    """One dataset is partitioned by one rule: cohorts of two rules would share records.

    **Privacy** The largest cohort stands for the dataset only while every record is in one cohort
    (docs/privacy.md): a month and a week overlap, and so do a cohort and the whole dataset.
    """
    before = partitions.get(request.dataset, terms.partition)
    if before != terms.partition:
        raise PrivacyError(
            f"Expected dataset {request.dataset!r} partitioned by {before or 'no rule'}, as in its "
            f"ledger entries, got {terms.partition or 'no rule'}: a record could be in two "
            "cohorts. Restore `cohorts` in the dataset file, or name another dataset of other "
            "records."
        )


def pinned_plan(
    account: CohortAccount, request: ReleaseRequest, terms: BudgetTerms, plan: Plan
) -> str:
    """The plan that binds this cohort, after checking that the request keeps to it."""
    if plan is None:
        raise _plan_changed(account, terms, f"a plan (accountant: {TIGHT}), got none")
    if account.adaptive:
        raise PlanChangedError(
            f"Expected accountant zcdp for cohort {request.cohort!r}, got {terms.accountant}: it "
            "was charged without a plan already. Set `accountant: zcdp` in the dataset file."
        )
    plan_json = plan_to_json(plan)
    if request.event is not None and is_post_processing(request.event):
        return account.plan_json or plan_json  # Free rows may follow from any paid release.
    if not account.keeps_to(plan_json):
        raise _plan_changed(
            account,
            terms,
            "the plan of the first charge, got another one, and a fixed plan may not depend on its "
            "own releases",
        )
    if request.event is None:
        return plan_json  # An ex-post release has no event that a plan could hold.
    if (request.asset, request.event_json) not in plan_copies(plan_json):
        raise _plan_changed(
            account,
            terms,
            f"a planned release, got {request.asset} with an event that is not in the plan",
        )
    return plan_json


def _plan_changed(account: CohortAccount, terms: BudgetTerms, expected: str) -> PlanChangedError:
    """Says what a steward whose plan changed can do, and what it would cost to leave the plan.

    Promises to secrets need a fixed plan, so a cohort with any cannot leave it.
    """
    counted = account.spent.filter_epsilon(terms.delta, terms.epsilon)
    price = f"counts ε={rounded_up(counted, '.2f')} of {rounded_down(terms.epsilon, '.2f')}"
    leave = f", or set `accountant: zcdp`, which {price} for what was charged and doubles δ."
    if terms.secret is not None or account.secret is not None:
        leave = "."
    elif counted > terms.epsilon:
        leave = f": `accountant: zcdp` {price} for what was charged, and admits nothing more."
    return PlanChangedError(
        f"Expected {expected}, for cohort {account.cohort!r}. Restore methods, settings, declared "
        f"records and budget as they were{leave}"
    )
