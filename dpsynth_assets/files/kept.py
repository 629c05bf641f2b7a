"""Versions of declarations, texts and arrays, and values kept in files that versions name.

Equal ones give equal versions. A file that cannot be read as what it should be, for any reason,
counts as missing: the value is made again and takes its place. Where nothing can be written the
value is made each time.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
from pydantic import BaseModel

from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.privacy.errors import PrivacyError


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


T = TypeVar("T")
Place = TypeVar("Place")


@dataclass(frozen=True)
class Form(Generic[T]):
    """How a value stands in a file: read from its path, written as its bytes."""

    read: Callable[[Path], T]
    write: Callable[[T], bytes]


def found(place: Place, read: Callable[[Place], T]) -> T | None:
    """Reads what is kept; None where nothing is, or nothing that can be read.

    Raises:
        PrivacyError: It is sealed, and the key is not there or another: that is no damage.
    """
    try:
        return read(place)
    except PrivacyError:
        raise
    except Exception:  # noqa: BLE001 - each library has errors of its own for a damaged file
        return None


def kept_file(place: Path, make: Callable[[], T], form: Form[T]) -> T:
    """Gives what is kept, or else makes and keeps it.

    Args:
        place: Named by a digest of all that the value depends on.
        make: Makes the value, which is not None.
        form: How it is read and written.

    Returns:
        The value as it was read back, so the first caller gets what later ones get.
    """
    value = found(place, form.read)
    if value is not None:
        return value
    value = make()
    with suppress(OSError):
        write_whole(place, form.write(value))
        return form.read(place)
    return value


def _table_bytes(table: pl.DataFrame) -> bytes:
    content = io.BytesIO()  # Writing to a file, Polars would raise an error of its own.
    table.write_parquet(content)
    return content.getvalue()


def _array_bytes(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


JSON: Form[Any] = Form(
    lambda place: json.loads(place.read_text(encoding="utf-8")),
    lambda value: (json.dumps(value, indent=1) + "\n").encode(),
)
"""Floats survive exactly."""
TABLE: Form[pl.DataFrame] = Form(pl.read_parquet, _table_bytes)
ARRAY: Form[np.ndarray] = Form(lambda place: np.load(place, allow_pickle=False), _array_bytes)
