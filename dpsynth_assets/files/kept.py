"""Caches values in files whose names contain a version: a digest of declarations, texts or arrays.

Equal ones give equal versions. A file that cannot be read as what it should be, for any reason,
counts as missing: the value is made again and takes its place. Where nothing can be written the
value is made each time.

A public model's folder lies under `artifacts/public/<base>/<kind>/<version>`: machines that share a
declaration ask for the same folder. Where DPSYNTH_STORE_URL is set, a folder that was made is
copied to `<store>/public/…`, and a machine without it takes it from there: every file is compared
with the digest stored with it. Without that variable machines need a disk in common.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
from pydantic import BaseModel

from dpsynth_assets.files.whole import MARKER, download_whole, write_whole, written_whole
from dpsynth_assets.paths import Folder, home
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
def _file_digest(path: Path, _size: int, _changed: int) -> str:
    """Digest of a file, computed once for as long as its size and time of change stay."""
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

_BELOW, _PARTS = ("artifacts", "public"), 3
"""A model's folder is named by base, kind and version below these two."""


def model_folder(base: str, kind: str, version: str) -> Path:
    """Folder of a model of this version on this machine, copied from the store if it is there.

    Raises:
        OSError: A file in the store is not the one that was stored.
    """
    return _fetched(home().public_models / base / kind / version)


def made_folder(base: str, kind: str, version: str, make: Callable[[Path], object]) -> Path:
    """Folder of a model of this version: made before, here or on another machine, or made now.

    Args:
        base: Whose it is.
        kind: What it is.
        version: Digest of all that it is made of.
        make: Fills an empty folder, which becomes the model's when it is whole.
    """
    folder = model_folder(base, kind, version)
    if not folder.is_dir():
        _copied(make, folder)
    share(folder)
    return folder


def share(folder: Path) -> None:
    """Copies a model that was made here to the store, unless it is there."""
    place = _shared(folder)
    if place is not None and not _is_there(place):
        _copied(lambda whole: shutil.copytree(folder, whole, dirs_exist_ok=True), place)


def local_copy(path: str) -> str:
    """Folder on this machine of a model that another machine made; other paths stay as they are.

    Args:
        path: What a manifest says: a folder under some machine's `artifacts/public`, any other
            folder, or a name of the hub.
    """
    named = Path(path)
    shared = home().shared_models
    if shared is None or named.is_dir() or named.parts[-_PARTS - 2 : -_PARTS] != _BELOW:
        return path
    return str(_fetched(home().public_models.joinpath(*named.parts[-_PARTS:])))


def _fetched(folder: Path) -> Path:
    place = _shared(folder)
    if place is None or folder.is_dir() or not _is_there(place):
        return folder
    if isinstance(place, Path):
        _copied(lambda whole: shutil.copytree(place, whole, dirs_exist_ok=True), folder)
    else:
        download_whole(place, folder)
    return folder


def _shared(folder: Path) -> Folder | None:
    """Place of a model in the store; None without a store."""
    shared = home().shared_models
    return shared and shared.joinpath(*folder.relative_to(home().public_models).parts)


def _is_there(place: Folder) -> bool:
    return place.is_dir() if isinstance(place, Path) else bool((place / MARKER).exists())


def _copied(write: Callable[[Path], object], place: Folder) -> None:
    """Writes a folder whole; another process that was first wrote the same."""
    try:
        with written_whole(place) as whole:
            write(whole)
    except OSError:
        if not _is_there(place):
            raise
