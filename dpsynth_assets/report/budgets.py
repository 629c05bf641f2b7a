"""The budgets of all cohorts of an installation: what is spent, what is left, and for how long.

For internal readers. Realised ex-post bounds stay in the ledger; its head, a hash, seals them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec
from dpsynth_assets.datasets.dataset_sections import ScheduleSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan, declared_spend
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.privacy.calibration import largest_count
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import event_to_json, is_post_processing
from dpsynth_assets.privacy.ledger import GENESIS, Ledger
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.admission import check_unchanged
from dpsynth_assets.privacy.ledger.charges import is_secret, plan_rounds
from dpsynth_assets.privacy.ledger.schema import (
    RESERVE,
    TIGHT,
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    canonical_json,
    plan_to_json,
)
from dpsynth_assets.report.pages import budget_in_words

NOTHING_CHARGED = "nothing charged"


@dataclass(frozen=True, kw_only=True)
class CohortBudget:
    """The account of one cohort.

    Attributes:
        cohort: Name of the account in the ledger.
        unit: Privacy unit in words.
        guarantee: What holds of everything charged: `dp`, or `none (…)`; or that nothing was.
        total: ε of the budget as the dataset file declares it, or else as the ledger last read it;
            None where neither is known.
        spent: ε of all charges, rounded up: the reading of an odometer, a diagnostic.
        guaranteed: ε that is guaranteed of the same charges, rounded up.
        left: What is left of the budget, rounded down.
        delta: δ of the cohort.
        rounds: Rounds that the dataset file declares; None where no file declares the cohort.
        rounds_left: Rounds that the ledger would still admit, of what the schedule pays or else of
            the whole plan; None where it is not known, where a round costs no ε, or where several
            schedules pay from the account.
        schedule: Cron expression, or several, on which rounds are run, of this cohort and of those
            that share its account; empty for none, and for a cohort of a partitioned dataset.
        timezone: Its time zone.
        ends: Month in which the last of these rounds is due, e.g. "2027-03"; empty for none.
        last_run: Run that last asked for a release of the cohort; empty for none.
        last_charge: When it was last charged, UTC; empty for never.
        findings: Disagreements that its last audit found; None where it was never audited.
        published: Whether a corpus of it is published on this machine.
    """

    cohort: str
    unit: str
    guarantee: str
    total: float | None
    spent: float
    guaranteed: float
    left: float | None
    delta: float
    rounds: int | None = None
    rounds_left: int | None = None
    schedule: str | list[str] = ""
    timezone: str = "UTC"
    ends: str = ""
    last_run: str = ""
    last_charge: str = ""
    findings: int | None = None
    published: bool = True

    @property
    def paid_for_nothing(self) -> bool:
        """Says whether something was charged and no corpus is published."""
        return self.spent > 0 and not self.published

    @property
    def overspent(self) -> bool:
        """Says whether more was spent than the budget holds."""
        return self.total is not None and not self.spent <= self.total

    @property
    def share(self) -> float:
        """The part of the budget that is spent; 1 or more where nothing is left."""
        return self.spent / self.total if self.total else 0.0

    @property
    def in_words(self) -> str:
        """Spent, total and left, rounded so that none is told too favourably."""
        return budget_in_words(self.spent, self.total, self.left)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """All accounts of an installation.

    Attributes:
        cohorts: Accounts, in order of their names.
        ledger_entries: Number of ledger entries.
        ledger_head: Hash of the last one.
        chain_problems: Faults of the hash chain; empty where it verifies.
    """

    cohorts: tuple[CohortBudget, ...]
    ledger_entries: int
    ledger_head: str
    chain_problems: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Lists overspent accounts, disagreements of audits and faults of the chain."""
        lines = [f"ledger chain: {problem}" for problem in self.chain_problems]
        for each in self.cohorts:
            if each.overspent:
                lines.append(f"{each.cohort}: expected at most the total, got {each.in_words}.")
            if each.findings:
                lines.append(
                    f"{each.cohort}: the audit found {each.findings} disagreements: see "
                    f"{each.cohort}/audit/audit_trail."
                )
        return lines

    def to_json(self) -> dict[str, Any]:
        """JSON values of everything, the problems included."""
        return {**asdict(self), "problems": self.problems()}


def read_budgets(ledger: Ledger | None, specs: Sequence[PrivateDatasetSpec]) -> Budgets:
    """Reads every account of the ledger, and every declared cohort that was never charged.

    Args:
        ledger: Where charges are; None before the first one.
        specs: Declared cohorts; one that shares another's account is told with that account.

    Raises:
        LedgerIntegrityError: The chain is broken, so no sum can be trusted.
    """
    book, charges = Book(), dict[str, LedgerEntry]()
    for entry in () if ledger is None else ledger.stream():
        book.post(entry)
        if entry.kind == RESERVE:
            charges[entry.cohort] = entry
    report = None if ledger is None else ledger.verify()
    owners = {spec.name: spec for spec in specs if spec.name == spec.account}
    paying = {name: [spec] for name, spec in owners.items() if spec.schedule is None}
    for spec in specs:
        if spec.schedule is not None:
            others = [each for each in paying.get(spec.account, []) if each.schedule is not None]
            paying[spec.account] = [*others, spec]
    names = sorted({*book.accounts, *owners})
    return Budgets(
        cohorts=tuple(
            _budget(
                name,
                book.accounts.get(name),
                owners.get(name),
                paying.get(name, []),
                charges.get(name),
            )
            for name in names
        ),
        ledger_entries=0 if report is None else report.entries,
        ledger_head=GENESIS if report is None else report.head,
        chain_problems=() if report is None else tuple(str(each) for each in report.problems),
    )


def _budget(
    name: str,
    account: CohortAccount | None,
    spec: PrivateDatasetSpec | None,
    paying: Sequence[PrivateDatasetSpec],
    last: LedgerEntry | None,
) -> CohortBudget:
    """Tells one account; `paying` are the cohorts whose rounds it pays for."""
    spend = declared_spend(name, account, spec)
    one = paying[0] if len(paying) == 1 else None  # Of several, rounds have no common number.
    # The schedule of a partitioned dataset goes on to the next cohort: it runs no more rounds here.
    ticking = [each for each in paying if not isinstance(each, CohortSpec)]
    schedules = [each.schedule for each in ticking if each.schedule is not None]
    charged = account is not None and account.reserved > 0
    return CohortBudget(
        cohort=name,
        unit=spend.unit,
        guarantee=spend.total_guarantee if charged else NOTHING_CHARGED,
        total=spend.budget_epsilon,
        spent=spend.epsilon,
        guaranteed=spend.guaranteed_epsilon,
        left=spend.remaining_epsilon,
        delta=spend.delta,
        rounds=None if one is None else one.budget.rounds,
        rounds_left=None if one is None else _rounds_left(account, one),
        schedule=_crons(schedules),
        timezone=schedules[0].timezone if schedules else "UTC",
        last_run="" if last is None else last.run_id,
        last_charge="" if last is None else last.recorded_at[:16].replace("T", " "),
    )


def _crons(schedules: Sequence[ScheduleSpec]) -> str | list[str]:
    """The cron expressions of all schedules of an account, as a dataset file writes them."""
    if len(schedules) == 1:
        return schedules[0].cron
    return [cron for one in schedules for cron in one.expressions] or ""


def _rounds_left(account: CohortAccount | None, spec: PrivateDatasetSpec) -> int | None:
    try:
        plan = plan_dataset(spec)
    except (ValueError, OSError, PrivacyError):  # Its asset says why it cannot be planned.
        return None
    return rounds_left(account, plan, spec.budget.rounds, scheduled_methods(spec, plan))


def scheduled_methods(spec: PrivateDatasetSpec, plan: DatasetPlan) -> frozenset[str] | None:
    """Folders of the methods that a tick of the schedule releases; None without a schedule."""
    if spec.schedule is None:
        return None
    return frozenset(spec.schedule.methods or (planned.folder for planned in plan.methods))


def rounds_left(
    account: CohortAccount | None,
    plan: DatasetPlan,
    rounds: int,
    methods: Collection[str] | None = None,
) -> int | None:
    """Counts the rounds that an account still admits, `rounds` at most.

    Args:
        account: The account; None before its first charge.
        plan: Prices of one round.
        rounds: Declared number of rounds.
        methods: Folders of the methods that a round releases; None for the whole plan, with the
            histograms that methods share.

    Returns:
        Their number, 0 where plan or terms are no longer those that the account is bound to; None
        where one round costs no ε.
    """
    chosen = [
        each for each in plan.releases if methods is None or each.asset.split("/")[1] in methods
    ]
    events = [each.event for each in chosen if each.event is not None]
    paid = [event for event in events if not is_post_processing(event)]
    if not paid:
        return None
    account = account or CohortAccount.empty("", "", plan.budget)
    if not _keeps_terms(account, plan.budget):
        return 0
    if plan.budget.accountant == TIGHT:
        return _planned_rounds_left(account, plan, rounds, chosen)
    round_ = [canonical_json(event_to_json(event)) for event in paid if not is_secret(event)]

    def fits(times: int) -> bool:
        total = account.spent.plus(None)
        for event_json in round_:
            total.add(event_json, times)
        return total.filter_epsilon(plan.budget.delta, plan.budget.epsilon) <= plan.budget.epsilon

    return largest_count(fits, rounds)


def _keeps_terms(account: CohortAccount, terms: BudgetTerms) -> bool:
    """Says whether the ledger would still charge an account under these terms."""
    if not account.is_charged:
        return True
    try:
        check_unchanged(account, account.dataset, terms)
    except PrivacyError:
        return False
    return True


def _planned_rounds_left(
    account: CohortAccount, plan: DatasetPlan, rounds: int, chosen: Sequence[PlannedRelease]
) -> int:
    """Counts what is left of a fixed plan, which is charged by whole rounds."""
    if account.adaptive or not account.keeps_to(plan_to_json(plan.releases)):
        return 0
    if account.plan_json is None:
        return rounds
    assets = {each.asset for each in chosen}
    charges = account.charges + account.secret_charges
    own = Counter({line: count for line, count in charges.items() if line[0] in assets})
    return max(0, rounds - plan_rounds(own, account.plan_json))


def fewest_left_first(cohorts: Iterable[CohortBudget]) -> list[CohortBudget]:
    """Cohorts in the order in which they need attention: problems first, then the least left."""
    return sorted(cohorts, key=lambda each: (not (each.overspent or each.findings), -each.share))
