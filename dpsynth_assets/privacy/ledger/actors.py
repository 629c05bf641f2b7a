"""Actors and approvals: the keys that sign entries, and the check before a charge.

Every entry names its actor. A signature (Ed25519) is over all columns of its entry, the number and
the previous hash included, so that it fits no other entry, and no ledger that begins otherwise.
Without a key the account of the operating system is named, which is a remark and no proof.

A cohort may ask for approvals. What is approved is a plan: its terms, its releases and every field
of its dataset file. A charge needs as many approvals as the file asks for, by listed keys other
than the one that signs the charge. A person who edits the file could ask for fewer: so what a file
asked for stands from its first charge on, or from when a plan had all approvals that it asked for;
a plan under another rule needs the approvals that both ask for, and its charge changes what stands.

A file that asks for none has no digest in its plan: where an earlier rule stands, its approvers
then sign terms and releases alone, and a field that changes neither may still be edited.

What this keeps off, and what not:

- The launcher edits the file. Other settings are another plan, without approvals. A weaker rule
  needs the approvals of the one that stands. Until one stands the file alone binds, also between
  the first approval that it asks for and the last.
- One approver, of several that are asked for, fixes nothing alone: a rule whose approvals are not
  complete binds no plan but its own, so a mistaken list of keys does not lock the dataset.
- Who writes the file and cannot write to the ledger changes nothing that stands; an approver sees
  the whole plan before signing it (`dpsynth approve`).
- Who writes to the ledger, where nothing stands yet, can fix a rule of their own, as they can spend
  the budget. The ledger names them.
- A copy of a ledger holds its approvals, also a copy of its first entries alone. They approve there
  what they approved here, within the same budget, and nothing else; what both charge is added up in
  neither. The witness, and heads that were noted elsewhere, reveal copies. Where approvals in a
  test must not count elsewhere, the dataset has another name there.
- A ledger that lost entries has lost what they fixed. A person who went on without them is named
  there, too.
- A key is told from another key, not a person from another person: who may list keys in the dataset
  file, and who holds which of them, is for the officer to say. So is another name for the same
  records, which is another budget, too.
"""

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import ComposedEvent, event_to_json, is_post_processing
from dpsynth_assets.privacy.ledger.charges import is_free, plan_copies
from dpsynth_assets.privacy.ledger.replacing import owner_folder, replaced
from dpsynth_assets.privacy.ledger.schema import (
    APPROVAL,
    SIGNED_BY,
    ApprovalTerms,
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    canonical_json,
    digest,
    plan_digest,
    plan_to_json,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PURPOSE = "dpsynth ledger entry "
_KEY = "ed25519:"
_OTHERS = 0o077


@dataclass(frozen=True)
class Actor:
    """Who acts in this process.

    Attributes:
        name: Public key; without one, the account of the operating system.
        key: The private key; None where nothing is signed.
    """

    name: str
    key: "Ed25519PrivateKey | None" = field(default=None, repr=False)

    def signature(self, content: str) -> str | None:
        """Signs the digest of an entry; None without a key."""
        return None if self.key is None else self.key.sign(f"{_PURPOSE}{content}".encode()).hex()


def account() -> Actor:
    """The account of the operating system, regardless of the environment."""
    try:
        return Actor(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:  # A container whose user has no name.
        return Actor(f"uid {os.getuid()}")


def fits(actor: str, signature: str | None, content: str) -> bool:
    """Says whether an entry is signed by its actor, or by none where that is an account."""
    if not SIGNED_BY.fullmatch(actor):
        return signature is None
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(actor.removeprefix(_KEY)))
        public.verify(bytes.fromhex(signature or ""), f"{_PURPOSE}{content}".encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def make_key(place: Path) -> bool:
    """Makes a private key, for its owner alone, unless one is there; says whether it made one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if place.exists():
        return False
    owner_folder(place.parent)
    with replaced(place, only_if_absent=True) as new:
        new.write_bytes(
            Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return True


def read_key(place: Path) -> Actor:
    """Reads a private key: Ed25519 as PEM, not encrypted, as `make_key` writes it.

    Raises:
        PrivacyError: There is none, it is no such key, or others may read it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with place.open("rb") as file:
            rights, content = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise PrivacyError(
            f"Expected a signing key in {place}, got none that can be read ({error.strerror}). "
            "Nothing was charged: make one with `dpsynth key`."
        ) from None
    if rights & _OTHERS:
        raise PrivacyError(
            f"Expected a signing key for its owner alone in {place}, got one with the permissions "
            f"{rights & 0o777:o}. Nothing was charged: others may have copied it. Remove it, make "
            "another with `dpsynth key`, and list that one."
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PrivacyError(
            f"Expected a signing key (Ed25519, PEM, not encrypted) in {place}, got another file. "
            "Nothing was charged: move it away and make a key with `dpsynth key`."
        )
    return Actor(f"{_KEY}{key.public_key().public_bytes_raw().hex()}", key)


@dataclass
class Approvals:
    """The approvals of one dataset: of the plans of all its cohorts.

    Attributes:
        standing: What was asked for by the last charge that was paid and approved, or, where none
            was, by the first plan that had all its approvals; None where nothing is.
        given: Keys that approved each plan, in order, by the plan's digest.
        plans: All releases of each, as `plan_to_json` writes them.
    """

    standing: ApprovalTerms | None = None
    given: dict[str, list[str]] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)

    def rules(self, terms: BudgetTerms) -> list[ApprovalTerms]:
        """What a charge has to meet: what stands, and what the dataset file asks for now."""
        return [rule for rule in (self.standing, terms.approvals) if rule is not None]

    def lacking(
        self, terms: BudgetTerms, approved: str, launcher: str
    ) -> tuple[ApprovalTerms, int] | None:
        """The first rule that a plan does not meet, with its approvals; None if it meets all.

        An actor who signs nothing could be any of the approvers, so none of them counts.
        """
        for rule in self.rules(terms):
            count = self.count(approved, rule, launcher) if SIGNED_BY.fullmatch(launcher) else 0
            if count < rule.needed:
                return rule, count
        return None

    def count(self, approved: str, rule: ApprovalTerms, launcher: str = "") -> int:
        """Counts the approvals of a plan that a rule asks for, the launcher's aside."""
        return len({*self.given.get(approved, ())}.intersection(rule.keys) - {launcher})

    def check_approver(self, cohort: str, terms: BudgetTerms, actor: Actor) -> None:
        """Refuses an approval that would not be counted.

        Raises:
            PrivacyError: The cohort asks for none, the actor signs nothing, or has no listed key.
        """
        rules = self.rules(terms)
        if not rules:
            raise PrivacyError(
                f"Expected a cohort whose dataset file asks for approvals, got {cohort!r}, whose "
                "file asks for none. Write approvals and approvers there."
            )
        if actor.key is None:
            raise PrivacyError(
                f"Expected a key that signs the approval of cohort {cohort!r}, got none. Make one "
                "with `dpsynth key`, and have it added to approvers in the dataset file."
            )
        if all(actor.name not in rule.keys for rule in rules):
            raise PrivacyError(
                f"Expected a key among the approvers of cohort {cohort!r}, got {actor.name}. Have "
                "it added in the dataset file; this edit needs the approvals required so far."
            )

    def check(
        self,
        request: ReleaseRequest,
        terms: BudgetTerms,
        plan: Sequence[PlannedRelease] | None,
        launcher: str,
        *,
        as_one: bool = False,
    ) -> None:
        """Refuses a charge of a plan without the approvals that it needs.

        Args:
            request: What would be charged; what costs nothing needs no approval.
            terms: Terms of the plan.
            plan: All releases of the cohort.
            launcher: Actor who would sign the charge; its own approval does not count.
            as_one: Whether several releases of the plan may be asked for as one, as if composed.

        Raises:
            PrivacyError: Approvals are missing, the launcher cannot be told from the approvers, or
                the release is none of the plan.
        """
        free = request.event is not None and is_post_processing(request.event)
        if free or not self.rules(terms):
            return
        where = f"cohort {request.cohort!r}"
        if not SIGNED_BY.fullmatch(launcher):
            raise PrivacyError(
                f"Expected a signed charge of {where}, which asks for approvals by others than its "
                f"launcher, got account {launcher!r}, which signs nothing. Nothing was charged: "
                "make a key with `dpsynth key`."
            )
        approved = plan_digest(request.cohort, terms, plan or ())
        if (lacking := self.lacking(terms, approved, launcher)) is not None:
            rule, count = lacking
            stands = " as they stand in the ledger" if rule is self.standing else ""
            raise PrivacyError(
                f"Expected {rule.needed} approvals of plan {approved[:12]} of {where} by listed "
                f"keys{stands}, the launcher's aside, got {count}. Nothing was charged: `dpsynth "
                "approve` gives one, and an edit of the dataset file needs new ones."
            )
        planned = plan_to_json(plan or ())
        if not (_is_planned(request, planned) or (as_one and _are_planned(request, planned))):
            raise PrivacyError(
                f"Expected a release of the approved plan of {where}, got {request.asset} with "
                "another event. Nothing was charged: declare it, and let the plan be approved."
            )


def post_approvals(
    approvals: dict[str, Approvals], entry: LedgerEntry, terms: BudgetTerms
) -> str | None:
    """Takes in an approval, or the declaration of a charge that is paid.

    Args:
        approvals: By dataset.
        entry: The approval or the charge.
        terms: Its terms.

    Returns:
        What is wrong with a charge that lacks approvals; None where nothing is.
    """
    if entry.kind == APPROVAL:
        held = approvals.setdefault(entry.dataset, Approvals())
        approved, rule = entry.plan_digest or "", terms.approvals
        held.plans[approved] = entry.plan_json or ""
        keys = held.given.setdefault(approved, [])
        keys += [entry.actor] if entry.actor not in keys else []
        if rule is not None and held.standing is None and held.count(approved, rule) >= rule.needed:
            held.standing = rule
        return None
    free = entry.event_json is not None and is_free(entry.event_json)
    if free or not (terms.approvals or entry.dataset in approvals):
        return None
    held = approvals.setdefault(entry.dataset, Approvals())
    lacks = held.lacking(terms, entry.plan_digest or "", entry.actor) is not None
    if held.rules(terms) and (lacks or not _follows(entry, held.plans)):
        return "was charged without the approvals that its cohort asked for"
    held.standing = terms.approvals
    return None


def _follows(entry: LedgerEntry, plans: Mapping[str, str]) -> bool:
    """Says whether a charge is one of the plan that it names, under the terms of that plan."""
    plan = plans[entry.plan_digest or ""]
    named = digest([entry.cohort, entry.terms_json, plan])
    return named == entry.plan_digest and _is_planned(entry.request(), plan)


def _is_planned(request: ReleaseRequest, plan_json: str) -> bool:
    """Says whether a plan holds a release, of this very asset."""
    return (request.asset, request.event_json or "null") in plan_copies(plan_json)


def _are_planned(request: ReleaseRequest, plan_json: str) -> bool:
    """Says whether a request composes events of a plan: it asks, and cannot be charged."""
    events, asked = {event for _, event in plan_copies(plan_json)}, request.event
    parts = asked.events if isinstance(asked, ComposedEvent) else ()
    return bool(parts) and events.issuperset(canonical_json(event_to_json(it)) for it in parts)
