"""The owner-only store of private intermediates.

A mechanism reads with an open reservation in the ledger (`paid_records.py`); internal stages
(embedding the records, scoring against held-out text) read for a stated purpose and may not release
what they derive.

With DPSYNTH_SENSITIVE_KEY in the environment every file is encrypted (`sealing.py`) and decrypted
in memory; nothing is memory-mapped, so records and embeddings have to fit there. With
DPSYNTH_SENSITIVE_URL the files lie in an object store (`sealed_objects.py`), never without a key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.standing import source_places
from dpsynth_assets.files.kept import TABLE
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import EMBEDDINGS
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.records.source_digest import declared_state, reading_digest
from dpsynth_assets.sensitive.fingerprints import (
    Fingerprints,
    Prints,
    Reader,
    refuse_unmatched,
    shared_records,
)
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.read_records import ReadRecords, replaced_records
from dpsynth_assets.sensitive.record_parts import (
    RecordParts,
    Split,
    embeddings_made_by,
    read_part,
    read_table,
    read_whole,
)
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers

InternalPurpose = Literal["embed records", "find secrets", "internal evaluation", "release gate"]
DICTIONARY = "secrets_dictionary"
"""Table of every secret found, its kind, and how many records hold it."""


class StoredRecords:
    """Private records and embeddings of each dataset: folders 0700, files 0600."""

    def __init__(self, base: Folder) -> None:
        """Names the folder or prefix of all datasets."""
        self._base_folder = base

    @property
    def base(self) -> Folder:
        """Folder of all datasets."""
        return self._base_folder

    def folder(self, dataset: str) -> Folder:
        """Folder of one dataset, created for the owner alone."""
        base = self.base
        folder = base / dataset
        files_below(base).make_folder(base, folder)
        return folder

    def parts(self, dataset: str) -> RecordParts:
        """The parts that a dataset's records lie in."""
        return RecordParts(self._files, self.folder(dataset))

    @contextmanager
    def replacing_records(
        self,
        spec: PrivateDatasetSpec,
        digest: Callable[[bytes], str],
        prints: Callable[[bytes], Prints],
    ) -> Iterator[None]:
        """Admits what was read of a cohort's source, or refuses it; the block then stores it.

        One process at a time replaces a cohort's records or is charged for them.

        Args:
            spec: The cohort.
            digest: Computes the digest of the rows from a key (`source_digest`).
            prints: Computes the fingerprints of the records from a key.

        Raises:
            PrivacyError: They were replaced under their version, or another account pays for them.
                What is stored stays.
        """
        rows, state = self.read_records, declared_state(spec)
        with rows.alone(spec.name):
            if rows.differ(spec.name, state, digest):
                raise PrivacyError(replaced_records(spec.name, spec.source.version))
            reader = Reader(
                cohort=spec.name,
                account=spec.account,
                dataset=spec.dataset,
                places=tuple(sorted(source_places(spec.source.path))),
            )
            declared, made = reading_digest(spec), prints(rows.key)  # Before the check of ids.
            refuse_unmatched(spec, made, rows.key)
            found = self.fingerprints.admit_prints(reader, lambda _: made)
            if found is not None:
                raise PrivacyError(shared_records(reader, found))
            rows.begin_reading(spec.name)
            yield
            rows.note_read(spec.name, state, declared, digest)

    @property
    def fingerprints(self) -> Fingerprints:
        """Fingerprints of the records of all cohorts."""
        return Fingerprints(self._files, self.base)

    @property
    def read_records(self) -> ReadRecords:
        """Digests of the records that each cohort was read with."""
        return ReadRecords(self._files, self.base)

    def embeddings_made_by(self, dataset: str, split: Split) -> dict[str, str] | None:
        """Facts about the stored embeddings (`TextEmbedder.made_by`), public.

        None: They are unknown, or not the same in all parts.
        """
        first, *rest = (embeddings_made_by(place, split) for place in self.parts(dataset).places)
        return first if all(made == first for made in rest) else None

    def embeddings_rest_on(self, dataset: str) -> dict[str, Any]:
        """Says how the records were embedded, for a charge; empty where that is unknown.

        It is no part of the release's identity: what was released stays released.
        """
        made_by = self.embeddings_made_by(dataset, "source")
        return {} if made_by is None else {EMBEDDINGS: made_by}

    def require_stated_embeddings(self, dataset: str) -> None:
        """Refuses embeddings of which nobody knows whether one record could move another's.

        Raises:
            PrivacyError: There are none, or they do not say how they were made.
        """
        if self.embeddings_made_by(dataset, "source") is None:
            raise PrivacyError(
                f"Expected embeddings of {dataset} that say how they were made, got none. "
                f"Materialise {dataset}/shared/private_embeddings; nothing was charged."
            )

    def write_internal(self, dataset: str, name: str, content: str) -> Folder:
        """Stores text that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / name
        self._files.write(path, content.encode())
        return path

    def read_internal_text(self, dataset: str, name: str) -> str | None:
        """Reads what `write_internal` stored, for an internal stage; None if absent."""
        path = self.folder(dataset) / name
        return self._files.read(path).decode() if self._files.exists(path) else None

    def remove_internal(self, dataset: str, name: str) -> None:
        """Removes a file of a dataset, if it is there."""
        self._files.remove(self.folder(dataset) / name)

    def write_internal_table(self, dataset: str, name: str, table: pl.DataFrame) -> Folder:
        """Stores a table that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / f"{name}.parquet"
        with self.read_records.alone(dataset):
            self._files.write(path, TABLE.write(table))
        return path

    def read_internal_table(
        self, dataset: str, name: str, *, purpose: InternalPurpose
    ) -> pl.DataFrame:
        """Reads what `write_internal_table` stored, for an internal stage."""
        del purpose
        return read_table(self.folder(dataset), f"{name}.parquet", self._files)

    def read_internal(
        self, dataset: str, split: Split, *, purpose: InternalPurpose, with_embeddings: bool = False
    ) -> PrivateInputs:
        """Reads a split for a stage whose output stays sensitive or internal."""
        del purpose  # Stated at the call site, where a reviewer and a test look for it.
        return self._read(dataset, split, with_embeddings=with_embeddings)

    def counted_internal(
        self, dataset: str, *, purpose: InternalPurpose, with_embeddings: bool = False
    ) -> PrivateInputs:
        """Gives an internal stage the source split to count, by `PrivateInputs.counted` alone.

        Where there are several parts, this process reads one after the other.
        """
        if len(places := self.parts(dataset).places) > 1:
            return in_parts(StoredParts(places, LocalWorkers(), with_embeddings))
        return self.read_internal(
            dataset, "source", purpose=purpose, with_embeddings=with_embeddings
        )

    def each_for_scoring(self, dataset: str, split: Split) -> Iterator[PrivateInputs]:
        """Records and embeddings of a split, part by part, for internal evaluation."""
        self._require(dataset, split, with_embeddings=True)
        for place in self.parts(dataset).places:
            yield read_part(place, split, with_embeddings=True)

    def read_for_scoring(self, dataset: str, split: Split) -> tuple[pl.DataFrame, np.ndarray]:
        """Records and embeddings of a split, for internal evaluation."""
        private = self.read_internal(
            dataset, split, purpose="internal evaluation", with_embeddings=True
        )
        if private.embeddings is None:
            raise ValueError(f"Expected embeddings of dataset {dataset!r}, got none.")
        return private.records, private.embeddings

    def _lost(
        self, dataset: str, split: Split, *, embeddings: bool, secrets: bool = False
    ) -> str | None:
        """What is not there of a split, and what makes it, in one line; None where all is."""
        made_by = {f"{split}.parquet": "private_records"}
        if embeddings:
            for kind in ("version", "npy"):
                made_by[f"{split}_embeddings.{kind}"] = "private_embeddings"
        folder = self.folder(dataset)
        places = self.parts(dataset).places
        needed = [(place / name, made) for place in places for name, made in made_by.items()]
        if secrets:
            needed.append((folder / f"{DICTIONARY}.parquet", "secrets"))
        lost = {made: path.name for path, made in needed if not self._files.exists(path)}
        if not lost:
            return None
        return (
            f"Expected {', '.join(lost.values())} of {dataset!r} in the sensitive store, got "
            "nothing: purged, lost, or not made yet. Materialise "
            f"{', '.join(f'{dataset}/shared/{name}' for name in lost)} (`dpsynth run {dataset}` "
            "does)."
        )

    def _require(self, dataset: str, split: Split, *, with_embeddings: bool) -> None:
        if lost := self._lost(dataset, split, embeddings=with_embeddings):
            raise PrivacyError(lost)

    def _read(self, dataset: str, split: Split, *, with_embeddings: bool) -> PrivateInputs:
        self._require(dataset, split, with_embeddings=with_embeddings)
        places = self.parts(dataset).places
        return read_whole(places, split, with_embeddings=with_embeddings)

    @property
    def _files(self) -> PrivateFiles:
        return files_below(self.base)


def in_parts(parts: StoredParts) -> PrivateInputs:
    """Inputs whose records lie in parts, and nowhere else."""
    nothing = pl.DataFrame(schema=dict.fromkeys(CANONICAL, pl.String))
    return PrivateInputs(records=nothing, parts=parts)
