"""The sensitive store in an object store (S3, GCS): ciphertext under a prefix of its own.

Every object is sealed on this machine before it leaves, under its place in the store
(`sealing.py`): who reads the bucket sees ciphertext, who alters, cuts or moves an object makes it
unreadable. He still sees names and times, sizes to one eighth (an exact size would tell the
number of records), and may delete an object or put back an older one.

An object store has no folders, no rename and no locks. A folder is there once something lies below
it, or, where it has to be found empty, by an object of its own. A folder of files is whole once the
object that lists them is there, which is written last. A file that must not take the place of
another is written on the condition that there is none (If-None-Match, generation 0), which the
store checks in the same step. The lock is that of the ledger, which all machines share anyhow.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

from dpsynth_assets.files.whole import MARKER, file_digests, file_names, write_whole
from dpsynth_assets.paths import SENSITIVE_VARIABLE, home
from dpsynth_assets.releases.waiting import StoreUnavailableError, alone, reachable
from dpsynth_assets.sensitive.private_files import Content, PrivateFiles
from dpsynth_assets.sensitive.sealing import (
    KEY_VARIABLE,
    SealingKey,
    SensitiveKeyError,
    sealing_key,
)

_BEGUN = ".begun"
_PROBE = ".probe"
_SAYING = frozenset([_BEGUN, MARKER])
"""Objects that say something of their folder, and go before the others of it."""

_LENGTH_BYTES = 8
_LEAST_BYTES = 1 << 12
"""Objects of less than this have one size."""

_proven: set[tuple[str, SealingKey]] = set()
"""Prefixes, and keys, that this process has seen to be fit to be written to."""


class SealedObjects(PrivateFiles):
    """Files below a prefix of an object store."""

    def __init__(self, root: UPath) -> None:
        """Names the prefix.

        Raises:
            SensitiveKeyError: There is no key: nothing would be sealed.
        """
        super().__init__(root)
        self._key = _required_key()

    def write(self, path: UPath, content: Content, *, only_if_absent: bool = False) -> None:
        """Writes a sealed object by one request, after which it is there whole, or not at all."""
        sealed = self._sealed(content, path)
        self._require_fitness()
        (self._create if only_if_absent else self._put)(path, sealed)

    def read(self, path: UPath) -> bytes:
        """Reads and opens an object.

        Raises:
            FileNotFoundError: There is none.
            SensitiveKeyError: It was sealed with another key, was altered, or is not sealed.
            StoreUnavailableError: The store is out of reach.
        """
        with self._reachable("read"):
            content = self._fs.cat_file(path.path)
        return _unpadded(self._key.open(io.BytesIO(content), self._name(path)))

    def read_array(self, path: UPath) -> np.ndarray:
        """Reads a NumPy file into memory."""
        return np.load(io.BytesIO(self.read(path)), allow_pickle=False)

    def exists(self, path: UPath) -> bool:
        """Says whether there is an object; a store out of reach is an error, never a no."""
        with self._reachable("read"):
            try:  # `fs.isfile` takes every error for a no.
                return bool(self._fs.info(path.path)["type"] == "file")
            except FileNotFoundError:
                return False

    def matching(self, folder: UPath, pattern: str) -> list[UPath]:
        """Objects and folders directly in a folder, by a pattern of their names; sorted."""
        names = self._names(folder) - {_BEGUN, _PROBE}
        return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]

    def is_folder(self, place: UPath) -> bool:
        """Says whether any object is in a folder of this name."""
        return bool(self._names(place))

    def make_folder(self, *folders: UPath) -> None:
        """Does nothing: objects need no folder."""

    def begin_folder(self, folder: UPath) -> None:
        """Writes the object by which an empty folder is found."""
        self.write(folder / _BEGUN, b"")

    def has_begun(self, folder: UPath) -> bool:
        """Says whether that object is there; one that somebody else put there does not open."""
        if not self.exists(folder / _BEGUN):
            return False
        self.read(folder / _BEGUN)
        return True

    def remove(self, place: UPath) -> None:
        """Removes an object, or all below a folder, first what says that it is whole or begun."""
        names = self._found(place)
        with self._reachable("written"):
            for name in sorted(names, key=lambda each: each.rpartition("/")[2] not in _SAYING):
                with suppress(FileNotFoundError):
                    self._fs.rm_file(name)

    def discard(self, folder: UPath) -> None:
        """Removes all below a folder, as far as the store is in reach."""
        with suppress(StoreUnavailableError):
            self.remove(folder)

    def withdraw(self, folder: UPath) -> None:
        """Removes a folder, first the object by which it is found."""
        self.remove(folder)

    def last_written(self, place: UPath) -> float:
        """When the newest object of a place was written, by the clock of the store."""
        names = self._found(place)
        with self._reachable("read"):
            return max((self._fs.modified(name).timestamp() for name in names), default=0.0)

    def store_folder(self, plain: Path, target: UPath) -> None:
        """Seals a folder's files one by one, and writes the list of them last, with digests."""
        self._require_fitness()
        listed = json.dumps(file_digests(plain)).encode()
        for name in file_names(plain):
            self._put(target / name, self._sealed((plain / name).read_bytes(), target / name))
        self._put(target / MARKER, self._sealed(listed, target / MARKER))
        shutil.rmtree(plain, ignore_errors=True)

    def open_folder(self, stored: UPath, plain: Path) -> Path:
        """Decrypts the listed files into `plain`, which is made.

        Raises:
            SensitiveKeyError: A file is not the one that was listed, as where two runs wrote.
        """
        for name, digest in json.loads(self.read(stored / MARKER)).items():
            content = self.read(stored / name)
            if hashlib.sha256(content).hexdigest() != digest:
                raise SensitiveKeyError(
                    f"Expected {name} of a stored folder as it was listed, got another file: two "
                    "runs have written it. Run one at a time."
                )
            write_whole(plain / name, content)
        return plain

    def is_whole(self, stored: UPath) -> bool:
        """Says whether the list of files is there."""
        return self.exists(stored / MARKER)

    @contextmanager
    def alone(self, place: UPath) -> Iterator[None]:
        """Holds the lock of the ledger for this place: a kill releases it on any machine.

        A lock object would outlive its holder, and a process that removed an old one might take it
        from a process that is only slow. Machines that share this store share one ledger, or their
        budgets were two; so its lock (of the server, or of its file) is between all of them.
        """
        with alone(f"the sensitive store's {place}", home().ledger_url, lambda: None):
            yield

    def hidden_name(self, text: str) -> str:
        """A keyed hash: who lists the bucket cannot compare it with what he guesses."""
        return self._key.hidden_name(text)

    @property
    def _fs(self) -> Any:
        return self._root.fs

    def _found(self, place: UPath) -> list[str]:
        """Every object of a place, by its full name."""
        with self._reachable("read"):
            try:
                return list(self._fs.find(place.path))
            except FileNotFoundError:
                return []

    def _names(self, folder: UPath) -> set[str]:
        """Names of what lies directly in a folder."""
        own = folder.path.rstrip("/")
        with self._reachable("read"):
            try:
                found = self._fs.ls(own, detail=False)
            except FileNotFoundError:
                return set()
        return {each.rstrip("/").rpartition("/")[2] for each in found if each.rstrip("/") != own}

    def _name(self, path: UPath) -> str:
        """What an object is sealed under: a file of a folder does not open as one."""
        return f"object {path.path.removeprefix(self._root.path.rstrip('/') + '/')}"

    def _sealed(self, plain: Content, path: UPath) -> bytes:
        sealed = io.BytesIO()
        self._key.seal(io.BytesIO(_padded(plain)), sealed, self._name(path))
        return sealed.getvalue()

    def _put(self, path: UPath, content: bytes) -> None:
        with self._reachable("written"):
            self._fs.pipe_file(path.path, content)

    def _create(self, path: UPath, content: bytes) -> bool:
        """Writes an object where there is none; says whether this process was the first."""
        with self._reachable("written"):
            try:
                self._fs.pipe_file(path.path, content, mode="create")
            except FileExistsError:
                return False
            except OSError:  # Two at once: S3 may answer one of them with a conflict.
                if not self.exists(path):
                    raise
                return False
        return True

    def _require_fitness(self) -> None:
        """Refuses, once in a process and before it writes, what would spoil the store.

        A draw marks its charge here before it charges, so this is said before anything is paid.

        Raises:
            SensitiveKeyError: The store was begun with another key: it would hold objects of two.
            StoreUnavailableError: It wrote a second object where there was one: without conditions
                the last writer would win, unseen.
        """
        if (str(self._root), self._key) in _proven:
            return
        probe = self._root / _PROBE
        self._create(probe, self._sealed(b"", probe))
        if self._create(probe, self._sealed(b"", probe)):
            raise StoreUnavailableError(
                f"{SENSITIVE_VARIABLE}: expected an object store that can refuse to overwrite an "
                f"object (If-None-Match), got one at {self._root} that does not. Two machines "
                "could overwrite each other's keys: name another store."
            )
        try:
            self.read(probe)
        except SensitiveKeyError:
            raise SensitiveKeyError(
                f"Expected {KEY_VARIABLE} to be the key that the sensitive store at {self._root} "
                "was created with, got another one. Export that key, or delete every object "
                "below the prefix and materialise private_records again."
            ) from None
        _proven.add((str(self._root), self._key))

    def _reachable(self, done: str) -> AbstractContextManager[None]:
        passes = (FileNotFoundError,) if done == "read" else ()
        store = f"The sensitive store at {self._root}"
        return reachable(store, done, remote=True, passes=passes)


def _padded(content: Content) -> bytes:
    """The content behind its length, with zeros up to a size of four significant bits."""
    length = _LENGTH_BYTES + len(content)
    step = max(_LEAST_BYTES, 1 << max(0, length.bit_length() - 4))
    return b"".join((len(content).to_bytes(_LENGTH_BYTES), content, bytes(-length % step)))


def _unpadded(content: bytes) -> bytes:
    length = int.from_bytes(content[:_LENGTH_BYTES])
    return content[_LENGTH_BYTES : _LENGTH_BYTES + length]


def _required_key() -> SealingKey:
    key = sealing_key()
    if key is None:
        raise SensitiveKeyError(
            f"{KEY_VARIABLE}: expected a key, without which {SENSITIVE_VARIABLE} is refused, got "
            "none: nothing private leaves this machine unencrypted. Make one with `openssl rand "
            "-base64 32`, give it to every machine, and keep it in another place than the store."
        )
    return key
