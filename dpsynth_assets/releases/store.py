"""Immutable values of DP releases, addressed by the reservation that paid for them.

A retry, a backfill or a re-materialisation loads the stored release; noise is never drawn twice
for one payment. A value stored by a run that died before its commit is found here and committed.
The store is a folder or, where many machines share it, a prefix of an object store.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.paths import Folder, home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.storage.whole_folders import (
    MARKER,
    download_whole,
    file_names,
    written_whole,
)

LEAST_FREE_BYTES = 16 << 20
"""With less space than this nothing is drawn, since it could not be kept."""


PATIENCE_SECONDS = 600.0
"""Default of DPSYNTH_STORE_PATIENCE_SECONDS."""


class StoreUnavailableError(PrivacyError):
    """The store cannot be read or written: full, read-only, out of reach, or altered by hand."""


class StoredReleases:
    """Content of releases: one folder per reservation, JSON facts and Parquet rows."""

    def __init__(self, base: Folder) -> None:
        """Names the folder; it is made when the first release is stored."""
        self._base_folder = base

    @property
    def base(self) -> Folder:
        """Folder or prefix of all releases."""
        return self._base_folder

    @property
    def patience_seconds(self) -> float:
        """Time that a run keeps a drawn value while the store is full, so that room is made."""
        return float(os.environ.get("DPSYNTH_STORE_PATIENCE_SECONDS", PATIENCE_SECONDS))

    def folder(self, reservation_id: str) -> Any:
        """Folder of one release (a `Folder`); it exists only once the release is complete."""
        return self.base / reservation_id

    def has(self, reservation_id: str) -> bool:
        """Says whether the release was stored completely."""
        folder = self.folder(reservation_id)
        if isinstance(folder, Path):
            return folder.is_dir()
        with self._reachable("read"):
            return bool((folder / MARKER).exists())

    def check_room(self) -> None:
        """Refuses, before anything is charged, where a value could not be stored.

        Raises:
            StoreUnavailableError: The store is full, read-only or out of reach.
        """
        base = self.base
        with self._reachable("written"):
            if not isinstance(base, Path):
                base.fs.pipe_file((base / ".probe").path, b"")
                return
            base.mkdir(parents=True, exist_ok=True)
            disk = os.statvfs(base)
        free = disk.f_bavail * disk.f_frsize
        if disk.f_flag & os.ST_RDONLY or not os.access(base, os.W_OK):
            raise StoreUnavailableError(
                f"The release store at {base} is read-only. Nothing was charged: make it writable, "
                "or name another place in DPSYNTH_HOME or DPSYNTH_STORE_URL, and run again."
            )
        if free < LEAST_FREE_BYTES:
            raise StoreUnavailableError(
                f"The release store at {base} has {free >> 20} MiB left, expected at least "
                f"{LEAST_FREE_BYTES >> 20}. Nothing was charged: free space there and run again."
            )

    def save(
        self,
        reservation_id: str,
        facts: dict[str, Any],
        rows: pl.DataFrame | None = None,
        files: Path | None = None,
    ) -> tuple[str, str]:
        """Stores a release, whole or not at all; returns its SHA-256 digest and its address.

        Args:
            reservation_id: The charge that paid for it.
            facts: JSON values.
            rows: Rows of a corpus.
            files: Folder of released files, copied as it is.

        Raises:
            StoreUnavailableError: The store is full or out of reach; nothing is left there.
        """
        final = self.folder(reservation_id)
        with self._reachable("written"), written_whole(final) as temporary:
            (temporary / "facts.json").write_text(json.dumps(facts, sort_keys=True))
            if rows is not None:
                with (temporary / "rows.parquet").open("wb") as file:
                    rows.write_parquet(file)
            if files is not None:
                shutil.copytree(files, temporary / "files", copy_function=shutil.copyfile)
        return self.digest(reservation_id), str(final)

    def load(self, reservation_id: str) -> tuple[dict[str, Any], pl.DataFrame | None]:
        """Loads facts and rows of a stored release.

        Raises:
            StoreUnavailableError: It is not there, or the store is out of reach.
        """
        folder = self.folder(reservation_id)
        if not self.has(reservation_id):
            raise StoreUnavailableError(
                f"Expected the stored release {reservation_id} in {self.base}, got nothing. "
                "Restore the folder from a backup, or ask for a new release by name, which pays."
            )
        with self._reachable("read"):
            facts = json.loads((folder / "facts.json").read_text())
            if "rows.parquet" not in file_names(folder):
                return facts, None
            with (folder / "rows.parquet").open("rb") as file:
                return facts, pl.read_parquet(file)

    def digest(self, reservation_id: str) -> str:
        """SHA-256 over the names and bytes of the release's files: the same in every store."""
        digest = hashlib.sha256()
        folder = self.folder(reservation_id)
        with self._reachable("read"):
            for name in file_names(folder):
                if name != MARKER:
                    digest.update(name.encode())
                    digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        return digest.hexdigest()

    def files(self, reservation_id: str) -> Path:
        """Local folder of a release's files; it does not exist for a release without any.

        From an object store they are copied once, each compared with the digest stored with it.
        """
        folder = self.folder(reservation_id)
        if isinstance(folder, Path):
            return folder / "files"
        with self._reachable("read"):
            return download_whole(folder, home().release_cache / reservation_id) / "files"

    @contextmanager
    def _reachable(self, done: str) -> Iterator[None]:
        """Turns what a disk or an object store may raise into one line; nothing there is private.

        Libraries of object stores raise kinds of their own, so there every kind is taken for one.
        """
        remote = not isinstance(self.base, Path)
        try:
            yield
        except PrivacyError:
            raise
        except Exception as error:
            if not remote and not isinstance(error, OSError):
                raise
            raise StoreUnavailableError(
                f"The release store at {self.base} cannot be {done} ({_reason(error)}). "
                f"{_remedy(error, remote)}"
            ) from None


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else type(error).__name__


def _remedy(error: Exception, remote: bool) -> str:
    if isinstance(error, ImportError):
        return "Install the extra `s3` or `gcs` of dpsynth_assets."
    if remote:
        return "Check the address, the credentials and the network, and run again."
    return "Free space, or check the rights of the folder, and run again."
