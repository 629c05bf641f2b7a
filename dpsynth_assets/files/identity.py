"""Versions of declarations, texts and arrays: equal ones give equal versions."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel


def version_of(*parts: Any) -> str:
    """Short digest of declarations: equal declarations give equal versions."""
    canonical = json.dumps([_plain(part) for part in parts], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def version_of_texts(texts: Iterable[str]) -> str:
    """Digest of texts in order: equal texts give equal versions."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8))
        digest.update(encoded)
    return digest.hexdigest()


def _plain(part: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_dump(mode="json")
    if isinstance(part, list | tuple):
        return [_plain(item) for item in part]
    return part


def array_version(values: np.ndarray) -> str:
    """Digest of a public array: part of the identity of what is released over it."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def folder_version(folder: Path) -> str:
    """Digest of the names and bytes of all files below a public folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = [(str(path.relative_to(folder)), _file_digest(path, *_state(path))) for path in files]
    return version_of(parts)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@lru_cache(maxsize=1024)
def _file_digest(path: Path, size: int, changed: int) -> str:
    """Digest of a file, computed once for as long as its size and time of change stay."""
    del size, changed
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
