"""Waiting for room on a disk: what was drawn and paid for lies in this process alone."""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dpsynth_assets.privacy.errors import PrivacyError

LOGGER = "dagster.builtin"
"""Name of the logger that Dagster shows in a run's log."""

PATIENCE_SECONDS = 600.0
"""Default of DPSYNTH_STORE_PATIENCE_SECONDS."""

POLL_SECONDS = 5.0

_FULL = (errno.ENOSPC, errno.EDQUOT)

ResultT = TypeVar("ResultT")


class StoreUnavailableError(PrivacyError):
    """The store cannot be read or written: full, read-only, out of reach, or altered by hand."""


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
                f"{reason} {told} Fix this while the run lives and nothing is lost. It tries "
                f"again for {left / 60:.0f} minutes."
            )
        time.sleep(min(POLL_SECONDS, max(0.1, left)))


def say(message: str) -> None:
    """Shows a public message in the run's log; on the error stream where the log is full, too.

    Dagster's log may lie on the very disk that has no room: a message must not end the run.
    """
    try:
        logging.getLogger(LOGGER).warning(message)
    except Exception:  # noqa: BLE001 - storages of other packages raise kinds of their own
        with suppress(OSError):
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()
