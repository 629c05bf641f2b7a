"""The ledger: reserve before private data is read, commit when the release is stored."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from math import inf, isfinite

import sqlalchemy as sa

from dpsynth_assets.privacy.errors import BudgetExceededError, LedgerIntegrityError, PrivacyError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import (
    Book,
    CohortAccount,
    act_entry,
    approval_entry,
    commit_entry,
    next_entry,
    require_none,
    reserve_entry,
    utc_now,
)
from dpsynth_assets.privacy.ledger.actors import Actor, Approvals, account
from dpsynth_assets.privacy.ledger.admission import Admission, admit
from dpsynth_assets.privacy.ledger.chain import (
    ChainProblem,
    VerifyReport,
    link_problem,
    verify_chain,
)
from dpsynth_assets.privacy.ledger.database import (
    COLUMNS,
    TRIGGERS,
    Appender,
    Database,
    sqlite_path,
)
from dpsynth_assets.privacy.ledger.provenance import ChargeGraph
from dpsynth_assets.privacy.ledger.schema import (
    APPROVAL,
    COMMIT,
    RESERVE,
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    edited_parts,
    plan_digest,
)
from dpsynth_assets.privacy.ledger.statement import (
    CohortSpend,
    DatasetSpend,
    cohort_spend,
    dataset_spend,
)
from dpsynth_assets.privacy.ledger.witness import ENTRIES_BETWEEN, Checkpoint, Seen, Witness

Read = Callable[..., Iterator[LedgerEntry]]
"""Yields the entries that meet conditions on `COLUMNS`, in order."""


class Ledger:
    """Append-only account of everything private data was read for.

    A reserve counts as spent permanently, regardless of what happens afterwards; a commit adds
    where the release is stored. Every sum is recomputed from stored events, and no process charges
    anything before it has verified the chain up to its end.

    **Privacy**: holds only public values: events, declared facts, digests of releases. The one
    exception is the realised bound of an ex-post release, which depends on private data without
    noise: a ledger with ex-post releases is internal.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime] = utc_now,
        checkpoint: Checkpoint | None = None,
        witness: Witness | None = None,
        actor: Callable[[], Actor] = account,
    ) -> None:
        """Opens or creates the ledger.

        Args:
            url: SQLAlchemy URL. A missing SQLite file is created, for its owner only.
            clock: Says when an entry is recorded.
            checkpoint: Where this machine keeps what it has verified; none: all is verified again.
            witness: What this installation remembers of its ledger; none: a lost one is unnoticed.
            actor: Says who acts, when an entry is written or a charge is previewed.

        Raises:
            LedgerIntegrityError: The database cannot be read, or its file is gone.
            PrivacyError: The database is not available.
        """
        self._witness = witness
        self.url = url
        if witness is not None:
            witness.refuse_missing(sqlite_path(url))
        self._database = Database(url)
        self._clock = clock
        self._actor = actor
        self._checkpoint = checkpoint
        self._book = (checkpoint and checkpoint.load()) or Book()
        self._kept = self._book.seq
        self._is_current = False
        self._lock = threading.RLock()

    def reserve(
        self,
        request: ReleaseRequest,
        terms: BudgetTerms,
        plan: Sequence[PlannedRelease] | None = None,
        before: Callable[[Reservation], object] | None = None,
    ) -> Reservation:
        """Charges a release, or finds the one that was made already.

        Args:
            request: What would be released.
            terms: The cohort's budget, from the dataset file.
            plan: All releases of the cohort; required by accountant `tight`.
            before: Called with the charge that is about to be made, under the write lock, before
                it is on disk: a run leaves its mark there, so that no charge is without one. What
                it raises takes the charge back.

        Returns:
            A reservation on disk. With `reused`, the stored release: nothing was charged.

        Raises:
            BudgetExceededError: The budget does not suffice; nothing was charged.
            PlanChangedError: The cohort is fixed to another plan; nothing was charged.
            PrivacyError: The request cannot be charged under these terms, or its plan lacks
                approvals; nothing was charged.
        """
        actor = self._actor()
        with self._appending() as (appender, book):
            first = self._first_commit(request, terms, appender.read)
            released = first is not None
            admission = admit(book, request, terms, plan, released=released, launcher=actor.name)
            if first is not None:
                stored = (first.artifact_digest, first.artifact_uri)
                return Reservation(first.reservation, request, True, *stored)
            if admission.refusal is not None:
                raise BudgetExceededError(admission.refusal)
            entry = reserve_entry(request, terms, plan, book.accounts.get(request.cohort))
            reservation = Reservation(entry.reservation, request)
            if before is not None:
                before(reservation)
            self._append(appender, entry, actor)
        return reservation

    def commit(
        self,
        reservation: Reservation,
        *,
        artifact_digest: str,
        artifact_uri: str,
        ex_post_epsilon: float | None = None,
        content: Mapping[str, object] | None = None,
    ) -> None:
        """Notes where the reserved release is stored; committing the same again changes nothing.

        Args:
            reservation: What `reserve` or `pending` returned.
            artifact_digest: SHA-256 of the stored release.
            artifact_uri: Place of the stored release.
            ex_post_epsilon: Realised bound of an ex-post release; unknown counts as infinite.
            content: What is told of what may leave, as its digest: public, in every proof.

        Raises:
            PrivacyError: Nothing was reserved under this id, another artifact was committed for
                it, or a bound was given to a release that is not ex-post.
        """
        with self._appending() as (appender, _):
            known = self._of(reservation.id, appender.read)
            reserve, earlier = known.get(RESERVE), known.get(COMMIT)
            if reserve is None:
                raise PrivacyError(
                    f"Expected a reservation of this ledger, got {reservation.id!r}. Reserve first."
                )
            _check_bound(reserve, ex_post_epsilon)
            if earlier is None:
                stored = (artifact_digest, artifact_uri, ex_post_epsilon, content or {})
                self._append(appender, commit_entry(reserve, *stored), self._actor())
            elif (earlier.artifact_digest, earlier.artifact_uri) != (artifact_digest, artifact_uri):
                raise PrivacyError(
                    f"Expected the artifact {earlier.artifact_digest} that was committed for "
                    f"{reserve.asset}, got {artifact_digest}. Reserve again under a new release "
                    "name."
                )

    def charge(self, reservation_id: str) -> LedgerEntry | None:
        """The charge of a reservation; None where there is none."""
        self._refreshed()
        return self._of(reservation_id).get(RESERVE)

    def edited_in_words(
        self, request: ReleaseRequest, *, but: str = "", unknown: Collection[str] = ()
    ) -> str:
        """Names what differs from the last charge of this asset and release name, if there is one.

        Args:
            request: What is asked for.
            but: Reservation of a charge that is passed over.
            unknown: Parameters that the request does not state yet.
        """
        asset, release = request.asset, request.release
        last = None
        for entry in self.stream(request.cohort):
            if entry.kind == RESERVE and entry.reservation != but:
                last = entry if (entry.asset, entry.release) == (asset, release) else last
        edited = [] if last is None else edited_parts(last, request, unknown)
        told = f"{asset} was paid for before as release {release!r}, under another declaration"
        return f"{told}: {', '.join(edited)} differed." if edited else ""

    def provenance(self, cohort: str | None = None) -> ChargeGraph:
        """What each charge was made from, of one cohort or of all."""
        return ChargeGraph(self.stream(cohort))

    def sealed_digest(self, reservation_id: str) -> str | None:
        """SHA-256 of the stored release that was committed; None where none was."""
        self._refreshed()
        commit = self._of(reservation_id).get(COMMIT)
        return None if commit is None else commit.artifact_digest

    def pending(self, request: ReleaseRequest) -> list[Reservation]:
        """Lists reservations of this very request that were never committed, oldest first."""
        book = self._refreshed()
        account = book.accounts.get(request.cohort)
        if account is None:
            return []
        key = request.key(account.opened.relation, account.opened.unit)
        entries = self._known(COLUMNS.key == key)
        committed = {each.reservation for each in entries if each.kind == COMMIT}
        return [
            Reservation(each.reservation, request)
            for each in entries
            if each.reservation not in committed
        ]

    def is_open(self, reservation_id: str) -> bool:
        """Says whether a reservation allows reading private data: charged, not yet committed."""
        self._refreshed()
        return set(self._of(reservation_id)) == {RESERVE}

    def preview(
        self,
        request: ReleaseRequest,
        terms: BudgetTerms,
        plan: Sequence[PlannedRelease] | None = None,
    ) -> Admission:
        """Says what `reserve` would say, and spends nothing.

        Releases of an approved plan may be asked for as one, composed; they are charged one by one.
        """
        book = self._refreshed()
        try:
            first = self._first_commit(request, terms)
            released = first is not None
            name = self._actor().name
            return admit(book, request, terms, plan, released=released, launcher=name, as_one=True)
        except PrivacyError as refusal:
            account = book.accounts.get(request.cohort)
            return Admission(
                spent_epsilon=account.epsilon(terms.accountant) if account else 0.0,
                total_epsilon=inf,
                refusal=str(refusal),
            )

    def entries(self, cohort: str | None = None) -> list[LedgerEntry]:
        """Lists entries in order, of one cohort or of all."""
        return list(self.stream(cohort))

    def stream(self, cohort: str | None = None) -> Iterator[LedgerEntry]:
        """Yields entries in order, of one cohort or of all, without holding them at once."""
        return self._database.read(*([] if cohort is None else [COLUMNS.cohort == cohort]))

    def count_charges(self, cohort: str | None = None) -> int:
        """Counts charges, of one cohort or of all."""
        return sum(entry.kind == RESERVE for entry in self.stream(cohort))

    def spend(self, cohort: str, terms: BudgetTerms | None = None) -> CohortSpend:
        """States what a cohort has spent, against `terms` or its last."""
        return cohort_spend(cohort, self._refreshed().accounts.get(cohort), terms)

    def account(self, cohort: str) -> CohortAccount | None:
        """States what a cohort was charged, event by event; None before its first charge."""
        return self._refreshed().accounts.get(cohort)

    def dataset_spend(self, dataset: str) -> DatasetSpend:
        """States what all cohorts of a dataset have spent together."""
        return dataset_spend(dataset, self._refreshed().accounts.values())

    def verify(self, witnessed_head: str | None = None) -> VerifyReport:
        """Checks the whole chain, and that `witnessed_head` is still part of it.

        Nothing is taken from the checkpoint; it is compared with the chain as well.
        """
        report = verify_chain(self._database.read(), witnessed_head)
        problems = list(report.problems)
        if missing := sorted(set(TRIGGERS) - self._database.triggers()):
            problems.append(
                ChainProblem(0, f"append-only triggers are missing: {', '.join(missing)}")
            )
        if report.ok and self._checkpoint is not None:
            message = self._checkpoint.problem(self._database.read())
            problems += [ChainProblem(0, message)] if message else []
        return replace(report, ok=not problems, problems=tuple(problems))

    def record(self, kind: str, told: Mapping[str, object], cohort: str = "") -> LedgerEntry:
        """Notes permanently that somebody did something; nothing is charged or refunded by it.

        Args:
            kind: `recovery` or `purge`.
            told: What was done, public.
            cohort: Whose; empty: of no cohort, or of all.
        """
        actor = self._actor()
        with self._appending() as (appender, _):
            return self._append(appender, act_entry(kind, told, cohort), actor)

    def approve(
        self, cohort: str, dataset: str, terms: BudgetTerms, plan: Sequence[PlannedRelease]
    ) -> LedgerEntry:
        """Approves a plan, with the key of this process; a second approval by it changes nothing.

        Args:
            cohort: Account that would pay.
            dataset: Dataset it belongs to.
            terms: Its budget, from the dataset file.
            plan: All its releases.

        Raises:
            PrivacyError: The cohort asks for no approvals, or for none by this key.
        """
        actor = self._actor()
        with self._appending() as (appender, book):
            held = book.approvals.get(dataset, Approvals())
            held.check_approver(cohort, terms, actor)
            approved = plan_digest(cohort, terms, plan)
            for entry in self._known(COLUMNS.cohort == cohort, appender.read):
                if (entry.kind, entry.plan_digest, entry.actor) == (APPROVAL, approved, actor.name):
                    return entry
            entry = approval_entry(cohort, dataset, terms, plan)
            return self._append(appender, entry, actor)

    def approvals(self, dataset: str) -> Approvals:
        """The approvals of a dataset's plans, and what stands in the ledger."""
        return self._refreshed().approvals.get(dataset, Approvals())

    def _append(self, appender: Appender, entry: LedgerEntry, actor: Actor) -> LedgerEntry:
        """Writes an entry by an actor at the end of the chain, under the lock."""
        written = next_entry(self._book, entry, actor, self._clock())
        appender.append(written)
        return written

    def head(self) -> str:
        """Hash of the last entry: note it down elsewhere as a witness for `verify`."""
        return self._refreshed().head

    def _refreshed(self) -> Book:
        """The book up to the last entry, its chain verified."""
        with self._lock:
            self._post_new(self._database.read)
            self._compare()
            self._is_current = True
            if self._checkpoint and self._book.seq - self._kept >= ENTRIES_BETWEEN:
                self._checkpoint.save(self._book)
                self._kept = self._book.seq
            return self._book

    def _known(
        self, condition: sa.ColumnElement[bool], read: Read | None = None
    ) -> list[LedgerEntry]:
        """Entries among those that were verified, each compared with its own hash again."""
        found = list((read or self._database.read)(condition, COLUMNS.seq <= self._book.seq))
        for each in found:
            require_none(link_problem(each, each.seq - 1, each.previous_hash), each)
        return found

    def _of(self, reservation_id: str, read: Read | None = None) -> dict[str, LedgerEntry]:
        """The entries of a reservation by kind."""
        found = self._known(COLUMNS.reservation == reservation_id, read)
        return {each.kind: each for each in found}

    def _first_commit(
        self, request: ReleaseRequest, terms: BudgetTerms, read: Read | None = None
    ) -> LedgerEntry | None:
        """The commit of this very release; None where it was not made yet.

        Processes that race for one release may all pay and store; the value that was committed
        first is the release permanently, whichever of them commits later.
        """
        entries = self._known(COLUMNS.key == request.key(terms.relation, terms.unit), read)
        return next((each for each in entries if each.kind == COMMIT), None)

    @contextmanager
    def _appending(self) -> Iterator[tuple[Appender, Book]]:
        """Holds the write lock with the book up to date; a first, long read happens before it."""
        with self._lock:
            if not self._is_current:
                self._refreshed()
            with self._database.appending() as appender:
                self._post_new(appender.read)
                self._compare()
                yield appender, self._book
            if self._witness is not None and (last := appender.appended) is not None:
                self._witness.note(Seen(last.seq, last.hash, last.recorded_at))

    def _compare(self) -> None:
        if self._witness is not None:
            self._witness.compare(self._book, self._holds)

    def _holds(self, seen: Seen) -> bool:
        known = self._book.seq == seen.seq
        if known:
            return self._book.head == seen.hash
        return any(each.hash == seen.hash for each in self._database.read(COLUMNS.seq == seen.seq))

    def _post_new(self, read: Read) -> None:
        """Posts entries after the last known one, which is read again to see that it is there."""
        book = self._book
        entries = read(COLUMNS.seq >= book.seq)
        if book.seq:
            known = next(entries, None)
            if known is None or (known.seq, known.hash) != (book.seq, book.head):
                raise LedgerIntegrityError(
                    f"Ledger entry {book.seq} is not the one this machine read before: the ledger "
                    f"was replaced or rolled back. {self._remedy}"
                )
        for entry in entries:
            book.post(entry)

    @property
    def _remedy(self) -> str:
        if not self._kept or self._checkpoint is None:
            return "Run `dpsynth ledger verify`, then start again."
        return (
            "Restore the newest one; if nothing is missing in it, as `dpsynth ledger verify --head "
            f"HASH` shows, delete {self._checkpoint.path}."
        )


def _check_bound(reserve: LedgerEntry, ex_post_epsilon: float | None) -> None:
    if ex_post_epsilon is None:
        return
    if reserve.guarantee != GuaranteeType.EX_POST:
        raise PrivacyError(
            f"Expected ex_post_epsilon only for an ex-post release, got one for {reserve.asset}, a "
            f"{reserve.guarantee} release. Leave it out."
        )
    if not (ex_post_epsilon >= 0 and isfinite(ex_post_epsilon)):
        raise PrivacyError(
            f"Expected a finite ex_post_epsilon >= 0 for {reserve.asset}. Leave it out where the "
            "bound is unknown or infinite."
        )
