"""Redacts errors that may quote private data to one line, and prevents core dumps."""

import contextlib
import ctypes
import errno
import os
import resource
import sys
from collections.abc import Iterator

from dpsynth_assets.privacy.errors import PrivacyError

_PR_SET_DUMPABLE = 4

SHOW = "DPSYNTH_SHOW_PRIVATE_ERRORS"
"""Environment variable: 1 shows such errors behind the line, where they may be logged."""

_OF_THE_MACHINE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EFBIG,
}
"""Failures of a disk, whose names say nothing about records."""

_OF_A_DATABASE = "OperationalError"
"""Type name: of SQLite, and of SQLAlchemy over it or a server."""

_OUT_OF_MEMORY = {"MemoryError", "OutOfMemoryError"}
"""Type names: PyTorch has one of its own."""


def redacted(name: str, error: BaseException) -> str:
    """Names a fault of the machine, with its remedy; of any other error its type alone.

    Args:
        name: What failed, in public words.
        error: Its text, and those of what it is chained to, are not quoted.
    """
    kind = type(error).__name__
    if is_out_of_memory(error):
        return (
            f"{name} failed: out of memory. Choose smaller batches or a smaller model, or a "
            "machine with more memory, and run again: what was stored is used."
        )
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return (
            f"{name} failed: {os.strerror(error.errno)}. Free space on the disks of DPSYNTH_HOME "
            "and the source, or check permissions, and run again: what was stored is used."
        )
    if kind == _OF_A_DATABASE:
        return (
            f"{name} failed: a database cannot be read or written (its message is withheld). Check "
            "the free space on the disk of DPSYNTH_HOME, a limit on the size of files (`ulimit "
            "-f`) and, with PostgreSQL, at the server, and run again: what was stored is used."
        )
    return (
        f"{name} failed with {kind}. Its message is withheld because it may quote private data; "
        "run `dpsynth datasets check` on the dataset file, or set DPSYNTH_SHOW_PRIVATE_ERRORS=1 "
        "on a machine where private text may be logged."
    )


@contextlib.contextmanager
def withheld(name: str, remedy: str) -> Iterator[None]:
    """Replaces an error that may quote private text by one line that does not.

    Args:
        name: What failed, in public words.
        remedy: What became of its charge.

    Raises:
        PrivacyError: That line, or the block's own refusal, which holds no content of records.
    """
    try:
        yield
    except PrivacyError:
        raise
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        line = f"{redacted(name, error)} {remedy}"
        raise PrivacyError(line) from (error if may_be_shown() else None)


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether the memory of the machine or of a device did not suffice."""
    return type(error).__name__ in _OUT_OF_MEMORY


def may_be_shown() -> bool:
    """Says whether private text may be shown in errors."""
    return os.environ.get(SHOW) == "1"


def keep_out_of_core_dumps() -> None:
    """Forbids core dumps of this process, and other processes of the user to read its memory.

    The limit alone is not enough where the kernel hands cores to a program; the flag is not
    inherited by programs that this one starts, so each process that holds records calls this.
    Does nothing where the system has no such switch.

    **Source** prctl(2) and core(5) of the Linux manual.
    """
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
