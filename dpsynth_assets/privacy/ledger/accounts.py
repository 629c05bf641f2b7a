"""Accounts: what each cohort was charged, recomputed from stored events, and the next entry."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache

from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.actors import Actor, Approvals, post_approvals
from dpsynth_assets.privacy.ledger.chain import GENESIS, link_problem, sealed, signature_problem
from dpsynth_assets.privacy.ledger.charges import (
    RHO_GRID_BITS,
    Charges,
    FilterSum,
    is_free,
    plan_epsilon,
    plan_posterior,
    plan_rounds,
)
from dpsynth_assets.privacy.ledger.schema import (
    APPROVAL,
    COMMIT,
    NAMED,
    RESERVE,
    TIGHT,
    ZCDP,
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    SecretTerms,
    canonical_json,
    entry_problem,
    plan_digest,
    plan_to_json,
)


# Most entries repeat earlier terms, so parsing is paid once for each text.
@lru_cache(maxsize=4096)
def _terms_of(terms_json: str) -> BudgetTerms:
    return BudgetTerms.from_json(terms_json)


@dataclass
class CohortAccount:
    """One cohort's charges so far.

    Attributes:
        cohort: Name of the cohort.
        dataset: Dataset of its first entry.
        opened: Terms of the first entry; δ, relation and unit hold permanently.
        latest: Terms of the last entry.
        spent: Everything with an (ε, δ) cost, as the adaptive filter adds it.
        charges: Number of charges of each (asset, canonical event) with an (ε, δ) cost.
        largest_budget: Largest ε that the terms of any of these charges allowed.
        secret_charges: The same for releases under secret protection; never part of any ε.
        secret: Promise to secrets under which something was charged, regardless of its method: the
            last, which no admitted one weakens. Later charges reveal more about the same secrets.
        adaptive: Whether any charge was admitted by the adaptive filter.
        plan_json: Plan pinned by the first fixed-plan entry.
        public_facts: Every public fact that some entry relied on.
        ex_post: Realised bounds of committed ex-post releases, by reservation; None if not stated.
    """

    cohort: str
    dataset: str
    opened: BudgetTerms
    latest: BudgetTerms
    spent: FilterSum = field(default_factory=FilterSum)
    charges: Charges = field(default_factory=Counter)
    largest_budget: float = 0.0
    secret_charges: Charges = field(default_factory=Counter)
    secret: SecretTerms | None = None
    adaptive: bool = False
    plan_json: str | None = None
    public_facts: set[str] = field(default_factory=set)
    reserved: int = 0
    committed: int = 0
    has_ex_post: bool = False
    ex_post: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def empty(cls, cohort: str, dataset: str, terms: BudgetTerms) -> "CohortAccount":
        """The account of a cohort before its first charge."""
        return cls(cohort, dataset, opened=terms, latest=terms)

    def keeps_to(self, plan_json: str) -> bool:
        """Says whether the account was charged for no plan yet, or for this one."""
        return self.plan_json in (plan_json, None)

    @property
    def rho(self) -> Fraction:
        """Sum of ρ of every charged zCDP event, rounded up to the grid; sampled ones are apart."""
        return Fraction(self.spent.units, 1 << RHO_GRID_BITS)

    def post_reserve(self, entry: LedgerEntry, terms: BudgetTerms) -> None:
        """Charges a reserve. What carries an event is charged, to ε or to the secrets."""
        self.latest = terms
        self.reserved += 1
        self.public_facts.update(terms.public_facts)
        self.has_ex_post |= entry.guarantee == GuaranteeType.EX_POST
        if self.plan_json is None:
            self.plan_json = entry.plan_json
        event_json = entry.event_json
        if event_json is None or is_free(event_json):
            return
        self.adaptive |= terms.accountant == ZCDP
        self.secret = terms.secret or self.secret
        if entry.guarantee == GuaranteeType.SECRET:
            self.secret_charges[entry.asset, event_json] += 1
        else:
            self.charges[entry.asset, event_json] += 1
            self.spent.add(event_json)
            self.largest_budget = max(self.largest_budget, terms.epsilon)

    def post_commit(self, entry: LedgerEntry) -> None:
        """Notes that a release was stored; nothing is refunded."""
        self.committed += 1
        if entry.guarantee == GuaranteeType.EX_POST:
            self.ex_post[entry.reservation] = entry.ex_post_epsilon

    @property
    def is_charged(self) -> bool:
        """Says whether a release that reads records was charged, also an ex-post one without ε."""
        return bool(self.charges or self.secret_charges or self.has_ex_post)

    @property
    def has_secret(self) -> bool:
        """Says whether any release under secret protection was charged."""
        return bool(self.secret_charges)

    @property
    def follows_plan(self) -> bool:
        """Says whether every charge belongs to a plan that was pinned before the first one."""
        return self.plan_json is not None and not self.adaptive

    def epsilon(self, accountant: str) -> float:
        """ε of everything charged with an (ε, δ) cost, at the cohort's δ, rounded up."""
        if accountant == TIGHT and self.plan_json is not None and self.follows_plan:
            rounds = plan_rounds(self.charges, self.plan_json)
            return plan_epsilon(self.plan_json, rounds, self.opened.delta)
        return self.spent.epsilon(self.opened.delta)

    def secret_posterior(self, secret: SecretTerms) -> float:
        """Largest probability of guessing a secret after everything charged, rounded up.

        1 where nothing bounds it: an ex-post release has no dominating pair, and charges outside a
        fixed plan may follow from earlier outputs, for which the composition of pairs is no filter.
        """
        if self.has_ex_post:
            return 1.0
        if not self.charges and not self.secret_charges:
            return secret.prior
        if self.plan_json is None or not self.follows_plan:
            return 1.0
        rounds = plan_rounds(self.charges + self.secret_charges, self.plan_json)
        return plan_posterior(self.plan_json, rounds, secret)


@dataclass
class Book:
    """All accounts, as of one entry of the chain."""

    seq: int = 0
    head: str = GENESIS
    accounts: dict[str, CohortAccount] = field(default_factory=dict)
    partitions: dict[str, str | None] = field(default_factory=dict)
    approvals: dict[str, Approvals] = field(default_factory=dict)

    def post(self, entry: LedgerEntry) -> None:
        """Takes in the next entry.

        Raises:
            LedgerIntegrityError: The entry does not continue the chain, so no sum can be trusted,
                or is an approval that its actor did not sign.
        """
        require_none(link_problem(entry, self.seq, self.head), entry)
        if entry.kind == APPROVAL:  # Of all others `verify` asks: what they say is no permission.
            require_none(signature_problem(entry), entry)
        self.take_in(entry)

    def take_in(self, entry: LedgerEntry) -> None:
        """Takes in an entry whose place in the ledger is shown otherwise (`proof`).

        Raises:
            LedgerIntegrityError: The entry does not say what it spent.
        """
        require_none(entry_problem(entry), entry)
        if entry.kind == RESERVE:
            self._post_reserve(entry)
        elif entry.kind == COMMIT:
            self.accounts[entry.cohort].post_commit(entry)
        elif entry.kind == APPROVAL:
            post_approvals(self.approvals, entry, _terms_of(entry.terms_json or ""))
        self.seq, self.head = entry.seq, entry.hash

    def _post_reserve(self, entry: LedgerEntry) -> None:
        terms = _terms_of(entry.terms_json or "")
        account = self.accounts.get(entry.cohort)
        if account is None:
            account = CohortAccount.empty(entry.cohort, entry.dataset, terms)
            self.accounts[entry.cohort] = account
        account.post_reserve(entry, terms)
        post_approvals(self.approvals, entry, terms)
        self.partitions.setdefault(entry.dataset, terms.partition)


def require_none(problem: str | None, entry: LedgerEntry) -> None:
    """Refuses a ledger with an entry that has a problem."""
    if problem is not None:
        raise LedgerIntegrityError(
            f"Ledger entry {entry.seq} {problem}. Nothing can be charged to this ledger: run "
            "`dpsynth ledger verify` and restore it from a backup."
        )


_NOTHING = LedgerEntry(0, "", "", "", "", "", "", "", "", str(GuaranteeType.NONE))
"""An entry that says nothing yet."""


def utc_now() -> datetime:
    """The clock of this machine, in UTC."""
    return datetime.now(UTC)


def reserve_entry(
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease] | None,
    account: CohortAccount | None,
) -> LedgerEntry:
    """Writes a charge with everything its accounting can be recomputed from."""
    fixed = plan_to_json(plan or ()) if terms.accountant == TIGHT else None
    pinned = account is not None and account.plan_json is not None
    return _NOTHING._replace(
        kind=RESERVE,
        reservation=secrets.token_hex(16),
        key=request.key(terms.relation, terms.unit),
        guarantee=str(request.guarantee),
        event_json=request.event_json,
        parameters_json=request.parameters_json,
        terms_json=terms.to_json(),
        plan_digest=None if plan is None else plan_digest(request.cohort, terms, plan),
        plan_json=None if pinned else fixed,
        **{name: getattr(request, name) for name in NAMED},
    )


def commit_entry(
    reserve: LedgerEntry,
    artifact_digest: str,
    artifact_uri: str,
    ex_post_epsilon: float | None,
    content: Mapping[str, object],
) -> LedgerEntry:
    """Completes a charge; what the reserve says is not said twice."""
    return reserve._replace(
        kind=COMMIT,
        event_json=None,
        parameters_json=canonical_json(dict(content)) if content else None,
        terms_json=None,
        plan_digest=None,
        plan_json=None,
        artifact_digest=artifact_digest,
        artifact_uri=artifact_uri,
        ex_post_epsilon=None if ex_post_epsilon is None else float(ex_post_epsilon),
    )


def act_entry(kind: str, told: Mapping[str, object], cohort: str = "") -> LedgerEntry:
    """Records that somebody did something that is no charge, e.g. removed private files."""
    name = secrets.token_hex(16)
    return _NOTHING._replace(
        kind=kind, reservation=name, key=name, cohort=cohort, parameters_json=canonical_json(told)
    )


def approval_entry(
    cohort: str, dataset: str, terms: BudgetTerms, plan: Sequence[PlannedRelease]
) -> LedgerEntry:
    """Writes an approval with all that was approved."""
    return act_entry(APPROVAL, {}, cohort)._replace(
        dataset=dataset,
        terms_json=terms.to_json(),
        plan_json=plan_to_json(plan),
        plan_digest=plan_digest(cohort, terms, plan),
    )


def next_entry(book: Book, entry: LedgerEntry, actor: Actor, now: datetime) -> LedgerEntry:
    """Puts the entry at the end of the chain, at this moment, by this actor."""
    at = now.astimezone(UTC).isoformat()
    placed = entry._replace(seq=book.seq + 1, previous_hash=book.head, recorded_at=at)
    return sealed(placed, actor)
