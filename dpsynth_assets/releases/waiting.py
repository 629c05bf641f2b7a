"""Waiting before and during a draw: for space, locks and servers; no charge without consent.

One run at a time draws a release; a second waits and uses what the first stored (`alone`). Without
that lock two people who launch the same cohort would both pay for the same release, and a retry
could resume the passes of a run that is still alive. A lock lives as long as the process that
holds it: it is the kernel's, or the database server's, and a kill releases it.

What was drawn and paid for is in one process alone, which waits for room (`once_there_is_room`).

`dpsynth run` lists what it would pay for before it begins. What a release is made from (public
models, clusters, earlier releases) is known only when the run comes to it, so a release that looked
paid for may turn out to be another one. In such a run it is refused before the charge. A killed
draw is resumed only where everything that decides it is what it was (`refuse_changed`).
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import (
    Admission,
    ReleaseRequest,
    replacing,
    sqlite_path,
)

LOGGER = "dagster.builtin"
"""Name of the logger that Dagster shows in a run's log."""

PATIENCE_SECONDS = 600.0
"""Default of DPSYNTH_STORE_PATIENCE_SECONDS."""

POLL_SECONDS = 5.0

_FULL = (errno.ENOSPC, errno.EDQUOT)

ResultT = TypeVar("ResultT")


class StoreUnavailableError(PrivacyError):
    """The store cannot be read or written: full, read-only, out of reach, or altered by hand."""


@contextmanager
def reachable(
    store: str, done: str, *, remote: bool, passes: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turns what a disk or an object store may raise into one line that quotes no error.

    Libraries of object stores raise kinds of their own, so there every kind is taken for one.

    Args:
        store: The store and its place, in public words.
        done: What it is to be: read or written.
        remote: Whether it is an object store.
        passes: Errors that mean something else to the caller.

    Raises:
        StoreUnavailableError: That line.
    """
    try:
        yield
    except PrivacyError:
        raise
    except Exception as error:
        if isinstance(error, passes) or not (remote or isinstance(error, OSError)):
            raise
        line = f"{store} cannot be {done} ({_reason(error)}). {_remedy(error, remote)}"
        raise StoreUnavailableError(line) from None


def _reason(error: Exception) -> str:
    if isinstance(error, shutil.Error):  # Of several files: a source, a target and why, each.
        return str(error.args[0][0][2])
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else type(error).__name__


def _remedy(error: Exception, remote: bool) -> str:
    if isinstance(error, ImportError):
        return "Install the extra `s3` or `gcs` of dpsynth_assets."
    if remote:
        return "Check the address, the credentials and the network, and run again."
    return "Free space, or check the permissions of the folder, and run again."


def patience_seconds() -> float:
    """Time that a run keeps what it has drawn while it cannot be stored, so that room is made."""
    return float(os.environ.get("DPSYNTH_STORE_PATIENCE_SECONDS", PATIENCE_SECONDS))


def once_there_is_room(write: Callable[[], ResultT], told: str) -> ResultT:
    """Calls `write` until it succeeds or the patience ends; rests between two calls.

    Args:
        write: Writes all of a value, or leaves nothing behind. Tried again after a
            `StoreUnavailableError` and where a disk is full.
        told: What is said about the value while it waits, in one public sentence.

    Raises:
        StoreUnavailableError: From the last call, once the patience has ended.
        OSError: Likewise; or at once, for anything but a full disk.
    """
    deadline = time.monotonic() + patience_seconds()
    while True:
        try:
            return write()
        except (StoreUnavailableError, OSError) as problem:
            left = deadline - time.monotonic()
            if left <= 0 or (isinstance(problem, OSError) and problem.errno not in _FULL):
                raise
            reason = (
                f"{os.strerror(problem.errno or 0)}." if isinstance(problem, OSError) else problem
            )
            say(
                f"{reason} {told} If you fix this while the run waits, nothing is lost. The run "
                f"tries again for {left / 60:.0f} minutes."
            )
        time.sleep(min(POLL_SECONDS, max(0.1, left)))


def say(message: str) -> None:
    """Shows a public message in the run's log; on the error stream where the log is full, too.

    Dagster's log may be on the very disk that has no room: a message must not end the run.
    """
    try:
        logging.getLogger(LOGGER).warning(message)
    except Exception:  # noqa: BLE001 - storages of other packages raise kinds of their own
        with suppress(OSError):
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()


LOCK_POLL_SECONDS = 1.0
_PURPOSE = "dpsynth draws a release:"


@contextmanager
def alone(key: str, ledger_url: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of one release.

    The ledger that pays keeps the lock, for any store of values: a database server for all
    machines, or a file beside the ledger's file.

    Args:
        key: Identity of the release, as the ledger knows it.
        ledger_url: SQLAlchemy URL of the ledger that is charged.
        waiting: Called once if another process holds the lock.

    Raises:
        PrivacyError: The database server is not available.
    """
    file = sqlite_path(ledger_url)
    if file is None:
        with _server_lock(ledger_url, key, waiting):
            yield
        return
    file = file.resolve()  # A link to the ledger is no other ledger.
    with _file_lock(file.with_name(f".{file.name}.locks"), key, waiting):
        yield


@contextmanager
def _file_lock(folder: Path, key: str, waiting: Callable[[], None]) -> Iterator[None]:
    with ExitStack() as held:
        try:
            place = replacing.owner_folder(folder) / _digest(key).hex()
            held.enter_context(replacing.alone(place, waiting))
        except OSError as error:
            raise PrivacyError(
                f"The ledger's folder {folder.parent} cannot be written ({error.strerror}), and a "
                "readonly ledger cannot be charged. Nothing was charged: check the file, its "
                "permissions and its disk, and run again."
            ) from None
        yield


@contextmanager
def _server_lock(url: str, key: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds an advisory lock of a PostgreSQL session, by a connection of its own."""
    number = int.from_bytes(_digest(key)[:8], "big", signed=True)
    ask = sa.text("SELECT pg_try_advisory_lock(:number)").bindparams(number=number)
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    try:
        connection = engine.connect()
        held = connection.execute(ask).scalar_one()
        if not held:
            waiting()
        while not held:
            time.sleep(LOCK_POLL_SECONDS)
            held = connection.execute(ask).scalar_one()
    except sa.exc.DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise PrivacyError(
            f"The ledger's server cannot be asked for a lock ({reason}). Nothing was charged: "
            "check the server and run again."
        ) from None
    try:
        yield
    finally:
        with suppress(sa.exc.SQLAlchemyError):  # The server may be gone, and the lock with it.
            connection.close()


def _digest(key: str) -> bytes:
    return hashlib.sha256((_PURPOSE + key).encode()).digest()


_agreed: list[frozenset[str]] = []
"""Assets that may be charged, of each run of this process that has a limit; the last one counts."""


class UnagreedChargeError(PrivacyError):
    """A release would be charged without consent; nothing was charged."""


@contextmanager
def paying_only(assets: Collection[str] | None) -> Iterator[None]:
    """Charges no other releases than these while the block runs.

    Args:
        assets: Keys of the assets, as in the ledger; None for no limit.
    """
    if assets is None:
        yield
        return
    _agreed.append(frozenset(assets))
    try:
        yield
    finally:
        _agreed.pop()


def expect_consent(request: ReleaseRequest, expected: Admission) -> None:
    """Refuses a charge without consent; what is reused or free needs no consent.

    Args:
        request: What is asked for.
        expected: What the ledger would answer.

    Raises:
        UnagreedChargeError: The release would be charged, and is not among those agreed to.
    """
    is_free = request.event is not None and is_post_processing(request.event)
    if not _agreed or request.asset in _agreed[-1] or is_free:
        return
    if expected.reused or expected.refusal is not None:
        return
    raise UnagreedChargeError(
        f"Expected a release of {request.asset} that was paid for, got one that would be charged: "
        "its inputs are not those of the earlier one, so it was not in the price that was "
        f"confirmed. It would bring the cohort from ε = {epsilon_up(expected.spent_epsilon)} to "
        f"{epsilon_up(expected.total_epsilon)}. Nothing was charged. Add --yes to pay."
    )


def refuse_changed(
    request: ReleaseRequest, then: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuses to resume a draw that something else decides now, in one line.

    Raises:
        PrivacyError: Names the first field that differs; of `records` neither value.
    """
    found = first_difference(then, now)
    if found is None:
        return
    field, *values = found
    expected, got = (json.dumps(value, ensure_ascii=False)[:80] for value in values)
    if field == "records":
        expected, got = "the records", "others, or in another form"
    raise PrivacyError(
        f"{field}: expected {expected}, as when {request.asset} was charged by a run that was "
        f"killed, got {got}. Nothing was read or charged. Restore it, or ask for a release with "
        f"another name than {request.release!r}, which is charged."
    )


def first_difference(then: Any, now: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Finds where two JSON values differ first, the order of names included.

    Returns:
        The path, and both values there; None where they are equal.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in (*then, *(name for name in now if name not in then)):
            place = f"{path}.{name}".removeprefix(".")
            if (found := first_difference(then.get(name), now.get(name), place)) is not None:
                return found
        return None if list(then) == list(now) else (path, list(then), list(now))
    return None if then == now else (path, then, now)
