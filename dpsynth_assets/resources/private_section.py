"""Redaction of failures: nothing from private sections is shown, everything from public ones."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.memory import keep_out_of_core_dumps

_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
"""Failures of a disk, whose names say nothing about records."""


@contextmanager
def private_section(name: str) -> Iterator[None]:
    """Lets refusals through and hides every other error: its text may quote private data.

    The process holds records from here on, so no core of it is dumped.
    """
    keep_out_of_core_dumps()
    try:
        yield
    except (PrivacyError, SourceError) as refusal:  # Their messages hold no content of records.
        raise dg.Failure(description=str(refusal), allow_retries=False) from None
    except dg.Failure:
        raise
    except OSError as error:
        raise dg.Failure(description=_os_failure(name, error), allow_retries=False) from (
            error if _may_show_private_errors() else None
        )
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        raise dg.Failure(description=_withheld(name, error), allow_retries=False) from (
            error if _may_show_private_errors() else None
        )


@contextmanager
def public_section(name: str) -> Iterator[None]:
    """Shows an error's own message, which redaction of user code would hide: nothing is private."""
    try:
        yield
    except dg.Failure:
        raise
    except Exception as error:
        raise dg.Failure(description=f"{name}: {error}", allow_retries=False) from error


def _withheld(name: str, error: Exception) -> str:
    return (
        f"{name} failed with {type(error).__name__}. Its message is withheld because it "
        "may quote private data; run `dpsynth datasets check` on the dataset file, or "
        "set DPSYNTH_SHOW_PRIVATE_ERRORS=1 on a machine where private text may be logged."
    )


def _os_failure(name: str, error: OSError) -> str:
    """Names a fault of the machine; a file's name is left out, and so is everything else."""
    if error.errno not in _OF_THE_MACHINE:
        return _withheld(name, error)
    return (
        f"{name} failed: {os.strerror(error.errno)}. Free space on the disks of DPSYNTH_HOME "
        "and the source, or check their rights, and run again: what was stored is used."
    )


def _may_show_private_errors() -> bool:
    return os.environ.get("DPSYNTH_SHOW_PRIVATE_ERRORS") == "1"
