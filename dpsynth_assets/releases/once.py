"""Runs every mechanism: reserve, read, release, store, commit, in that order.

This is the one place where private data meets a release. A request that was released before is
loaded from the store and costs nothing; a value that a dying run had already stored is committed,
not drawn again; anything else is charged first. One run at a time draws a release; a run that has
drawn a value while the disk is full holds on to it until there is room.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from dpsynth_assets.files.disk_room import Room
from dpsynth_assets.privacy.errors import (
    LedgerIntegrityError,
    PrivacyError,
    UnaccountedReleaseError,
)
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    Ledger,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    edited_parts,
    sqlite_path,
)
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.releases.consent import expect_consent
from dpsynth_assets.releases.draw_lock import alone
from dpsynth_assets.releases.published_rows import told_content
from dpsynth_assets.releases.realised_cost import KeptCosts, keep_realised_cost, realised_cost
from dpsynth_assets.releases.same_draw import refuse_changed
from dpsynth_assets.releases.store import StoredReleases, StoreUnavailableError
from dpsynth_assets.releases.waiting import once_there_is_room, say


class PublicInputError(PrivacyError):
    """A public model cannot be opened, or a draw could not end with it; nothing was charged."""


class Unfinished(KeptCosts, Protocol):
    """State that a run keeps of a release it has paid for and not finished."""

    @property
    def begun(self) -> bool:
        """Whether a run on this store made the charge, and nothing of it is released yet."""

    @property
    def drawn_from(self) -> Mapping[str, Any]:
        """What decided the draw when the charge was made."""

    def begin(self, drawn_from: Mapping[str, Any] | None = None) -> None:
        """Marks, on disk, that a run on this store makes the charge; before that is on disk."""

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


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A freshly drawn release: facts as JSON values, rows and files, with their cost."""

    facts: Mapping[str, Any]
    rows: pl.DataFrame | None
    cost: Cost
    files: Path | None = None

    def __post_init__(self) -> None:
        """Writes NumPy values and tuples among the facts as they will be read back."""
        object.__setattr__(self, "facts", plain_json(dict(self.facts)))


def release_once(  # noqa: PLR0913 - one call says all there is to a release
    *,
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease],
    draw: Callable[[Reservation], Drawn],
    passes: Callable[[Reservation], Unfinished] | None = None,
    drawn_from: Callable[[], Mapping[str, Any]] = dict,
    prepare: Callable[[], Room] | None = None,
    rests_on: Callable[[], Mapping[str, Any]] | None = None,
) -> StoredRelease:
    """Runs a mechanism exactly once for its payment.

    Args:
        ledger: Charged before `draw` is called.
        store: Where the value is kept, addressed by the reservation.
        request: What is asked for; its identity decides reuse.
        terms: The cohort's budget.
        plan: Every release the dataset file declares, for fixed-plan accounting.
        draw: Reads private data with the reservation it is given and returns the release.
        passes: What an unfinished run kept of a reservation, for a mechanism that can resume where
            a killed run stopped. Its charge is then used, not repeated: what that run drew and
            did not keep was seen by nobody.
        drawn_from: States all that decides what is drawn and is not in the request, as JSON values:
            kept with the charge, and equal where it is resumed. `records` among them is private.
        prepare: Opens the public models that the draw needs and checks what is public about it,
            where a draw is about to begin: what cannot be loaded, or could not end, costs nothing,
            and its message is shown. Returns what the release takes of the disks at most, which
            has to be free before a charge.
        rests_on: States what `prepare` has tested that the label must name; kept with the charge,
            and no part of the release's identity.

    Raises:
        PrivacyError: If the budget, the plan or the declaration refuses; nothing private was read.
        UnaccountedReleaseError: If the mechanism's cost differs from what was charged; the value
            is discarded and the charge stands.
    """
    with alone(request.key(terms.relation, terms.unit), ledger.url, lambda: _say_waiting(request)):
        _commit_stored_values(ledger, store, request, passes)
        reservation = _interrupted(ledger, store, request, passes, drawn_from)
        if reservation is None:
            expect_consent(ledger, request, terms, plan)
            _check_room(ledger, store, request, terms, plan)
            if _prepare(ledger, store, request, terms, plan, prepare) and rests_on is not None:
                request = request.resting_on(rests_on())
            begin = _marked(ledger, request, terms, plan, passes, drawn_from)
            reservation = ledger.reserve(request, terms, plan, begin)
            if not reservation.reused:
                _say_what_was_edited(ledger, request, reservation)
        elif prepare is not None:
            _prepare_in_public(request, prepare)
        if reservation.reused:
            facts, rows = store.load(reservation.id)
            _assert_unaltered(store, reservation)
            return StoredRelease(
                reservation=reservation,
                facts=facts,
                rows=rows,
                digest=str(reservation.artifact_digest),
            )
        return _drawn_and_committed(ledger, store, request, reservation, draw, passes)


def _drawn_and_committed(
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    reservation: Reservation,
    draw: Callable[[Reservation], Drawn],
    passes: Callable[[Reservation], Unfinished] | None,
) -> StoredRelease:
    kept = passes(reservation) if passes is not None else None
    drawn = draw(reservation)
    _assert_cost_was_charged(drawn.cost, request)
    if store.has(reservation.id):
        return _first_stored(ledger, store, request, reservation)
    _keep_cost(kept, request, drawn)
    digest, path = _stored(store, request, reservation, drawn)
    realised, content = (
        drawn.cost.ex_post_epsilon,
        told_content(drawn.facts, drawn.rows, drawn.files),
    )
    _commit(
        ledger, request, reservation, digest, path, realised, content, cost_is_kept=kept is not None
    )
    if kept is not None:
        kept.remove()
    return StoredRelease(
        reservation=reservation, facts=dict(drawn.facts), rows=drawn.rows, digest=digest
    )


def _keep_cost(kept: Unfinished | None, request: ReleaseRequest, drawn: Drawn) -> None:
    epsilon = drawn.cost.ex_post_epsilon
    if kept is None or epsilon is None:
        return
    once_there_is_room(
        lambda: keep_realised_cost(kept, drawn.facts, drawn.rows, epsilon),
        f"{request.asset} is drawn and paid for.",
    )


def _first_stored(
    ledger: Ledger, store: StoredReleases, request: ReleaseRequest, reservation: Reservation
) -> StoredRelease:
    """Uses what a run that was taken for dead has stored under this very charge.

    That happens where the lock was lost, as when its server was started anew. One charge pays for
    one value: the first that was stored; what this run drew was seen by nobody.
    """
    if request.guarantee == GuaranteeType.EX_POST:
        raise PrivacyError(
            f"Another run has stored {request.asset} under the same charge. Run again to use it."
        )
    digest, path = store.digest(reservation.id), str(store.folder(reservation.id))
    facts, rows = store.load(reservation.id)
    content = told_content(facts, rows, store.files(reservation.id))
    _commit(ledger, request, reservation, digest, path, None, content, cost_is_kept=False)
    return StoredRelease(reservation=reservation, facts=facts, rows=rows, digest=digest)


def _check_room(
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease],
) -> None:
    """Refuses before the charge where the value could not be kept; a reuse only reads."""
    try:
        store.check_room(Room(), ledger=_ledger_folder(ledger))
    except StoreUnavailableError:
        if not ledger.preview(request, terms, plan).reused:
            raise


def _ledger_folder(ledger: Ledger) -> Path | None:
    file = sqlite_path(ledger.url)
    return None if file is None else file.parent


def _prepare(
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease],
    prepare: Callable[[], Room] | None,
) -> bool:
    """Opens what a draw needs and asks for its room; False where nothing will be drawn."""
    if prepare is None:
        return False
    expected = ledger.preview(request, terms, plan)
    if expected.reused or expected.refusal is not None:
        return False
    room = _prepare_in_public(request, prepare)
    store.check_room(room, ledger=_ledger_folder(ledger))
    return True


def _prepare_in_public(request: ReleaseRequest, prepare: Callable[[], Room]) -> Room:
    try:
        return prepare()
    except Exception as error:  # Nothing private was read: its message may be shown.
        raise PublicInputError(f"{request.asset}: {error}") from error


def _stored(
    store: StoredReleases, request: ReleaseRequest, reservation: Reservation, drawn: Drawn
) -> tuple[str, str]:
    """Stores what was drawn, waiting for room: the charge is spent, the value is only here.

    Raises:
        StoreUnavailableError: The patience ended; the charge stands.
    """
    try:
        return once_there_is_room(
            lambda: store.save(reservation.id, dict(drawn.facts), drawn.rows, drawn.files),
            f"{request.asset} is drawn and paid for.",
        )
    except StoreUnavailableError as problem:
        raise StoreUnavailableError(
            f"{problem} The charge of {request.asset} stands and its value is lost."
        ) from None


def _commit(
    ledger: Ledger,
    request: ReleaseRequest,
    reservation: Reservation,
    digest: str,
    path: str,
    ex_post_epsilon: float | None,
    content: Mapping[str, Any],
    *,
    cost_is_kept: bool,
) -> None:
    """Commits a stored value; if the ledger is gone, says that nothing is lost."""
    try:
        ledger.commit(
            reservation,
            artifact_digest=digest,
            artifact_uri=path,
            ex_post_epsilon=ex_post_epsilon,
            content=content,
        )
    except LedgerIntegrityError:
        raise
    except PrivacyError as problem:
        if request.guarantee == GuaranteeType.EX_POST and not cost_is_kept:
            raise  # Its realised cost ends with this run, so the value cannot be used.
        raise PrivacyError(
            f"{problem} The value of {request.asset} is stored and paid for: run again, and it is "
            "committed at no further charge."
        ) from None


def _say_waiting(request: ReleaseRequest) -> None:
    say(
        f"Another run is drawing {request.asset}, release {request.release!r}. This one waits and "
        "then uses that value: nothing is paid twice. Terminate either of them at will."
    )


def _say_what_was_edited(ledger: Ledger, request: ReleaseRequest, reservation: Reservation) -> None:
    """Names what differs from the last release of the same name, where this one pays again."""
    if request.event is None or is_post_processing(request.event):
        return
    earlier = ledger.last_of_name(request, reservation.id)
    edited = [] if earlier is None else edited_parts(earlier, request)
    if edited:
        say(
            f"{request.asset} was paid for before as release {request.release!r}, under another "
            f"declaration: {', '.join(edited)} differed. This is another "
            "release, and it was charged beside the earlier one."
        )


def _interrupted(
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    passes: Callable[[Reservation], Unfinished] | None,
    drawn_from: Callable[[], Mapping[str, Any]],
) -> Reservation | None:
    """Finds the charge of a run of this very request that did not live to store its value.

    The mark of a draw is on disk before its charge is (`_marked`), so wherever the run was killed:

    - before the mark: no charge, no mark; the request is charged once, by the next run;
    - between mark and charge: a mark of a reservation that the ledger does not know. It is not
      among the pending ones, so the next run charges, once;
    - between the charge and the first noise: charge and mark. The next run draws under the charge,
      from nothing, and nothing was drawn before;
    - in the draw: charge, mark and kept passes. The kept passes are used, and what was drawn and
      not kept was seen by nobody;
    - after the value was stored: `_commit_stored_values` has committed it, at no charge.

    A charge without a mark here was made on another sensitive store, whose progress may have
    reported draws that it kept: other draws under its charge would be a second release, so it is
    charged anew. So is an ex-post value that was stored there: its realised cost, without which it
    cannot be labelled, was kept there.

    What is kept was drawn from the records as they were divided then. The rest of the draw has to
    be of the same division, or a record is drawn from more often than was paid for. So whatever
    decides the draw is compared, and a change is refused before a record is read.
    """
    if passes is None:
        return None
    lost = request.guarantee == GuaranteeType.EX_POST
    for reservation in ledger.pending(request):
        kept = passes(reservation)
        if kept.begun and not (lost and store.has(reservation.id)):
            refuse_changed(request, kept.drawn_from, plain_json(dict(drawn_from())))
            return reservation
    return None


def _marked(
    ledger: Ledger,
    request: ReleaseRequest,
    terms: BudgetTerms,
    plan: Sequence[PlannedRelease],
    passes: Callable[[Reservation], Unfinished] | None,
    drawn_from: Callable[[], Mapping[str, Any]],
) -> Callable[[Reservation], None] | None:
    """Marks a draw before its charge is on disk; a mark without a charge pays for nothing."""
    if passes is None:
        return None
    # What admits a charge seldom waits for anything else: the ledger is not locked meanwhile.
    expects = ledger.preview(request, terms, plan).admitted
    facts = plain_json(dict(drawn_from())) if expects else None

    def mark(reservation: Reservation) -> None:
        try:
            passes(reservation).begin(plain_json(dict(drawn_from())) if facts is None else facts)
        except OSError as problem:
            raise StoreUnavailableError(
                f"The sensitive store cannot be written ({problem.strerror}). Nothing was charged: "
                "free space there, or check the rights of the folder, and run again."
            ) from None
        except StoreUnavailableError as problem:
            raise StoreUnavailableError(f"{problem} Nothing was charged.") from None

    return mark


def _commit_stored_values(
    ledger: Ledger,
    store: StoredReleases,
    request: ReleaseRequest,
    passes: Callable[[Reservation], Unfinished] | None,
) -> None:
    """Commits what an earlier run stored and paid for, but did not live to commit."""
    ex_post = request.guarantee == GuaranteeType.EX_POST
    for reservation in ledger.pending(request):
        if not store.has(reservation.id):
            continue
        kept = passes(reservation) if ex_post and passes is not None else None
        cost = realised_cost(kept, store, reservation.id) if kept is not None else None
        if ex_post and cost is None:
            continue  # Without its realised cost the value cannot be labelled.
        ledger.commit(
            reservation,
            artifact_digest=store.digest(reservation.id),
            artifact_uri=str(store.folder(reservation.id)),
            ex_post_epsilon=cost,
            content=told_content(*store.load(reservation.id), store.files(reservation.id)),
        )
        if kept is not None:
            kept.remove()
        return


def _assert_unaltered(store: StoredReleases, reservation: Reservation) -> None:
    """A stored value must be the one whose digest the ledger has sealed."""
    if store.digest(reservation.id) != reservation.artifact_digest:
        raise LedgerIntegrityError(
            f"Expected the stored release {reservation.id} as the ledger recorded it, got altered "
            "files. Restore its folder from a backup, or ask for a new release by name, which pays."
        )


def _assert_cost_was_charged(cost: Cost, request: ReleaseRequest) -> None:
    if cost.guarantee != request.guarantee or cost.event != request.event:
        raise UnaccountedReleaseError(
            f"Expected {request.asset} to cost what was charged before private data was read, "
            "got a release with another cost. The value was discarded and the charge stands; "
            "report the mechanism."
        )


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
