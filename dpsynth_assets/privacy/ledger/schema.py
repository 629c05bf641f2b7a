"""Budget terms, requests to the ledger, and what it keeps of them: reservations and entries."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from dpsynth_assets.privacy.errors import PrivacyError, check_delta, check_positive
from dpsynth_assets.privacy.events import Event, event_from_json, event_to_json
from dpsynth_assets.privacy.guarantees import (
    RESTS_ON,
    GuaranteeType,
    NeighboringRelation,
    PrivacyUnit,
)

ZCDP = "zcdp"
TIGHT = "tight"
ACCOUNTANTS = (ZCDP, TIGHT)

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object) -> str:
    """Writes one value in exactly one way: sorted keys, no spaces, ASCII, shortest floats.

    Raises:
        ValueError: The value is not JSON, or holds a NaN or an infinity.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected finite JSON values in a ledger entry: {error}.") from None


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SecretTerms:
    """The bound that a dataset file promises to every listed secret, beside its records' budget.

    Attributes:
        prior: p in (0, 1): largest probability with which an attacker guesses a secret from what
            was known before.
        posterior: r in [p, 1): largest probability afterwards, over all releases of the cohort.
        occurrences: m >= 1: largest number of records that hold one secret. A DP release protects
            a secret only through group privacy for m records (docs/privacy.md).
        others: Further (p, r), promised to other kinds of secrets of the same records.
    """

    prior: float
    posterior: float
    occurrences: int = 1
    others: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Casts numbers, as canonical JSON needs, and refuses bounds that bound nothing."""
        object.__setattr__(self, "prior", float(self.prior))
        object.__setattr__(self, "posterior", float(self.posterior))
        object.__setattr__(self, "others", tuple((float(p), float(r)) for p, r in self.others))
        for prior, posterior in self.bounds:
            if not 0 < prior <= posterior < 1:
                raise ValueError(
                    "Expected 0 < prior <= posterior < 1 for the secrets, got "
                    f"prior={prior} and posterior={posterior}."
                )
        if int(self.occurrences) != self.occurrences or self.occurrences < 1:
            raise ValueError(
                f"Expected a whole number of occurrences >= 1, got {self.occurrences}."
            )
        object.__setattr__(self, "occurrences", int(self.occurrences))

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Every (p, r) that is promised, the first one's first."""
        return ((self.prior, self.posterior), *self.others)

    def keeps(self, earlier: "SecretTerms") -> bool:
        """Says whether every bound promised earlier still holds where these do, of as many records.

        **Privacy** A guess that begins at a larger p ends at a larger probability. So (p, r) keeps
        (p', r') where p >= p' and r <= r'.
        """
        return self.occurrences == earlier.occurrences and all(
            any(p >= prior and r <= posterior for p, r in self.bounds)
            for prior, posterior in earlier.bounds
        )


SIGNED_BY = re.compile(r"ed25519:[0-9a-f]{64}")
"""A public key, as `dpsynth key` prints it, as dataset files list it, and as entries name it."""


@dataclass(frozen=True, kw_only=True)
class ApprovalTerms:
    """What a dataset file asks for before anything is paid.

    Attributes:
        needed: Number of approvals, >= 1, by other keys than the one that signs the charge.
        keys: Public keys that may give them, sorted, each once.
        declaration: SHA-256 of all fields of the dataset file: an edit of any is another plan.
    """

    needed: int
    keys: tuple[str, ...]
    declaration: str = ""

    def __post_init__(self) -> None:
        """Sorts the keys, and refuses what no approvals could meet."""
        object.__setattr__(self, "keys", tuple(sorted(self.keys)))
        if unfit := sorted({key for key in self.keys if not SIGNED_BY.fullmatch(key)}):
            raise ValueError(f"Expected keys that `dpsynth key` prints, got {unfit[0]!r}.")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("Expected each approver's key once, got one twice.")
        if not 1 <= self.needed <= len(self.keys):
            raise ValueError(
                f"Expected 1 <= approvals <= {len(self.keys)}, the number of approvers' keys, "
                f"got {self.needed}."
            )


def asked_for(rule: ApprovalTerms | None) -> str:
    """Approvals that are asked for, in words: the same for any file that asks for the same."""
    if rule is None:
        return "no approval"
    others = "by keys other than the payer's, among"
    return f"{rule.needed} of {len(rule.keys)} approvals {others} {', '.join(rule.keys)}"


@dataclass(frozen=True, kw_only=True)
class BudgetTerms:
    """Budget that a dataset file allows, stored with every entry.

    Attributes:
        epsilon: Total budget ε of the cohort. May be raised or lowered later.
        delta: Public constant δ of the cohort, fixed by its first entry (docs/privacy.md).
        accountant: `zcdp`, a filter that holds for adaptively chosen releases, or `tight`, a plan
            fixed before the first charge (docs/privacy.md).
        relation: Neighbouring relation, fixed by the cohort's first entry.
        unit: Privacy unit, fixed by the cohort's first entry.
        accepts_ex_post: Whether releases without an (ε, δ) guarantee are accepted.
        public_facts: Names of the declared public facts that mechanisms rely on.
        secret: Bound on what all releases tell about one secret; None where none is promised.
        partition: Rule that partitions the dataset into disjoint cohorts, e.g. `month of created`;
            the same for all cohorts of a dataset. None: not partitioned by a rule.
        approvals: Approvals without which nothing is paid for; None where none are asked for.
    """

    epsilon: float
    delta: float
    accountant: str
    relation: NeighboringRelation
    unit: PrivacyUnit
    accepts_ex_post: bool = False
    public_facts: tuple[str, ...] = ()
    secret: SecretTerms | None = None
    partition: str | None = None
    approvals: ApprovalTerms | None = None

    def __post_init__(self) -> None:
        """Casts numbers (an int would change the canonical JSON) and refuses a void budget."""
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "relation", NeighboringRelation(self.relation))
        object.__setattr__(self, "public_facts", tuple(self.public_facts))
        check_positive("epsilon", self.epsilon)
        check_delta(self.delta)
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(f"Expected an accountant in {ACCOUNTANTS}, got {self.accountant!r}.")

    def to_json(self) -> str:
        """Canonical JSON, read back by `from_json`."""
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BudgetTerms":
        """Reads what `to_json` wrote.

        Raises:
            PrivacyError: A term is missing or unknown: to read the others alone might lift a bound.
        """
        fields = _whole(cls, json.loads(text))
        unit = PrivacyUnit(**_whole(PrivacyUnit, fields["unit"]))
        secret = fields["secret"] and SecretTerms(**_whole(SecretTerms, fields["secret"]))
        asked = fields["approvals"]
        asked = asked and ApprovalTerms(**_whole(ApprovalTerms, asked))
        return cls(**{**fields, "unit": unit, "secret": secret, "approvals": asked})


def _whole(kind: type[object], fields: dict[str, Any]) -> dict[str, Any]:
    """The stored fields of a value, after comparing their names with its own."""
    known = set(kind.__annotations__)
    if wrong := sorted(known ^ set(fields)):
        raise PrivacyError(
            f"Expected the terms {', '.join(sorted(known))} in a ledger entry, got others: "
            f"{', '.join(wrong)}. Nothing was charged: restore the ledger from a backup."
        )
    return fields


RESERVE = "reserve"
COMMIT = "commit"
RECOVERY = "recovery"
APPROVAL = "approval"
PURGE = "purge"
ACTS = (RECOVERY, APPROVAL, PURGE)
"""Kinds of entries that charge nothing and complete no charge."""
KINDS = (RESERVE, COMMIT, *ACTS)

KEPT = "kept_rows"
"""What a commit and a label say of a corpus: rules, judge, candidates and acceptance rate."""


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """One release somebody wants to make. Every field is public.

    Attributes:
        cohort: Disjoint set of private records that pays.
        dataset: Dataset the cohort belongs to.
        asset: Key of the asset that would hold the release, e.g. `tickets/ctcl/corpus`.
        mechanism: Name of the mechanism.
        guarantee: What the release promises.
        event: What is charged; None for a purely ex-post release.
        parameters: Public parameters, JSON values.
        code_version: Version of the code that draws the noise.
        data_version: Declared version of the source; never a digest of private content.
        release: Name of the release; a new name pays again on purpose.
        run_id: Who asked; not part of the identity of the release.
    """

    cohort: str
    dataset: str
    asset: str
    mechanism: str
    guarantee: GuaranteeType
    event: Event | None
    parameters: Mapping[str, Any]
    code_version: str
    data_version: str
    release: str = "1"
    run_id: str = ""

    @property
    def event_json(self) -> str | None:
        """The event's constructor arguments as canonical JSON."""
        return None if self.event is None else canonical_json(event_to_json(self.event))

    @property
    def parameters_json(self) -> str:
        """The parameters as canonical JSON."""
        return canonical_json(dict(self.parameters))

    def resting_on(self, facts: Mapping[str, Any]) -> "ReleaseRequest":
        """The same request, which also states these facts that its sensitivity rests on."""
        stated = {**self.parameters.get(RESTS_ON, {}), **facts}
        return replace(self, parameters={**self.parameters, RESTS_ON: stated}) if facts else self

    def key(self, relation: NeighboringRelation, unit: PrivacyUnit) -> str:
        """Identity of the release: requests with equal keys are the same release.

        What it rests on (`RESTS_ON`) is left out: a value that was paid for is not paid again
        because another machine would compute it otherwise.
        """
        identity = {
            "cohort": self.cohort,
            "asset": self.asset,
            "mechanism": self.mechanism,
            "guarantee": self.guarantee,
            "event": self.event_json,
            "parameters": canonical_json(
                {k: v for k, v in self.parameters.items() if k != RESTS_ON}
            ),
            "code_version": self.code_version,
            "data_version": self.data_version,
            "relation": relation,
            "unit": asdict(unit),
            "release": self.release,
        }
        return digest(identity)


def edited_parts(
    earlier: "LedgerEntry", request: ReleaseRequest, unknown: Collection[str] = ()
) -> list[str]:
    """Names what distinguishes a request from an earlier charge of the same name; all is public.

    Args:
        earlier: The charge.
        request: What is asked for now.
        unknown: Parameters that are not compared.
    """
    then, now = earlier.parameters, json.loads(request.parameters_json)
    parts = [
        ("the noise that the budget pays for", earlier.event_json, request.event_json),
        ("the version of the source", earlier.data_version, request.data_version),
        ("the version of the method", earlier.code_version, request.code_version),
        ("the guarantee", earlier.guarantee, str(request.guarantee)),
    ]
    names = [name for name, before, after in parts if before != after]
    keys = sorted((then.keys() | now.keys()) - {RESTS_ON, *unknown})
    return names + [f"`{key}`" for key in keys if then.get(key) != now.get(key)]


@dataclass(frozen=True)
class PlannedRelease:
    """One line of a fixed plan: which asset will be charged which event."""

    asset: str
    event: Event | None


def plan_to_json(plan: Sequence[PlannedRelease]) -> str:
    """Canonical JSON of a plan; the order of its lines does not matter, as composition commutes."""
    events = [None if line.event is None else event_to_json(line.event) for line in plan]
    lines = [[line.asset, event] for line, event in zip(plan, events, strict=True)]
    return canonical_json(sorted(lines, key=canonical_json))


def plan_digest(cohort: str, terms: BudgetTerms, plan: Sequence[PlannedRelease]) -> str:
    """What an approval is of: the cohort, its terms, and all releases of one round."""
    return digest([cohort, terms.to_json(), plan_to_json(plan)])


@dataclass(frozen=True)
class Reservation:
    """A charge that was admitted, or a release that exists already.

    Attributes:
        id: Name of the charge in the ledger.
        request: What was asked for.
        reused: Whether the release exists: nothing was charged, no private data may be read.
        artifact_digest: SHA-256 of the stored release, where it exists.
        artifact_uri: Place of the stored release, where it exists.
    """

    id: str
    request: ReleaseRequest
    reused: bool = False
    artifact_digest: str | None = None
    artifact_uri: str | None = None


NAMED = (
    "cohort", "dataset", "asset", "mechanism", "code_version", "data_version", "release", "run_id",
)  # fmt: skip
"""What a charge repeats of its request, word for word."""


class LedgerEntry(NamedTuple):
    """One row. A `reserve` charges permanently; a `commit` says where its release is stored.

    A `recovery` says that a person restored a lost ledger, or accepted one without lost entries;
    an `approval`, that a person agreed to a plan; a `purge`, that private files were removed. An
    entry names its actor: a public key, whose signature it holds, or else an account of the
    operating system, which proves nothing.

    A named tuple, since its order is the order of the columns and of the hashed JSON array.
    """

    seq: int
    recorded_at: str
    kind: str
    reservation: str
    key: str
    cohort: str
    dataset: str
    asset: str
    mechanism: str
    guarantee: str
    event_json: str | None = None
    parameters_json: str | None = None
    code_version: str = ""
    data_version: str = ""
    release: str = ""
    run_id: str = ""
    actor: str = ""
    signature: str | None = None
    terms_json: str | None = None
    plan_digest: str | None = None
    plan_json: str | None = None
    artifact_digest: str | None = None
    artifact_uri: str | None = None
    ex_post_epsilon: float | None = None
    previous_hash: str = ""
    hash: str = ""

    @property
    def acted_by(self) -> str:
        """The actor in words."""
        return self.actor if SIGNED_BY.fullmatch(self.actor) else f"{self.actor} (not signed)"

    @property
    def event(self) -> Event | None:
        """The event charged, rebuilt from its constructor arguments; None without an ε."""
        return None if self.event_json is None else event_from_json(json.loads(self.event_json))

    @property
    def parameters(self) -> dict[str, Any]:
        """Public parameters of the release; of a commit, digests of the rows or files it made."""
        parameters: dict[str, Any] = json.loads(self.parameters_json or "{}")
        return parameters

    @property
    def inputs(self) -> dict[str, Any]:
        """What a release was made from: public artifacts and reservations, by name."""
        return dict(self.parameters.get("inputs") or {})

    @property
    def terms(self) -> BudgetTerms | None:
        """Terms in force at the charge; None for a commit."""
        return None if self.terms_json is None else BudgetTerms.from_json(self.terms_json)

    def request(self) -> ReleaseRequest:
        """Rebuilds the request from which a reserve was written."""
        return ReleaseRequest(
            guarantee=GuaranteeType(self.guarantee),
            event=self.event,
            parameters=self.parameters,
            **{name: getattr(self, name) for name in NAMED},
        )


def short_actor(acted_by: str) -> str:
    """An actor in words, as a column of a table has room for it: a key's first digits."""
    return f"{acted_by[:20]}…" if SIGNED_BY.fullmatch(acted_by) else acted_by


def entry_problem(entry: LedgerEntry) -> str | None:
    """Says why it is unknown what an entry spent; None where it says it."""
    if entry.kind == RESERVE:
        charged = entry.event_json is not None or entry.guarantee == GuaranteeType.EX_POST
        if entry.terms_json is None or not charged:
            return "has no terms or no event, so what it spent is unknown"
        try:
            _ = entry.event
        except (ValueError, TypeError, KeyError):
            return "holds an event that this version cannot read, so what it spent is unknown"
    elif entry.kind == APPROVAL:
        parts = entry.terms_json or "", entry.plan_json or ""
        signed = SIGNED_BY.fullmatch(entry.actor) and entry.event_json is None
        if not signed or entry.plan_digest != digest([entry.cohort, *parts]):
            return "is an approval without a signature, or of another plan than it holds"
    elif entry.kind in (RECOVERY, PURGE):
        if entry.event_json is not None or entry.terms_json is not None:
            return f"is of kind {entry.kind} but contains a charge"
    elif entry.kind != COMMIT:
        return f"expected one of the kinds {', '.join(KINDS)}, got {entry.kind!r}"
    return None
