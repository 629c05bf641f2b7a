"""Lock by which one run at a time draws a release; a second waits and uses what the first stored.

Without it two people who launch the same cohort would both pay for the same release, and a retry
could resume the passes of a run that is still alive. A lock lives as long as the process that
holds it: it is the kernel's, or the database server's, and a kill releases it.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from dpsynth_assets.paths import Folder, home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import sqlite_path

POLL_SECONDS = 1.0
_PURPOSE = "dpsynth draws a release:"


@contextmanager
def alone(key: str, store: Folder, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of one release.

    A ledger on a database server keeps the lock too, whatever machine asks. Otherwise it is a file
    beside the store, or beside the ledger's file where the store is no disk.

    Args:
        key: Identity of the release, as the ledger knows it.
        store: Where releases are kept.
        waiting: Called once if another process holds the lock.

    Raises:
        PrivacyError: The database server is not available.
    """
    ledger = sqlite_path(home().ledger_url)
    if ledger is None:
        with _server_lock(home().ledger_url, key, waiting):
            yield
        return
    beside = store if isinstance(store, Path) else ledger
    with _file_lock(beside.with_name(f".{beside.name}.locks"), key, waiting):
        yield


@contextmanager
def _file_lock(folder: Path, key: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds an advisory lock of the kernel; the empty file stays, since removing it would race."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / _digest(key).hex(), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
            time.sleep(POLL_SECONDS)
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
