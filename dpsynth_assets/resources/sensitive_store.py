"""The owner-only store of private intermediates, and the only way to read them.

A mechanism reads with an open reservation in the ledger; internal stages (embedding the records,
scoring against held-out text) read for a stated purpose and may not release what they derive.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import numpy as np
import polars as pl
from pydantic import Field

from dpsynth_assets.methods.base import PrivateInputs
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.resources.release_store import flush

InternalPurpose = Literal["embed records", "internal evaluation", "release gate"]
Split = Literal["source", "held_out"]
SECRETS = "secrets.parquet"
"""Which record of the source split holds which secret."""


class SensitiveStore(dg.ConfigurableResource):
    """Private records and embeddings of each dataset: folders 0700, files 0600."""

    root: str = Field(
        default="", description="Folder of the store. Empty: `sensitive` under DPSYNTH_HOME."
    )

    def folder(self, dataset: str) -> Path:
        """Folder of one dataset, created for the owner alone."""
        base = Path(self.root) if self.root else home().sensitive
        folder = base / dataset
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (base, folder):
            path.chmod(0o700)
        return folder

    def write_records(self, dataset: str, split: Split, records: pl.DataFrame) -> None:
        """Stores canonical records (`record_id`, `unit_id`, `text`, `label`)."""
        with _owner_only(self.folder(dataset) / f"{split}.parquet") as temporary:
            records.write_parquet(temporary)

    def embeddings_version(self, dataset: str, split: Split) -> str | None:
        """Version of the texts and the model behind the stored embeddings; None without any."""
        path = self.folder(dataset) / f"{split}_embeddings.version"
        return path.read_text() if path.exists() else None

    def write_embeddings(
        self, dataset: str, split: Split, embeddings: np.ndarray, version: str = ""
    ) -> None:
        """Stores embeddings, float32 (N, d), rows aligned with the records of the split."""
        (self.folder(dataset) / f"{split}_embeddings.version").unlink(missing_ok=True)
        with (
            _owner_only(self.folder(dataset) / f"{split}_embeddings.npy") as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, embeddings, allow_pickle=False)
        self.write_internal(dataset, f"{split}_embeddings.version", version)

    def write_internal(self, dataset: str, name: str, content: str) -> Path:
        """Stores text that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / name
        with _owner_only(path) as temporary:
            temporary.write_text(content)
        return path

    def write_internal_table(self, dataset: str, name: str, table: pl.DataFrame) -> Path:
        """Stores a table that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / f"{name}.parquet"
        with _owner_only(path) as temporary:
            table.write_parquet(temporary)
        return path

    def read_internal_table(
        self, dataset: str, name: str, *, purpose: InternalPurpose
    ) -> pl.DataFrame:
        """Reads what `write_internal_table` stored, for an internal stage."""
        del purpose
        return pl.read_parquet(self._existing(dataset, f"{name}.parquet"))

    def read_for_release(
        self,
        dataset: str,
        *,
        ledger: Ledger,
        reservation: Reservation,
        with_embeddings: bool,
        with_secrets: bool = False,
    ) -> PrivateInputs:
        """Reads the source split for a mechanism whose cost is already reserved.

        Raises:
            UnaccountedReleaseError: If the reservation is not open in the ledger.
        """
        if not ledger.is_open(reservation.id):
            raise UnaccountedReleaseError(
                f"Expected an open reservation before reading dataset {dataset!r}, got a "
                "reservation that is unknown or already committed. Reserve in the ledger first."
            )
        if is_post_processing(reservation.request.event):
            raise UnaccountedReleaseError(
                f"Expected a charge before reading dataset {dataset!r}, got a reservation of "
                "post-processing, which costs nothing and reads nothing private."
            )
        private = self._read(dataset, "source", with_embeddings=with_embeddings)
        if not with_secrets:
            return private
        return replace(private, secrets=pl.read_parquet(self._existing(dataset, SECRETS)))

    def passes(self, dataset: str, reservation: Reservation) -> "StoredPasses":
        """Finished passes of one paid release that is not committed yet."""
        return StoredPasses(self.folder(dataset) / "passes" / reservation.id)

    def checkpoint(self, dataset: str, reservation: Reservation) -> "StoredCheckpoint":
        """Last checkpoint of one paid stage that is not committed yet."""
        return StoredCheckpoint(self.folder(dataset) / "passes" / reservation.id)

    def read_internal(
        self, dataset: str, split: Split, *, purpose: InternalPurpose, with_embeddings: bool = False
    ) -> PrivateInputs:
        """Reads a split for a stage whose output stays sensitive or internal."""
        del purpose  # Stated at the call site, where a reviewer and a test look for it.
        return self._read(dataset, split, with_embeddings=with_embeddings)

    def read_for_scoring(self, dataset: str, split: Split) -> tuple[pl.DataFrame, np.ndarray]:
        """Records and embeddings of a split, for internal evaluation."""
        private = self.read_internal(
            dataset, split, purpose="internal evaluation", with_embeddings=True
        )
        if private.embeddings is None:
            raise ValueError(f"Expected embeddings of dataset {dataset!r}, got none.")
        return private.records, private.embeddings

    def _read(self, dataset: str, split: Split, *, with_embeddings: bool) -> PrivateInputs:
        records = pl.read_parquet(self._existing(dataset, f"{split}.parquet"))
        if not with_embeddings:
            return PrivateInputs(records=records)
        path = self._existing(dataset, f"{split}_embeddings.npy")
        embeddings = np.load(path, allow_pickle=False)
        if len(embeddings) != records.height:
            raise ValueError(
                f"Expected one embedding per record of dataset {dataset!r}, got another number. "
                f"Materialise {dataset}/shared/private_embeddings after private_records."
            )
        return PrivateInputs(records=records, embeddings=embeddings)

    def _existing(self, dataset: str, name: str) -> Path:
        path = self.folder(dataset) / name
        if not path.exists():
            raise FileNotFoundError(
                f"Expected {name} of dataset {dataset!r} in the sensitive store, got nothing. "
                f"Materialise {dataset}/shared/private_records and private_embeddings first."
            )
        return path


class Unfinished:
    """What a run keeps of a release it has paid for and not finished, for its owner only."""

    def __init__(self, folder: Path) -> None:
        """Names the folder; it is made when the first pass begins."""
        self._folder = folder

    @property
    def begun(self) -> bool:
        """Whether a run under this reservation began to draw."""
        return self._folder.is_dir()

    def begin(self) -> None:
        """Marks that a run under this reservation begins to draw."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(exist_ok=True, mode=0o700)

    def remove(self) -> None:
        """Forgets what was kept, once the release is committed."""
        shutil.rmtree(self._folder, ignore_errors=True)


class StoredPasses(Unfinished):
    """Passes as JSON files of mode 0600 in a folder of their reservation."""

    def load(self, number: int) -> dict[str, Any] | None:
        """Reads a finished pass; None where it has to be run."""
        path = self._folder / f"{number}.json"
        values: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return values

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Keeps a finished pass; it appears whole or not at all."""
        with _owner_only(self._folder / f"{number}.json") as temporary:
            temporary.write_text(json.dumps(values))


class StoredCheckpoint(Unfinished):
    """Checkpoints as numbered folders; the highest number is the last, older ones are removed."""

    @property
    def saved(self) -> Path | None:
        """Folder of the last checkpoint; None at the first start."""
        numbers = self._numbers()
        return self._folder / f"{numbers[-1]}" if numbers else None

    def scratch(self) -> Path:
        """An empty folder of mode 0700 for the next checkpoint or for the release's files."""
        folder = self._folder / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def save(self, scratch: Path) -> None:
        """Makes `scratch` the last checkpoint; it is on disk, whole, when this returns."""
        earlier = self._numbers()
        for path in scratch.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
            flush(path)
        flush(scratch)
        scratch.replace(self._folder / f"{earlier[-1] + 1 if earlier else 1}")
        flush(self._folder)
        for number in earlier:
            shutil.rmtree(self._folder / f"{number}", ignore_errors=True)

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())


class _owner_only:  # noqa: N801 - a context manager that reads as a phrase
    """Writes a temporary file of mode 0600 and renames it into place on success."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        self._temporary.unlink(missing_ok=True)
        os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return self._temporary

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink(missing_ok=True)
