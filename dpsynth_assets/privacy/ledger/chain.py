"""The hash chain: every entry seals the one before it, so history cannot be edited unseen.

What it shows: an altered, removed, inserted or reordered entry. What it cannot show on its own: a
removed tail, or a history rewritten from some entry on with fresh hashes. For those, keep the head
(`Ledger.head`) somewhere the ledger's owner cannot write, and verify against that witness.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted
from typing import cast

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger.actors import Actor, Approvals, fits, post_approvals
from dpsynth_assets.privacy.ledger.schema import (
    APPROVAL,
    COMMIT,
    RESERVE,
    BudgetTerms,
    LedgerEntry,
    entry_problem,
)

GENESIS = "0" * 64
"""Hash before the first entry, and head of an empty ledger."""

_BOUND = LedgerEntry._fields.index("ex_post_epsilon")


def entry_hash(entry: LedgerEntry) -> str:
    """SHA-256 over the canonical JSON of every column but `hash`, the previous hash included.

    The JSON is an array of the columns in their fixed order, which needs no sorting of keys and is
    as canonical as an object. It is written here since every process hashes the whole ledger
    before it charges anything, and a general encoder takes twice the time.

    Raises:
        TypeError: A text column holds no text.
        ValueError: A number is not finite.
    """
    texts = cast("tuple[str | None, ...]", entry[1:_BOUND])
    columns = ",".join(["null" if text is None else _quoted(text) for text in texts])
    bound = entry.ex_post_epsilon
    realised = "null" if bound is None else json.dumps(bound, allow_nan=False)
    row = f"[{entry.seq:d},{columns},{realised},{_quoted(entry.previous_hash)}]"
    return hashlib.sha256(row.encode()).hexdigest()


def sealed(entry: LedgerEntry, actor: Actor | None = None) -> LedgerEntry:
    """Fills in the entry's own hash; before that its actor, if given, who signs all else."""
    if actor is not None:
        entry = entry._replace(actor=actor.name, signature=None)
        entry = entry._replace(signature=actor.signature(entry_hash(entry)))
    return entry._replace(hash=entry_hash(entry))


def signature_problem(entry: LedgerEntry) -> str | None:
    """Says that an entry is not signed by the actor it names; None where it is."""
    signed = fits(entry.actor, entry.signature, entry_hash(entry._replace(signature=None)))
    return None if signed else "has an invalid signature: its actor did not write it"


def link_problem(entry: LedgerEntry, previous_seq: int, previous_hash: str) -> str | None:
    """Says why `entry` cannot follow the entry before it, or None where it does."""
    if entry.seq != previous_seq + 1:
        return f"expected entry {previous_seq + 1} here: entries were removed or reordered"
    if entry.previous_hash != previous_hash:
        return "does not seal the entry before it: an entry was removed, inserted or replaced"
    try:
        unaltered = entry.hash == entry_hash(entry)
    except (TypeError, ValueError):
        unaltered = False
    return None if unaltered else "its content does not match its hash: a column was altered"


def _link_problem(entry: LedgerEntry, previous_seq: int, previous_hash: str) -> str | None:
    return link_problem(entry, previous_seq, previous_hash) or signature_problem(entry)


def is_linked(entries: Iterable[LedgerEntry]) -> bool:
    """Says whether every entry seals the one before it, for any content."""
    seq, head = 0, GENESIS
    for entry in entries:
        if link_problem(entry, seq, head):
            return False
        seq, head = entry.seq, entry.hash
    return True


@dataclass(frozen=True)
class ChainProblem:
    """One thing wrong with the ledger; `seq` is 0 where it concerns the ledger as a whole."""

    seq: int
    message: str

    def __str__(self) -> str:
        return f"entry {self.seq}: {self.message}" if self.seq else self.message


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of a verification.

    Attributes:
        ok: Whether nothing is wrong.
        entries: Number of entries read.
        head: Hash of the last entry; note it down as the next witness.
        problems: What is wrong, in order of entries.
    """

    ok: bool
    entries: int
    head: str
    problems: tuple[ChainProblem, ...]


def verify_chain(entries: Iterable[LedgerEntry], witnessed_head: str | None = None) -> VerifyReport:
    """Checks every link, seal and signature, approvals, and that commits complete a reserve.

    Args:
        entries: All entries by `seq`.
        witnessed_head: A head noted down earlier; it must still be part of the chain.
    """
    problems: list[ChainProblem] = []
    open_keys, approvals = dict[str, str](), dict[str, Approvals]()
    seq, head, count, seen = 0, GENESIS, 0, witnessed_head in (None, GENESIS)
    for entry in entries:
        content = _content_problem(entry, open_keys, approvals)
        messages = [_link_problem(entry, seq, head), content]
        problems += [ChainProblem(entry.seq, message) for message in messages if message]
        seq, head, count = entry.seq, entry.hash, count + 1
        seen = seen or head == witnessed_head
    if not seen:
        why = "entries are gone or rewritten, or `dpsynth ledger verify` did not print this head"
        problems.append(ChainProblem(0, f"expected the head {witnessed_head}, got none: {why}."))
    return VerifyReport(ok=not problems, entries=count, head=head, problems=tuple(problems))


def _content_problem(
    entry: LedgerEntry, open_keys: dict[str, str], approvals: dict[str, Approvals]
) -> str | None:
    """Checks what a hash cannot: that the entry means something, and was allowed.

    Updates the open reservations and the approvals.
    """
    if (problem := entry_problem(entry)) is not None:
        return problem
    if entry.kind == COMMIT:
        known = open_keys.pop(entry.reservation, None) == entry.key
        return None if known else "commits a release that was not reserved, or commits it twice"
    if entry.kind not in (RESERVE, APPROVAL):
        return None
    if entry.kind == RESERVE:
        open_keys[entry.reservation] = entry.key
    try:
        terms = BudgetTerms.from_json(entry.terms_json or "")
        lacking = post_approvals(approvals, entry, terms)
        same = (
            entry.kind == APPROVAL or entry.request().key(terms.relation, terms.unit) == entry.key
        )
    except PrivacyError as error:
        return str(error)
    except (TypeError, ValueError, KeyError) as error:
        return f"cannot be read as a charge ({type(error).__name__})"
    return lacking if same else "its key is not that of its request"
