"""Conditions on a request before it is priced: a guarantee, the same terms, the same plan."""

from collections.abc import Mapping, Sequence

from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.errors import PlanChangedError, PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.plans import is_secret, plan_copies
from dpsynth_assets.privacy.ledger.schema import PlannedRelease, ReleaseRequest, plan_to_json
from dpsynth_assets.privacy.ledger.terms import TIGHT, BudgetTerms, SecretTerms

Plan = Sequence[PlannedRelease] | None


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
        raise PrivacyError(
            f"Expected a guarantee for {where}, got none. Keep the value internal: do not release."
        )
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
                f"only, got {request.guarantee}. Such an event says nothing of a record."
            )
        return
    if request.event is not None and not is_secret(request.event, entirely=True):
        raise PrivacyError(
            f"Expected mixture-of-Gaussians events for {where}, a secret release, got another "
            "event. Charge what also protects records as a DP release."
        )
    if terms.secret is None:
        raise PrivacyError(
            f"Expected terms for the secrets of {where}, got none. Declare prior, posterior and "
            "occurrences in the dataset file."
        )
    if terms.accountant != TIGHT:
        raise PrivacyError(
            f"Expected accountant {TIGHT} for {where}, a secret release, got {terms.accountant}: a "
            "(p, r) bound composes as dominating pairs, which are no filter. Set `accountant: "
            f"{TIGHT}` in the dataset file."
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
            f"as promised when it was charged, got {_bounds(now)}: the promise is of all releases. "
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
                f"its own for {name!r}, got account {request.cohort!r}: neither would state what "
                "the records have lost. Nothing was charged. Remove `shares_records_with` from the "
                f"dataset file of {name!r} if its records are others; release no more of records "
                "that both accounts have paid for."
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
    if not keeps_to_plan(account, plan_json):
        raise PlanChangedError(
            f"Expected the plan that cohort {request.cohort!r} was first charged for, got another "
            f"one: a fixed plan cannot follow its own releases. {remedy}"
        )
    if account is not None and account.adaptive:
        raise PlanChangedError(
            f"Expected accountant zcdp for cohort {request.cohort!r}, got {terms.accountant}: it "
            "was charged without a plan already. Set `accountant: zcdp` in the dataset file."
        )
    if request.event is None or is_post_processing(request.event):
        return plan_json  # Free of ε: any number of rows may follow from a planned release.
    if (request.asset, request.event_json) not in plan_copies(plan_json):
        raise PlanChangedError(
            f"Expected a planned release of cohort {request.cohort!r}, got {request.asset} with an "
            f"event that the plan does not hold. {remedy}"
        )
    return plan_json


def keeps_to_plan(account: CohortAccount | None, plan_json: str) -> bool:
    """Says whether an account was charged for no plan yet, or for this one.

    Args:
        account: The account; None before its first charge.
        plan_json: Plan that releases are asked for under.
    """
    return account is None or account.plan_json in (plan_json, None)
