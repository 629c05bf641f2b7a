"""Replays entries into accounts: what each cohort was charged, recomputed from stored events."""

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from dpsynth_assets.privacy.errors import LedgerIntegrityError, PrivacyError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.chain import GENESIS, link_problem
from dpsynth_assets.privacy.ledger.charges import RHO_GRID_BITS, FilterSum, is_free
from dpsynth_assets.privacy.ledger.older_prices import restated_plan
from dpsynth_assets.privacy.ledger.plans import Charges, plan_epsilon, plan_posterior, plan_rounds
from dpsynth_assets.privacy.ledger.reservations import Committed, KeptReservations, Layered
from dpsynth_assets.privacy.ledger.schema import (
    COMMIT,
    RECOVERY,
    RESERVE,
    LedgerEntry,
    kind_problem,
)
from dpsynth_assets.privacy.ledger.terms import TIGHT, ZCDP, BudgetTerms, SecretTerms


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
        opened: Terms of the first entry; δ, relation and unit hold for good.
        latest: Terms of the last entry.
        spent: Everything with an (ε, δ) cost, as the adaptive filter adds it.
        charges: Number of charges of each (asset, canonical event) with an (ε, δ) cost.
        largest_budget: Largest ε that the terms of any of these charges allowed.
        secret_charges: The same for releases under secret protection; never part of any ε.
        secret: Promise to secrets under which something was charged, whatever its method; the
            strongest so far. It holds for good.
        adaptive: Whether any charge was admitted by the adaptive filter.
        plan_json: Plan pinned by the first fixed-plan entry, at its true price.
        older_plan_json: The same as it was stored, where its price was another (`restated`).
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
    older_plan_json: str | None = None
    public_facts: set[str] = field(default_factory=set)
    reserved: int = 0
    committed: int = 0
    has_ex_post: bool = False
    ex_post: dict[str, float | None] = field(default_factory=dict)

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
        self._pin(entry)
        event_json = entry.priced_json
        if event_json is None or is_free(event_json):
            return
        self.adaptive |= terms.accountant == ZCDP
        self._promise(terms.secret)
        if entry.guarantee == GuaranteeType.SECRET:
            self.secret_charges[entry.asset, event_json] += 1
        else:
            self.charges[entry.asset, event_json] += 1
            self.spent.add(event_json)
            self.largest_budget = max(self.largest_budget, terms.epsilon)

    def _promise(self, secret: SecretTerms | None) -> None:
        """Keeps the promise to secrets; entries of older versions may have dropped or weakened it.

        **Privacy** What was charged under a promise tells of the same secrets as what follows.
        """
        if secret is not None and (self.secret is None or secret.keeps(self.secret)):
            self.secret = secret

    def _pin(self, entry: LedgerEntry) -> None:
        """Keeps the plan of the first entry that has one."""
        if self.plan_json is None and entry.plan_json is not None:
            self.plan_json = restated_plan(entry.plan_json, entry.terms_json or "")
            if self.plan_json != entry.plan_json:
                self.older_plan_json = entry.plan_json

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

    @property
    def epsilon_before_restating(self) -> float | None:
        """ε that an older version stated of a plan's charges; None where it was right."""
        if self.older_plan_json is None or self.plan_json is None or not self.follows_plan:
            return None
        rounds = plan_rounds(self.charges, self.plan_json)
        return plan_epsilon(self.older_plan_json, rounds, self.opened.delta) if rounds else None

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
    """All accounts, as of one entry of the chain.

    `older` says of a charge that an older version priced what identifies it whatever its noise, and
    its true event.
    With `kept`, reservations that a checkpoint holds are looked up there, and later ones are here.
    """

    seq: int = 0
    head: str = GENESIS
    accounts: dict[str, CohortAccount] = field(default_factory=dict)
    partitions: dict[str, str | None] = field(default_factory=dict)
    reserved: MutableMapping[str, str] = field(default_factory=dict)
    committed: MutableMapping[str, Committed] = field(default_factory=dict)
    older: dict[str, tuple[str, str]] = field(default_factory=dict)
    kept: KeptReservations | None = field(default=None, compare=False)
    _by_key: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    _older_released: dict[str, str] = field(default_factory=dict)
    _released: dict[str, str] = field(default_factory=dict, compare=False)

    def post(self, entry: LedgerEntry) -> None:
        """Takes in the next entry.

        Raises:
            LedgerIntegrityError: The entry does not continue the chain, so no sum can be trusted.
        """
        problem = link_problem(entry, self.seq, self.head)
        if problem is not None:
            raise LedgerIntegrityError(
                f"Ledger entry {entry.seq} {problem}. Nothing can be charged to this ledger: run "
                "`dpsynth ledger verify` and restore it from a backup."
            )
        self.take_in(entry)

    def take_in(self, entry: LedgerEntry) -> None:
        """Takes in an entry whose place in the ledger is shown otherwise (`proof`).

        Raises:
            PrivacyError: The entry is of a kind that this version does not know.
        """
        if entry.kind == RESERVE:
            self._post_reserve(entry)
        elif entry.kind == COMMIT:
            self.committed[entry.reservation] = (entry.artifact_digest, entry.artifact_uri)
            self._note_released(entry.key, entry.reservation)
            self.accounts[entry.cohort].post_commit(entry)
        elif entry.kind != RECOVERY:
            raise PrivacyError(f"Ledger entry {entry.seq}: {kind_problem(entry.kind)}")
        self.seq, self.head = entry.seq, entry.hash

    def _post_reserve(self, entry: LedgerEntry) -> None:
        terms = _terms_of(entry.terms_json or "")
        account = self.accounts.get(entry.cohort)
        if account is None:
            account = CohortAccount(entry.cohort, entry.dataset, opened=terms, latest=terms)
            self.accounts[entry.cohort] = account
        account.post_reserve(entry, terms)
        self.partitions.setdefault(entry.dataset, terms.partition)
        self.reserved[entry.reservation] = entry.key
        self._by_key[entry.key] = (*self._by_key.get(entry.key, ()), entry.reservation)
        restated = entry.priced_json != entry.event_json or account.older_plan_json is not None
        if restated and entry.priced_json is not None and not is_free(entry.priced_json):
            same = entry.request().key_but_for_prices(terms.relation, terms.unit)
            self.older[entry.reservation] = (same, entry.priced_json)

    def _note_released(self, key: str, reservation: str) -> None:
        """Remembers the first committed reservation of each key."""
        self._released.setdefault(key, reservation)
        if reservation in self.older:
            self._older_released.setdefault(self.older[reservation][0], reservation)

    def begin_with(self, kept: KeptReservations, older_released: dict[str, str]) -> None:
        """Looks up what a checkpoint holds in its file, from now on."""
        self.kept, self._older_released = kept, older_released
        self.reserved = Layered(kept.key_of, kept.all_reserved, kept.reserved)
        self.committed = Layered(kept.commit_of, kept.all_committed, kept.committed)

    @property
    def older_released(self) -> dict[str, str]:
        """First committed reservation of each release of an older version, whatever its noise."""
        return self._older_released

    def released(self, key: str) -> str | None:
        """The first committed reservation of this key.

        Processes that race for one release may all pay and store; the value that was committed
        first is the release for good, whichever of them commits later.
        """
        first = None if self.kept is None else self.kept.released(key)
        return first or self._released.get(key)

    def released_before(self, key_but_for_prices: str) -> tuple[str, str] | None:
        """The stored release of an older version that a request asks for with other noise.

        Its plan was fitted to the budget at another price; what was paid for then is not paid again
        because a plan would find other noise today.

        Returns:
            Its reservation, and what it cost as canonical JSON; None where there is none.
        """
        reservation = self._older_released.get(key_but_for_prices)
        return None if reservation is None else (reservation, self.older[reservation][1])

    def open_reservations(self, key: str) -> list[str]:
        """Reservations of this key that were never committed, oldest first."""
        kept = [] if self.kept is None else self.kept.of_key(key)
        names = [*kept, *self._by_key.get(key, ())]
        return [name for name in names if name not in self.committed]
