"""What is said of errors whose own text may quote a record."""

import errno
import sqlite3

import pytest

from dpsynth_assets.files.redaction import redacted

NAME = "Ottoline"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "no space", f"/home/{NAME}/letter"), "No space left on device"),
        (OSError(errno.EROFS, "read-only", f"/home/{NAME}/letter"), "Read-only file system"),
        (OSError(errno.EFBIG, "too large", f"/home/{NAME}/letter"), "File too large"),
        (sqlite3.OperationalError(f"disk I/O error of {NAME}"), "a limit on the size of files"),
        (MemoryError(NAME), "out of memory"),
        (FileNotFoundError(errno.ENOENT, "none", f"/home/{NAME}/letter"), "FileNotFoundError"),
        (ValueError(f"{NAME} wrote this"), "ValueError. Its message is withheld"),
        (ExceptionGroup(NAME, [ValueError(NAME)]), "ExceptionGroup"),
    ],
)
def test_a_fault_of_the_machine_is_named_and_nothing_else_is_quoted(error, said):
    error.add_note(NAME)
    line = redacted("letters/step", error)
    assert line.startswith("letters/step failed")
    assert said in line
    assert NAME not in line
    assert "\n" not in line


def test_no_setting_puts_private_text_into_the_line(monkeypatch):
    """The line of a worker goes to another machine, where another setting may hold."""
    monkeypatch.setenv("DPSYNTH_SHOW_PRIVATE_ERRORS", "1")
    assert NAME not in redacted("step", ValueError(f"{NAME}\nwrote"))
