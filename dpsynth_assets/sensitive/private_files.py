"""The files of a sensitive store: for their owner alone, whole or absent, encrypted where a key is.

A store is a local folder (`PrivateFiles`, mode 0600) or a prefix of an object store
(`sealed_objects.SealedObjects`). What reads and writes private files goes through one of them and
asks nothing of the place itself. The place below the root is part of what encryption seals.
"""

import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.files.kept import ARRAY, TABLE
from dpsynth_assets.files.whole import flush_all, is_held, write_whole
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger.replacing import alone, flush, owner_folder, replaced
from dpsynth_assets.sensitive.sealing import SealingKey, SensitiveKeyError, is_sealed, sealing_key

Content = bytes | memoryview


MEMORY = Path("/dev/shm")  # noqa: S108 - a disk in memory, where folders are made by mkdtemp
"""Where plain files of an encrypted store may be while code that wants a path works on them."""

_PREFIX = "dpsynth-plain-"

_locks: dict[Path, int] = {}
"""Open descriptors whose locks say that this process still uses its plain folders."""


class PrivateFiles:
    """Files below a local folder."""

    def __init__(self, root: Any) -> None:
        """Names the root, which has to exist once something is written."""
        self._root = root

    def write(self, path: Any, content: Content, *, only_if_absent: bool = False) -> None:
        """Writes a file, which is there once it is whole, permanently.

        Args:
            path: Place below the root.
            content: What it holds.
            only_if_absent: Leave a file that is already there, also when another process or
                another machine was first.
        """
        key = sealing_key()
        with replaced(path, only_if_absent=only_if_absent) as new, new.open("wb") as file:
            if key is None:
                file.write(content)
            else:
                key.seal(io.BytesIO(content), file, self._name(path))

    def read(self, path: Any) -> bytes:
        """Reads a file whole; a sealed one is decrypted in memory alone.

        Raises:
            SensitiveKeyError: The file is sealed and there is no key, or not the right one, or
                there is a key and the file is not sealed.
        """
        key = sealing_key()
        with path.open("rb") as file:
            if key is not None:
                return key.open(file, self._name(path))
            if not is_sealed(file):
                file.seek(0)
                content: bytes = file.read()
                return content
        raise SensitiveKeyError(
            f"Expected the key of the encrypted file {self._name(path)}, got none. Export "
            "DPSYNTH_SENSITIVE_KEY, or run `dpsynth purge` and materialise private_records again."
        )

    def text(self, path: Any) -> str | None:
        """Reads a short file; None where there is none."""
        return self.read(path).decode() if self.exists(path) else None

    def json(self, path: Any) -> Any:
        """Reads JSON values; None where there are none."""
        written = self.text(path)
        return None if written is None else json.loads(written)

    def write_json(self, path: Any, values: Any, *, only_if_absent: bool = False) -> None:
        """Writes JSON values; see `write`."""
        self.write(path, json.dumps(values).encode(), only_if_absent=only_if_absent)

    def write_array(self, path: Any, values: np.ndarray) -> None:
        """Writes a NumPy file."""
        self.write(path, ARRAY.write(values))

    def write_table(self, path: Any, table: pl.DataFrame) -> None:
        """Writes a Parquet file."""
        self.write(path, TABLE.write(table))

    def read_table(self, path: Any) -> pl.DataFrame:
        """Reads a Parquet file.

        Raises:
            PrivacyError: A digest is next to it, and is that of another content.
        """
        content, noted = self.read(path), self.text(path.with_suffix(".digest"))
        if noted is not None and hashlib.sha256(content).hexdigest() != noted:
            raise PrivacyError(
                f"Expected {path.name} of {path.parent.name!r} in the sensitive store as it was "
                "written, got other content. Materialise private_records again: an open charge is "
                "continued."
            )
        return pl.read_parquet(io.BytesIO(content))

    def read_array(self, path: Any) -> np.ndarray:
        """Reads a NumPy file: mapped (changes stay in memory) without a key, else decrypted."""
        if sealing_key() is None:
            with path.open("rb") as file:
                plain = not is_sealed(file)
            if plain:
                return np.load(path, mmap_mode="c", allow_pickle=False)
        return np.load(io.BytesIO(self.read(path)), allow_pickle=False)

    def exists(self, path: Any) -> bool:
        """Says whether there is a file."""
        return bool(path.exists())

    def matching(self, folder: Any, pattern: str) -> list[Any]:
        """Files and folders directly in a folder, by a pattern of their names; sorted."""
        return sorted(folder.glob(pattern))

    def is_folder(self, place: Any) -> bool:
        """Says whether anything is in a folder of this name."""
        return bool(place.is_dir())

    def make_folder(self, *folders: Any) -> None:
        """Makes folders of mode 0700, each with those above it, where files need one."""
        for folder in folders:
            owner_folder(folder).chmod(0o700)

    def begin_folder(self, folder: Any) -> None:
        """Makes a folder that `has_begun` finds, also after a crash of the machine."""
        for made in (folder.parent, folder):
            made.mkdir(exist_ok=True, mode=0o700)
            flush(made.parent)

    def has_begun(self, folder: Any) -> bool:
        """Says whether `begin_folder` was called, and the folder was not removed since."""
        return bool(folder.is_dir())

    def remove(self, place: Any) -> None:
        """Removes a file, or a folder with all in it, if it is there."""
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def discard(self, folder: Any) -> None:
        """Removes a folder that is no longer read; what cannot be removed stays, unsaid."""
        shutil.rmtree(folder, ignore_errors=True)

    def withdraw(self, folder: Any) -> None:
        """Removes a folder of `begin_folder`, which `has_begun` misses before any file is gone."""
        aside = folder.with_name(f".{folder.name.lstrip('.')}")
        with suppress(FileNotFoundError):  # Removed by somebody else.
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def last_written(self, place: Any) -> float:
        """When a file, or the newest one in a folder, was written: seconds since 1970."""
        return max(each.lstat().st_mtime for each in (place, *place.rglob("*")))

    def alone(self, place: Any) -> AbstractContextManager[None]:
        """Holds a lock, which a kill releases: one process at a time is in such a block."""
        return alone(place)

    def hidden_name(self, text: str) -> str:
        """A name for what a private text stands for; others learn nothing from it."""
        return text  # Names of files here are for their owner alone, too.

    def is_whole(self, stored: Any) -> bool:
        """Says whether `store_folder` came to its end for this folder."""
        return bool(stored.is_dir())  # It came by one rename.

    def store_folder(self, plain: Path, target: Any) -> None:
        """Makes `target` hold the files of folder `plain`, whole or not at all; removes `plain`.

        Without a key the folder itself is renamed; with one its files are sealed.
        """
        key = sealing_key()
        ready = plain if key is None else self._sealed_beside(key, plain, target)
        for path in (*ready.rglob("*"), ready):
            path.chmod(0o700 if path.is_dir() else 0o600)
        flush_all(ready)
        ready.replace(target)
        flush(target.parent)
        shutil.rmtree(plain, ignore_errors=True)

    def open_folder(self, stored: Any, plain: Path) -> Path:
        """Gives the files of a stored folder in a local one: `plain`, where they are decrypted."""
        if sealing_key() is None:
            return Path(stored)
        for path in sorted(stored.rglob("*")):
            if path.is_file():
                write_whole(plain / path.relative_to(stored), self.read(path))
        return plain

    def _sealed_beside(self, key: SealingKey, plain: Path, target: Path) -> Path:
        """Seals each file under the name it will have once the folder is renamed to `target`."""
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        beside.mkdir(mode=0o700)
        for path in sorted(plain.rglob("*")):
            if path.is_file():
                place = beside / path.relative_to(plain)
                name = self._name(target / path.relative_to(plain))
                owner_folder(place.parent)
                with path.open("rb") as source, place.open("wb") as sealed:
                    key.seal(source, sealed, name)
        return beside

    def _name(self, path: Any) -> str:
        """What a file is sealed under."""
        name: str = path.relative_to(self._root).as_posix()
        return name


class Below:
    """What is kept in one folder of a store."""

    def __init__(self, files: PrivateFiles, folder: Folder) -> None:
        """Names the folder, which is made at the first write."""
        self._files, self._folder = files, folder


def kept_key(files: PrivateFiles, path: Folder) -> bytes:
    """Reads a random key of 32 bytes; makes it where there is none."""
    if not files.exists(path):
        files.make_folder(path.parent)
        files.write(path, secrets.token_bytes(32), only_if_absent=True)
    return files.read(path)


def files_below(root: Folder) -> PrivateFiles:
    """The files of a sensitive store.

    Raises:
        SensitiveKeyError: They are in an object store, and there is no key to seal them with.
    """
    if isinstance(root, Path):
        return PrivateFiles(root)
    from dpsynth_assets.sensitive.sealed_objects import SealedObjects

    return SealedObjects(root)


def plain_folder() -> Path:
    """A new folder of mode 0700 for plain files: in memory where the system has such a disk.

    This process holds a lock on it until `forget_plain_folder`, or until it ends, however it ends,
    so that `abandoned_plain_folders` finds what a killed one left behind. Another container that
    shares the disk sees the lock, but not the process.
    """
    unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=plain_place()))
    lock = os.open(unlocked, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    folder = unlocked.with_name(unlocked.name.removeprefix("."))
    unlocked.rename(folder)  # Under this name it is looked for, and never without its lock.
    _locks[folder] = lock
    return folder


def forget_plain_folder(folder: Path) -> None:
    """Removes a folder of this process, then lets go of its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    os.close(_locks.pop(folder))


def abandoned_plain_folders() -> list[Path]:
    """Plain folders of this user whose process is gone."""
    left = plain_place().glob(f"{_PREFIX}*")
    mine = [path for path in left if path.lstat().st_uid == os.geteuid()]
    return [path for path in mine if path.is_dir() and not is_held(path)]


def plain_place() -> Path:
    """Where plain folders are made: memory, or the system's temporary folder."""
    return MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
