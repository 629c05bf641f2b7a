"""Replays entries into accounts: what each cohort was charged, recomputed from stored events."""

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from dpsynth_assets.privacy import accounting
from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.events import Event, event_from_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.chain import GENESIS, link_problem
from dpsynth_assets.privacy.ledger.schema import (
    COMMIT,
    RESERVE,
    TIGHT,
    ZCDP,
    BudgetTerms,
    LedgerEntry,
    canonical_json,
)

RHO_GRID_BITS = 2200
"""ρ is summed in whole units of 2⁻²²⁰⁰, each charge rounded up.

A plain `Fraction` sum is exact but its denominator grows with every distinct noise multiplier
(a product of squares), so that a long ledger becomes unusable. The smallest ρ of any event with
float parameters exceeds 2⁻²¹⁶⁰, so no charge is lost and none loses more than rounding up.
"""


def rho_units(event: Event) -> int:
    """ρ of `event` in grid units, rounded up: a positive charge is never zero."""
    rho = event.rho
    return -((-rho.numerator << RHO_GRID_BITS) // rho.denominator)


# Most entries repeat an earlier event or earlier terms, so parsing is paid once for each text.
@lru_cache(maxsize=4096)
def _units_of(event_json: str) -> int:
    return rho_units(event_from_json(json.loads(event_json)))


@lru_cache(maxsize=4096)
def _terms_of(terms_json: str) -> BudgetTerms:
    return BudgetTerms.from_json(terms_json)


@lru_cache(maxsize=4096)
def epsilon_alone(event_json: str, delta: float, accountant: str) -> float:
    """ε at `delta` of one release on its own, rounded up."""
    event = event_from_json(json.loads(event_json))
    return accounting.epsilon_of_fixed([event], delta, accountant)


def zcdp_epsilon_of_units(units: int, delta: float) -> float:
    """ε at `delta` of a sum of charges, rounded up; no charge at all costs exactly nothing."""
    if units == 0:
        return 0.0
    rho = float_up(Fraction(units, 1 << RHO_GRID_BITS))
    return math.inf if math.isinf(rho) else accounting.zcdp_epsilon(rho, delta)


def float_up(value: Fraction) -> float:
    """The smallest float that is at least `value`, so that rounding never loses a charge."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


@lru_cache(maxsize=256)
def plan_epsilon(plan_json: str, rounds: int, delta: float) -> float:
    """ε at `delta` of `rounds` full copies of a plan fixed beforehand, rounded up."""
    lines = [event for _, event in json.loads(plan_json) if event is not None]
    if not lines or rounds == 0:
        return 0.0
    return accounting.epsilon_of([event_from_json(line) for line in lines] * rounds, delta, TIGHT)


@lru_cache(maxsize=256)
def plan_copies(plan_json: str) -> Counter[tuple[str, str]]:
    """How often a plan holds each (asset, canonical event)."""
    return Counter((asset, canonical_json(event)) for asset, event in json.loads(plan_json))


def plan_rounds(charges: Counter[tuple[str, str]], plan_json: str) -> int:
    """The smallest number of copies of the plan that holds every charge."""
    copies = plan_copies(plan_json)
    return max((-(-count // copies[line]) for line, count in charges.items()), default=0)


@dataclass
class CohortAccount:
    """One cohort's charges so far.

    Attributes:
        cohort: Name of the cohort.
        dataset: Dataset of its first entry.
        opened: Terms of the first entry; δ, relation and unit hold for good.
        latest: Terms of the last entry.
        units: Sum of ρ in grid units.
        charges: Number of charges of each (asset, canonical event).
        adaptive: Whether any charge was admitted by the adaptive filter.
        plan_json: Plan pinned by the first fixed-plan entry.
        public_facts: Every public fact that some entry relied on.
        ex_post: Realised bounds of committed ex-post releases, by reservation; None if not stated.
    """

    cohort: str
    dataset: str
    opened: BudgetTerms
    latest: BudgetTerms
    units: int = 0
    charges: Counter[tuple[str, str]] = field(default_factory=Counter)
    adaptive: bool = False
    plan_json: str | None = None
    public_facts: set[str] = field(default_factory=set)
    reserved: int = 0
    committed: int = 0
    has_ex_post: bool = False
    ex_post: dict[str, float | None] = field(default_factory=dict)

    @property
    def rho(self) -> Fraction:
        """Sum of ρ of every reserve, rounded up to the grid."""
        return Fraction(self.units, 1 << RHO_GRID_BITS)

    def post_reserve(self, entry: LedgerEntry, terms: BudgetTerms) -> None:
        """Charges a reserve. What carries an event is charged, whatever its guarantee."""
        self.latest = terms
        self.reserved += 1
        self.public_facts.update(terms.public_facts)
        self.has_ex_post |= entry.guarantee == GuaranteeType.EX_POST
        self.plan_json = self.plan_json or entry.plan_json
        if entry.event_json is not None:
            self.units += _units_of(entry.event_json)
            self.charges[entry.asset, entry.event_json] += 1
            self.adaptive |= terms.accountant == ZCDP

    def post_commit(self, entry: LedgerEntry) -> None:
        """Notes that a release was stored; nothing is refunded."""
        self.committed += 1
        if entry.guarantee == GuaranteeType.EX_POST:
            self.ex_post[entry.reservation] = entry.ex_post_epsilon

    @property
    def follows_plan(self) -> bool:
        """Whether every charge belongs to a plan that was pinned before the first one."""
        return self.plan_json is not None and not self.adaptive

    def epsilon(self, accountant: str) -> float:
        """ε of everything charged, at the cohort's δ, rounded up."""
        if accountant == TIGHT and self.plan_json is not None and self.follows_plan:
            rounds = plan_rounds(self.charges, self.plan_json)
            return plan_epsilon(self.plan_json, rounds, self.opened.delta)
        return zcdp_epsilon_of_units(self.units, self.opened.delta)


@dataclass
class Book:
    """All accounts, as of one entry of the chain."""

    seq: int = 0
    head: str = GENESIS
    accounts: dict[str, CohortAccount] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    committed: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    by_key: dict[str, list[str]] = field(default_factory=dict)

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
        if entry.kind == RESERVE:
            self._post_reserve(entry)
        elif entry.kind == COMMIT:
            self.committed[entry.reservation] = (entry.artifact_digest, entry.artifact_uri)
            self.accounts[entry.cohort].post_commit(entry)
        self.seq, self.head = entry.seq, entry.hash

    def _post_reserve(self, entry: LedgerEntry) -> None:
        terms = _terms_of(entry.terms_json or "")
        account = self.accounts.get(entry.cohort)
        if account is None:
            account = CohortAccount(entry.cohort, entry.dataset, opened=terms, latest=terms)
            self.accounts[entry.cohort] = account
        account.post_reserve(entry, terms)
        self.reserved[entry.reservation] = entry.key
        self.by_key.setdefault(entry.key, []).append(entry.reservation)

    def released(self, key: str) -> str | None:
        """The newest committed reservation of this key."""
        ids = self.by_key.get(key, [])
        return next((name for name in reversed(ids) if name in self.committed), None)

    def open_reservations(self, key: str) -> list[str]:
        """Reservations of this key that were never committed, oldest first."""
        return [name for name in self.by_key.get(key, []) if name not in self.committed]
