"""Runs every mechanism: reserve, read, release, store, commit, in that order.

This is the one place where private data meets a release. A request that was released before is
loaded from the store and costs nothing; a value that a dying run had already stored is committed,
not drawn again; anything else is charged first. One run at a time draws a release; a run that has
drawn a value while the disk is full holds on to it until there is room.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.privacy.errors import (
    BudgetExceededError,
    LedgerIntegrityError,
    PrivacyError,
    UnaccountedReleaseError,
)
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.ledger import (
    Admission,
    BudgetTerms,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    sqlite_path,
)
from dpsynth_assets.releases.store import (
    StoredReleases,
    StoreUnavailableError,
    refuse_altered,
    told_content,
)
from dpsynth_assets.releases.waiting import (
    alone,
    expect_consent,
    once_there_is_room,
    refuse_changed,
    say,
)


class PublicInputError(PrivacyError):
    """A public model cannot be opened, or a draw could not end with it; nothing was charged."""


class Unfinished(Protocol):
    """State that a run keeps of a release it has paid for and not finished."""

    @property
    def begun(self) -> bool:
        """Whether a run on this store made the charge, and nothing of it is released yet."""

    @property
    def drawn_from(self) -> Mapping[str, Any]:
        """What decided the draw when the charge was made."""

    def begin(self, drawn_from: Mapping[str, Any] | None = None) -> None:
        """Marks, on disk, that a run on this store makes the charge; before that is on disk."""

    def keep_cost(self, value: str, epsilon: float) -> None:
        """Keeps the realised cost of a value, by the value's digest."""

    def cost(self, value: str) -> float | None:
        """The realised cost of a value; None where none was kept."""

    def remove(self) -> None:
        """Forgets what was kept, once the release is committed."""


@dataclass(frozen=True, kw_only=True)
class StoredRelease:
    """Result of a mechanism.

    Attributes:
        reservation: The ledger reservation that paid for it.
        facts: Released facts (JSON).
        rows: Released rows, for a corpus.
        digest: SHA-256 of the stored release, as the ledger sealed it: the version of the value,
            which reuse keeps and a new draw changes.
    """

    reservation: Reservation
    facts: dict[str, Any]
    rows: pl.DataFrame | None
    digest: str


@dataclass(kw_only=True)
class Releasing:
    """All there is to one release: a mechanism runs exactly once for its payment.

    Attributes:
        ledger: Charged before `draw` is called.
        store: Where the value is kept, addressed by the reservation.
        request: What is asked for; its identity decides reuse.
        terms: The cohort's budget.
        plan: Every release the dataset file declares, for fixed-plan accounting.
        draw: Reads private data with the reservation it is given and returns the release.
        passes: What an unfinished run kept of a reservation, for a mechanism that can resume where
            a killed run stopped. Its charge is then used, not repeated: what that run drew and
            did not keep was never shown.
        drawn_from: States all that decides what is drawn and is not in the request, as JSON values:
            kept with the charge, and equal where it is resumed. `records` among them is private.
        prepare: Opens the public models that the draw needs and checks what is public about it,
            where a draw is about to begin: what cannot be loaded, or could not end, costs nothing,
            and its message is shown. Returns what the release takes of the disks at most, which
            has to be free before a charge.
        rests_on: States what `prepare` has tested that the label must name; kept with the charge,
            and no part of the release's identity.
    """

    ledger: Ledger
    store: StoredReleases
    request: ReleaseRequest
    terms: BudgetTerms
    plan: Sequence[PlannedRelease]
    draw: Callable[[Reservation], Release[StageRelease]]
    passes: Callable[[Reservation], Unfinished] | None = None
    drawn_from: Callable[[], Mapping[str, Any]] = dict
    prepare: Callable[[], Room] = Room
    rests_on: Callable[[], Mapping[str, Any]] = dict

    def released(self) -> StoredRelease:
        """Finds the value, or charges and draws it; one run at a time.

        Raises:
            PrivacyError: If the budget, the plan or the declaration refuses; nothing private was
                read.
            UnaccountedReleaseError: If the mechanism's cost differs from what was charged; the
                value is discarded and the charge stands.
        """
        key = self.request.key(self.terms.relation, self.terms.unit)
        with alone(key, self.ledger.url, self._say_waiting):
            reservation = self._left_by_a_killed_run()
            if reservation is None:
                reservation = self._reserved()
            else:
                self._prepared()
            if reservation.reused:
                return self._reused(reservation)
            return self._drawn_and_committed(reservation)

    @property
    def _ex_post(self) -> bool:
        return self.request.guarantee == GuaranteeType.EX_POST

    @property
    def _expected(self) -> Admission:
        """What the ledger would answer now."""
        return self.ledger.preview(self.request, self.terms, self.plan)

    @property
    def _ledger_folder(self) -> Path | None:
        file = sqlite_path(self.ledger.url)
        return None if file is None else file.parent

    def _reserved(self) -> Reservation:
        """Checks all that can be checked before a charge, and charges; or finds the value."""
        expected = self._expected
        expect_consent(self.request, expected)
        if not expected.reused:  # A reuse only reads.
            self.store.check_room(Room(), ledger=self._ledger_folder)
            if expected.admitted:
                self.store.check_room(self._prepared(), ledger=self._ledger_folder)
                self.request = self.request.resting_on(self.rests_on())
        try:
            reservation = self.ledger.reserve(self.request, self.terms, self.plan, self._marked())
        except BudgetExceededError as refusal:
            raise BudgetExceededError(f"{refusal} {self._edited()}".rstrip()) from None
        if not reservation.reused:
            self._say_what_was_edited(reservation)
        return reservation

    def _reused(self, reservation: Reservation) -> StoredRelease:
        """A stored value must be the one whose digest the ledger has sealed."""
        facts, rows = self.store.load(reservation.id)
        digest = str(reservation.artifact_digest)
        refuse_altered(self.store, reservation.id, self.request.asset, digest)
        return StoredRelease(reservation=reservation, facts=facts, rows=rows, digest=digest)

    def _drawn_and_committed(self, reservation: Reservation) -> StoredRelease:
        kept = None if self.passes is None else self.passes(reservation)
        made = self.draw(reservation)
        self._assert_cost_was_charged(made.cost)
        if self.store.has(reservation.id):
            return self._first_stored(reservation)
        facts, rows = plain_json(dict(made.value.facts)), made.value.rows
        epsilon = made.cost.ex_post_epsilon
        if kept is not None and epsilon is not None:
            value = _value_digest(facts, rows)
            once_there_is_room(lambda: kept.keep_cost(value, epsilon), self._paid_for)
        digest = self._stored(reservation, facts, rows, made.value.files)
        content = told_content(facts, rows, made.value.files)
        self._commit(reservation, digest, epsilon, content, cost_is_kept=kept is not None)
        if kept is not None:
            kept.remove()
        return StoredRelease(reservation=reservation, facts=facts, rows=rows, digest=digest)

    @property
    def _paid_for(self) -> str:
        return f"{self.request.asset} was drawn and paid for."

    def _first_stored(self, reservation: Reservation) -> StoredRelease:
        """Uses what a run that was taken for dead has stored under this very charge.

        That happens where the lock was lost, as when its server was started again. One charge pays
        for one value: the first that was stored; what this run drew was never shown.
        """
        if self._ex_post:
            raise PrivacyError(
                f"Another run has stored {self.request.asset} under the same charge. Run again to "
                "use it."
            )
        return self._committed_from_store(reservation, None)

    def _committed_from_store(
        self, reservation: Reservation, epsilon: float | None
    ) -> StoredRelease:
        """Commits a value as it is stored."""
        facts, rows = self.store.load(reservation.id)
        digest = self.store.digest(reservation.id)
        content = told_content(facts, rows, self.store.files(reservation.id))
        self._commit(reservation, digest, epsilon, content, cost_is_kept=True)
        return StoredRelease(reservation=reservation, facts=facts, rows=rows, digest=digest)

    def _prepared(self) -> Room:
        """Opens what the draw needs; returns the room it takes."""
        try:
            return self.prepare()
        except Exception as error:  # Nothing private was read: its message may be shown.
            raise PublicInputError(f"{self.request.asset}: {error}") from error

    def _stored(self, reservation: Reservation, *value: Any) -> str:
        """Stores what was drawn, waiting for room: the charge is spent, the value is only here.

        Raises:
            StoreUnavailableError: The patience ended; the charge stands.
        """
        try:
            return once_there_is_room(
                lambda: self.store.save(reservation.id, *value), self._paid_for
            )[0]
        except StoreUnavailableError as problem:
            raise StoreUnavailableError(
                f"{problem} The charge of {self.request.asset} remains, and its value is lost."
            ) from None

    def _commit(
        self,
        reservation: Reservation,
        digest: str,
        ex_post_epsilon: float | None,
        content: Mapping[str, Any],
        *,
        cost_is_kept: bool,
    ) -> None:
        """Commits a stored value; if the ledger is gone, says that nothing is lost."""
        try:
            self.ledger.commit(
                reservation,
                artifact_digest=digest,
                artifact_uri=str(self.store.folder(reservation.id)),
                ex_post_epsilon=ex_post_epsilon,
                content=content,
            )
        except LedgerIntegrityError:
            raise
        except PrivacyError as problem:
            if self._ex_post and not cost_is_kept:
                raise  # Its realised cost ends with this run, so the value cannot be used.
            raise PrivacyError(
                f"{problem} The value of {self.request.asset} is stored and paid for: run again, "
                "and it is committed at no further charge."
            ) from None

    def _say_waiting(self) -> None:
        asset, release = self.request.asset, self.request.release
        say(
            f"Another run is drawing {asset}, release {release!r}. This one waits and then uses "
            "that value: nothing is paid twice. Either of them may be terminated."
        )

    def _edited(self) -> str:
        """What differs from the last charge of this name; nothing where the ledger is gone."""
        try:
            return self.ledger.edited_in_words(self.request)
        except PrivacyError:  # The refusal counts.
            return ""

    def _say_what_was_edited(self, reservation: Reservation) -> None:
        """Names what differs from the last release of the same name, where this one pays again."""
        request = self.request
        if request.event is None or is_post_processing(request.event):
            return
        if edited := self.ledger.edited_in_words(request, but=reservation.id):
            say(
                f"{edited} This is another release, and it was charged in addition to the earlier "
                "one."
            )

    def _left_by_a_killed_run(self) -> Reservation | None:
        """Commits the value that a killed run of this request stored, or finds its charge.

        The mark of a draw is on disk before its charge is (`_marked`), so wherever the run was
        killed:

        - before the mark: no charge, no mark; the request is charged once, by the next run;
        - between mark and charge: a mark of a reservation that the ledger does not know. It is not
          among the pending ones, so the next run charges, once;
        - between the charge and the first noise: charge and mark. The next run draws under the
          charge, from nothing, and nothing was drawn before;
        - in the draw: charge, mark and kept passes. The kept passes are used, and what was drawn
          and not kept was never shown;
        - after the value was stored: it is committed, at no charge.

        A charge without a mark here was made on another sensitive store, whose progress may have
        reported draws that it kept: other draws under its charge would be a second release, so it
        is charged again. So is an ex-post value that was stored there: its realised cost, without
        which it cannot be labelled, was kept there.

        What is kept was drawn from the records as they were divided then. The rest of the draw has
        to be of the same division, or a record is drawn from more often than was paid for. So
        all that decides the draw is compared, and a change is refused before a record is read.
        """
        for reservation in self.ledger.pending(self.request):
            kept = None if self.passes is None else self.passes(reservation)
            if self.store.has(reservation.id):
                cost = None
                if self._ex_post and kept is not None:
                    cost = kept.cost(_value_digest(*self.store.load(reservation.id)))
                if self._ex_post and cost is None:
                    continue  # Without its realised cost the value cannot be labelled.
                self._committed_from_store(reservation, cost)
                if kept is not None:
                    kept.remove()
                return None
            if kept is not None and kept.begun:
                refuse_changed(self.request, kept.drawn_from, self._decided_by())
                return reservation
        return None

    def _decided_by(self) -> Mapping[str, Any]:
        decided: Mapping[str, Any] = plain_json(dict(self.drawn_from()))
        return decided

    def _marked(self) -> Callable[[Reservation], None] | None:
        """Marks a draw before its charge is on disk; a mark without a charge has no effect."""
        passes = self.passes
        if passes is None:
            return None
        # What admits a charge seldom waits for anything else: the ledger is not locked meanwhile.
        facts = self._decided_by() if self._expected.admitted else None

        def mark(reservation: Reservation) -> None:
            try:
                passes(reservation).begin(self._decided_by() if facts is None else facts)
            except OSError as problem:
                raise StoreUnavailableError(
                    f"The sensitive store cannot be written ({problem.strerror}). Nothing was "
                    "charged: free space there, or check its permissions, and run again."
                ) from None
            except StoreUnavailableError as problem:
                raise StoreUnavailableError(f"{problem} Nothing was charged.") from None

        return mark

    def _assert_cost_was_charged(self, cost: Cost) -> None:
        if cost.guarantee != self.request.guarantee or cost.event != self.request.event:
            raise UnaccountedReleaseError(
                f"Expected {self.request.asset} to cost what was charged before private data was "
                "read, got a release with another cost. The value was discarded and the charge "
                "remains; report this bug of the mechanism."
            )


def _value_digest(facts: Mapping[str, Any], rows: pl.DataFrame | None) -> str:
    """The digest of a value, by which the realised cost of an ex-post release is kept.

    Such a cost is known once the value is drawn, and the ledger records it at the commit. A run
    that is killed between storing the value and the commit would take it along, and the stored
    value could not be labelled. So the cost is kept beside the passes of the charge, in the
    sensitive store, before the value is stored, under a digest of that very value: a cost never
    labels another one.

    **Privacy** A realised cost depends on private data. It goes to the ledger and to nowhere else.
    """
    table = None if rows is None else [rows.columns, rows.rows()]
    content = json.dumps([facts, table], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def plain_json(value: Any) -> Any:
    """Converts NumPy values to JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(v) for v in value]
    return value
