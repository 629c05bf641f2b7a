"""Files that change whole, locks, and folders for their owner alone.

`replaced` and `alone` stand in the kernel, which imports nothing of ours: the ledger uses them.
"""

import fcntl
import os
from pathlib import Path

from dpsynth_assets.privacy.ledger.replacing import alone, flush, owner_folder, replaced

__all__ = ["alone", "flush", "is_held", "owner_folder", "replaced", "write_whole"]


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Replaces a file, in a folder that is made if need be, both for their owner alone.

    Args:
        path: The file; see `replaced`.
        content: Text is written as UTF-8.
    """
    with replaced(owner_folder(path.parent) / path.name) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def is_held(place: Path) -> bool:
    """Says whether any process holds a lock on a file or a folder.

    Raises:
        OSError: It is not there, or is a link.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
