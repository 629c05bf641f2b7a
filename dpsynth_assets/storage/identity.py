"""Versions of declarations, texts and arrays: equal ones give equal versions."""

import hashlib
import json
from collections.abc import Iterable
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
