"""Immutable values of DP releases, addressed by the reservation that paid for them.

A retry, a backfill or a re-materialisation loads the stored release; noise is never drawn twice
for one payment. A value stored by a run that died before its commit is found here and committed.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from dpsynth_assets.paths import home


class ReleaseStore(dg.ConfigurableResource):
    """Content of releases: one folder per reservation, JSON facts and Parquet rows."""

    root: str = Field(
        default="", description="Folder of the store. Empty: `artifacts/releases` in DPSYNTH_HOME."
    )

    def folder(self, reservation_id: str) -> Path:
        """Folder of one release; it exists only once the release is complete."""
        base = Path(self.root) if self.root else home().artifacts / "releases"
        return base / reservation_id

    def has(self, reservation_id: str) -> bool:
        """Whether the release was stored completely."""
        return self.folder(reservation_id).is_dir()

    def save(
        self,
        reservation_id: str,
        facts: dict[str, Any],
        rows: pl.DataFrame | None = None,
        files: Path | None = None,
    ) -> tuple[str, str]:
        """Stores a release atomically; returns its SHA-256 digest and its path.

        Args:
            reservation_id: The charge that paid for it.
            facts: JSON values.
            rows: Rows of a corpus.
            files: Folder of released files, copied as it is.
        """
        final = self.folder(reservation_id)
        temporary = final.with_name(f".{final.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / "facts.json").write_text(json.dumps(facts, sort_keys=True))
        if rows is not None:
            rows.write_parquet(temporary / "rows.parquet")
        if files is not None:
            shutil.copytree(files, temporary / "files", copy_function=shutil.copyfile)
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        temporary.replace(final)
        flush(final.parent)
        return self.digest(reservation_id), str(final)

    def load(self, reservation_id: str) -> tuple[dict[str, Any], pl.DataFrame | None]:
        """Loads facts and rows of a stored release."""
        folder = self.folder(reservation_id)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"Expected the stored release {reservation_id} in {folder.parent}, got nothing. "
                "Restore the folder from a backup, or ask for a new release by name, which pays."
            )
        rows = folder / "rows.parquet"
        return (
            json.loads((folder / "facts.json").read_text()),
            pl.read_parquet(rows) if rows.exists() else None,
        )

    def digest(self, reservation_id: str) -> str:
        """SHA-256 over the names and bytes of the release's files."""
        digest = hashlib.sha256()
        folder = self.folder(reservation_id)
        names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
        for name, path in sorted(names.items()):
            if path.is_file():
                digest.update(name.encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def files(self, reservation_id: str) -> Path:
        """Folder of a release's files; it does not exist for a release without any."""
        return self.folder(reservation_id) / "files"


def flush(path: Path) -> None:
    """Waits until a file's or a folder's content is on disk: a commit must never outlive it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
