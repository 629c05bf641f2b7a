"""Text files for their owner alone: mode 0600, whole or absent."""

import os
from pathlib import Path


def write_for_owner(path: Path, text: str) -> None:
    """Replaces a file by one of mode 0600; its folder is made for the owner alone if need be.

    Args:
        path: The file. A reader sees the old text or the new one, never a part.
        text: Its content, written as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
