"""Keeps the memory of a process that holds records from being written to a disk."""

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

_PR_SET_DUMPABLE = 4

COPIES_WHILE_READING = 6
"""Room asked for, in sizes of the file: 480 MB of CSV did not fit 3 GB less the libraries."""


def address_space_left() -> int | None:
    """Bytes that this process may still map; None where no limit is set."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * resource.getpagesize()


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
