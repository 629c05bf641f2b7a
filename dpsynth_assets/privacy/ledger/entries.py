"""Writes the next entry of the chain: a charge, its release, or a recovery."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import Book
from dpsynth_assets.privacy.ledger.chain import sealed
from dpsynth_assets.privacy.ledger.schema import (
    COMMIT,
    RECOVERY,
    RESERVE,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    plan_to_json,
)
from dpsynth_assets.privacy.ledger.terms import TIGHT, BudgetTerms, canonical_json, digest


def utc_now() -> datetime:
    """The clock of this machine, in UTC."""
    return datetime.now(UTC)


def reserve_entry(
    book: Book,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease] | None,
    now: datetime | None = None,
) -> LedgerEntry:
    """Writes a charge with everything its accounting can be recomputed from."""
    fixed = plan_to_json(plan or ()) if terms.accountant == TIGHT else None
    account = book.accounts.get(request.cohort)
    pinned = account is not None and account.plan_json is not None
    entry = LedgerEntry(
        seq=0,
        recorded_at="",
        kind=RESERVE,
        reservation=secrets.token_hex(16),
        key=request.key(terms.relation, terms.unit),
        cohort=request.cohort,
        dataset=request.dataset,
        asset=request.asset,
        mechanism=request.mechanism,
        guarantee=str(request.guarantee),
        event_json=request.event_json,
        parameters_json=request.parameters_json,
        code_version=request.code_version,
        data_version=request.data_version,
        release=request.release,
        run_id=request.run_id,
        terms_json=terms.to_json(),
        plan_digest=None if fixed is None else digest(fixed),
        plan_json=None if pinned else fixed,
    )
    return _next_entry(book, entry, now)


def commit_entry(
    book: Book,
    reserve: LedgerEntry,
    artifact_digest: str,
    artifact_uri: str,
    ex_post_epsilon: float | None,
    content: Mapping[str, object],
    now: datetime | None = None,
) -> LedgerEntry:
    """Completes a charge; what the reserve says is not said twice."""
    entry = reserve._replace(
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
    return _next_entry(book, entry, now)


def recovery_entry(book: Book, parameters_json: str, now: datetime | None = None) -> LedgerEntry:
    """Records that a person restored a lost ledger, or went on without what was lost."""
    name = secrets.token_hex(16)
    entry = LedgerEntry(
        seq=0,
        recorded_at="",
        kind=RECOVERY,
        reservation=name,
        key=name,
        cohort="",
        dataset="",
        asset="",
        mechanism="",
        guarantee=str(GuaranteeType.NONE),
        parameters_json=parameters_json,
    )
    return _next_entry(book, entry, now)


def _next_entry(book: Book, entry: LedgerEntry, now: datetime | None) -> LedgerEntry:
    """Puts the entry at the end of the chain, at this moment."""
    recorded_at = (now or utc_now()).astimezone(UTC).isoformat()
    return sealed(
        entry._replace(seq=book.seq + 1, recorded_at=recorded_at, previous_hash=book.head)
    )
