"""The owner-only store of private intermediates, and the only way to read them.

A mechanism reads with an open reservation in the ledger; internal stages (embedding the records,
scoring against held-out text) read for a stated purpose and may not release what they derive.

With DPSYNTH_SENSITIVE_KEY in the environment every file is encrypted (`sealing.py`) and decrypted
in memory; nothing is memory-mapped, so records and embeddings have to fit there. With
DPSYNTH_SENSITIVE_URL the files lie in an object store (`sealed_objects.py`), never without a key.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import BinaryIO, ClassVar, Literal, Self

import dagster as dg
import numpy as np
import polars as pl
from pydantic import PrivateAttr

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.standing import source_places
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder, absolute, home, located
from dpsynth_assets.privacy.errors import PrivacyError, UnaccountedReleaseError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.records.source_digest import declared_state, reading_digest
from dpsynth_assets.sensitive.contributions import Contributions
from dpsynth_assets.sensitive.fingerprints import (
    Fingerprints,
    Prints,
    Reader,
    refuse_unmatched,
    shared_records,
)
from dpsynth_assets.sensitive.part_tasks import NoteRead
from dpsynth_assets.sensitive.parted_source import StoredParts
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.read_records import ReadRecords, replaced_records
from dpsynth_assets.sensitive.record_parts import (
    EXCHANGE,
    SPLITS,
    RecordParts,
    Split,
    read_part,
    read_table,
    read_whole,
    write_canonical,
)
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint, StoredPasses
from dpsynth_assets.workers import LocalWorkers, Workers

InternalPurpose = Literal["embed records", "find secrets", "internal evaluation", "release gate"]
DICTIONARY = "secrets_dictionary"
"""Table of every secret found, its kind, and how many records hold it."""

_PASSES = "passes"


class SensitiveStore(dg.ConfigurableResource):
    """Private records and embeddings of each dataset: folders 0700, files 0600.

    Its place is `sensitive` under DPSYNTH_HOME, or what DPSYNTH_SENSITIVE_URL names. It has no
    field, hence no run config: a run cannot write private records elsewhere. The key of an
    encrypted store is read from the environment where it is used: Dagster shows and records the
    fields of resources.
    """

    opens_private_data: ClassVar[bool] = True

    _root: str = PrivateAttr(default="")

    @classmethod
    def at(cls, root: str) -> Self:
        """The store of another folder or prefix, for tools and tests."""
        store = cls()
        store._root = root
        return store

    def folder(self, dataset: str) -> Folder:
        """Folder of one dataset, created for the owner alone."""
        base = self.base
        folder = base / dataset
        files_below(base).make_folder(base, folder)
        return folder

    @property
    def base(self) -> Folder:
        """Folder of all datasets."""
        return located(self._root) if self._root else home().sensitive

    def write_records(self, dataset: str, split: Split, records: pl.DataFrame) -> None:
        """Stores canonical records (`record_id`, `unit_id`, `text`, `label`), whole."""
        write_canonical(self.folder(dataset), split, records, self._files)
        self.parts(dataset).forget()

    def parts(self, dataset: str) -> RecordParts:
        """The parts that a dataset's records lie in, if they do not lie whole."""
        return RecordParts(self._files, self.folder(dataset))

    def keep_parts(self, dataset: str, places: Sequence[Folder]) -> None:
        """Makes finished parts the records of a dataset, in the place of those it had."""
        before = self.parts(dataset).places
        self.parts(dataset).keep(places)
        if before != self.parts(dataset).places:
            for path in self._files.matching(self.folder(dataset), "*_embeddings.*"):
                self._files.remove(path)
        for split in SPLITS:
            self.remove_internal(dataset, f"{split}.parquet")
            self.remove_internal(dataset, f"{split}.digest")

    def note_embedded(self, dataset: str, made_by: Mapping[str, str]) -> None:
        """Notes what made the embeddings of all parts of a dataset."""
        for split in SPLITS:
            self.write_internal(dataset, f"{split}_embeddings.made_by", json.dumps(dict(made_by)))

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
            found = Fingerprints(self._files, self.base).admit_prints(reader, lambda _: made)
            if found is not None:
                raise PrivacyError(shared_records(reader, found))
            rows.begin_reading(spec.name)
            yield
            rows.note_read(spec.name, state, declared, digest)

    def pay_for_records(
        self,
        dataset: str,
        *,
        declared: str | None = None,
        with_embeddings: bool = False,
        with_secrets: bool = False,
    ) -> str:
        """Binds a charge to the stored records, just before it is made.

        Args:
            dataset: The cohort.
            declared: `reading_digest` of its declaration; None: not compared.
            with_embeddings: Whether the draw reads embeddings.
            with_secrets: Whether it reads the secrets that were found.

        Returns:
            What they are known by from then on; private.

        Raises:
            PrivacyError: There are none, or others than were paid for; nothing was charged.
        """
        with self.read_records.alone(dataset):
            return self._paid_for(dataset, declared, with_embeddings, with_secrets)

    def _paid_for(
        self, dataset: str, declared: str | None, with_embeddings: bool, with_secrets: bool
    ) -> str:
        self.require_records(dataset, with_embeddings=with_embeddings, with_secrets=with_secrets)
        known = [*self.read_records.pay(dataset, declared)]
        Fingerprints(self._files, self.base).note_paid(dataset)
        if with_embeddings:
            places = self.parts(dataset).places or (self.folder(dataset),)
            made = [self._files.read(place / "source_embeddings.version") for place in places]
            known += [version.decode() for version in made]
        if with_secrets:
            found = self._files.read(self.folder(dataset) / f"{DICTIONARY}.parquet")
            known.append(hashlib.blake2b(found, key=self.read_records.key).hexdigest())
        return "/".join(known)

    def _require_charged_records(
        self, dataset: str, reservation: Reservation, with_embeddings: bool, with_secrets: bool
    ) -> None:
        """Refuses other records than those that the charge was made for."""
        charged = self.passes(dataset, reservation).drawn_from.get("records")
        found = self._paid_for(dataset, None, with_embeddings, with_secrets)
        if charged not in (None, found):
            raise PrivacyError(
                f"Expected the records of {dataset!r} as they were charged for, got others. None "
                f"was read; the charge stands. Materialise {dataset}/shared/private_records under "
                "the declaration it was made with, and run again."
            )

    @property
    def read_records(self) -> ReadRecords:
        """Digests of the records that each cohort was read with."""
        return ReadRecords(self._files, self.base)

    def records_digest(self, dataset: str, split: Split) -> str | None:
        """Digest of the records of a split that lie whole; private."""
        return self.read_internal_text(dataset, f"{split}.digest")

    def embeddings_version(self, dataset: str, split: Split) -> str | None:
        """Version of the texts and the model behind the stored embeddings; None without any."""
        return self.read_internal_text(dataset, f"{split}_embeddings.version")

    def embeddings_made_by(self, dataset: str, split: Split) -> dict[str, str] | None:
        """Facts about the stored embeddings (`TextEmbedder.made_by`), public; or None."""
        stored = self.read_internal_text(dataset, f"{split}_embeddings.made_by")
        return None if stored is None else dict(json.loads(stored))

    def write_embeddings(
        self,
        dataset: str,
        split: Split,
        embeddings: np.ndarray,
        version: str = "",
        made_by: Mapping[str, str] | None = None,
        of: str | None = None,
    ) -> None:
        """Stores embeddings, float32 (N, d), rows aligned with the records of the split.

        Args:
            dataset: The cohort.
            split: Of its records.
            embeddings: One for each record, in their order.
            version: Version of the texts and the model.
            made_by: Facts about them (`TextEmbedder.made_by`), public.
            of: `records_digest` of the records that were embedded; None: not compared.

        Raises:
            PrivacyError: The records were replaced meanwhile; what is stored stays.
        """

        def write(file: BinaryIO) -> None:
            np.save(file, embeddings, allow_pickle=False)

        name = f"{split}_embeddings"
        with self.read_records.alone(dataset):
            if of not in (None, self.records_digest(dataset, split)):
                raise PrivacyError(
                    f"Expected the records of {dataset!r} as they were when they were read, got "
                    "others, which were stored while those were embedded. Materialise "
                    f"{dataset}/shared/private_embeddings again."
                )
            for kept in ("version", "made_by"):
                self.remove_internal(dataset, f"{name}.{kept}")
            self._files.write(self.folder(dataset) / f"{name}.npy", write)
            if made_by is not None:
                self.write_internal(dataset, f"{name}.made_by", json.dumps(dict(made_by)))
            self.write_internal(dataset, f"{name}.version", version)

    def write_internal(self, dataset: str, name: str, content: str) -> Folder:
        """Stores text that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / name
        self._files.write(path, lambda file: file.write(content.encode()))
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
        with self.read_records.alone(dataset):
            return self._write_table(dataset, f"{name}.parquet", table)

    def forget_internal_table(self, dataset: str, name: str) -> None:
        """Removes what `write_internal_table` stored, if anything."""
        self.remove_internal(dataset, f"{name}.parquet")

    def read_internal_table(
        self, dataset: str, name: str, *, purpose: InternalPurpose
    ) -> pl.DataFrame:
        """Reads what `write_internal_table` stored, for an internal stage."""
        del purpose
        return read_table(self.folder(dataset), f"{name}.parquet", self._files)

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
        self._require_charge(dataset, ledger, reservation)
        with self.read_records.alone(dataset):
            self._require_charged_records(dataset, reservation, with_embeddings, with_secrets)
            private = self._read(dataset, "source", with_embeddings=with_embeddings)
            found = self._found_secrets(dataset) if with_secrets else None
        self.contributions(dataset).note(reservation.id, private.records)
        return replace(private, secrets=found)

    def read_parts_for_release(
        self,
        dataset: str,
        *,
        ledger: Ledger,
        reservation: Reservation,
        workers: Workers,
        with_embeddings: bool,
        gpus: float = 0,
        with_secrets: bool = False,
    ) -> PrivateInputs:
        """Gives a mechanism the parts of the source split, with finished passes (`Stage.in_parts`).

        Args:
            dataset: Whose records they are.
            ledger: Where the charge is open.
            reservation: That charge.
            workers: Who counts, sorts and draws.
            with_embeddings: Whether what is counted or sorted reads embeddings.
            gpus: GPUs that a worker needs to draw a pass.
            with_secrets: Whether it reads how many records hold each secret.

        Raises:
            UnaccountedReleaseError: If the reservation is not open in the ledger.
            WorkerError: A worker failed.
        """
        self._require_charge(dataset, ledger, reservation)
        charged = (dataset, reservation, with_embeddings, with_secrets)
        with self.read_records.alone(dataset):
            self._require_charged_records(*charged)
            places = self.parts(dataset).places
            found = self._found_secrets(dataset) if with_secrets else None

        def require_charged() -> None:
            with self.read_records.alone(dataset):
                self._require_charged_records(*charged)

        for _ in workers.map_parts(NoteRead(reservation.id), places):
            pass
        release = absolute(self.folder(dataset) / _PASSES / reservation.id)
        exchange = self._new_exchange(release)
        parts = StoredParts(
            places, workers, with_embeddings, exchange, release, gpus, require_charged
        )
        return replace(_in_parts(parts), passes=self.passes(dataset, reservation), secrets=found)

    def _new_exchange(self, release: Folder) -> Folder:
        """An empty folder for what driver and workers of this run hand one another.

        A killed run may have left something: sums without noise, or weights of a step that no
        checkpoint holds. It is removed before anything is drawn again, and with the rest of the
        unfinished release. The name is new: a worker of another run finds its own folder gone.
        """
        for left in self._files.matching(release, f"*{EXCHANGE}*"):
            self._files.withdraw(left)
        self._files.make_folder(release.parent, release)
        folder = release / f"{EXCHANGE}-{secrets.token_hex(8)}"
        self._files.begin_folder(folder)
        return folder

    def _found_secrets(self, dataset: str) -> pl.DataFrame:
        """Numbers of records by secret; what the secrets say stays where it is."""
        found = read_table(self.folder(dataset), f"{DICTIONARY}.parquet", self._files)
        return found.drop("value")

    @staticmethod
    def _require_charge(dataset: str, ledger: Ledger, reservation: Reservation) -> None:
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

    def contributions(self, dataset: str) -> Contributions:
        """The releases that read each record of a dataset."""
        return Contributions(self._files, self.folder(dataset) / "contributions")

    def passes(self, dataset: str, reservation: Reservation) -> StoredPasses:
        """Finished passes of one paid release that is not committed yet."""
        return StoredPasses(self._files, self.folder(dataset) / _PASSES / reservation.id)

    def checkpoint(self, dataset: str, reservation: Reservation) -> StoredCheckpoint:
        """Last checkpoint of one paid stage that is not committed yet."""
        return StoredCheckpoint(self._files, self.folder(dataset) / _PASSES / reservation.id)

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

        Where records lie in parts, this process reads one after the other.
        """
        if places := self.parts(dataset).places:
            return _in_parts(StoredParts(places, LocalWorkers(), with_embeddings))
        return self.read_internal(
            dataset, "source", purpose=purpose, with_embeddings=with_embeddings
        )

    def each_for_scoring(self, dataset: str, split: Split) -> Iterator[PrivateInputs]:
        """Records and embeddings of a split, part by part, for internal evaluation."""
        places = self.parts(dataset).places
        if not places:
            yield self.read_internal(
                dataset, split, purpose="internal evaluation", with_embeddings=True
            )
        for place in places:
            yield read_part(place, split, with_embeddings=True)

    def read_for_scoring(self, dataset: str, split: Split) -> tuple[pl.DataFrame, np.ndarray]:
        """Records and embeddings of a split, for internal evaluation."""
        private = self.read_internal(
            dataset, split, purpose="internal evaluation", with_embeddings=True
        )
        if private.embeddings is None:
            raise ValueError(f"Expected embeddings of dataset {dataset!r}, got none.")
        return private.records, private.embeddings

    def require_records(
        self, dataset: str, *, with_embeddings: bool = False, with_secrets: bool = False
    ) -> None:
        """Refuses a release, before its charge, where a file that it would read is not there.

        Raises:
            PrivacyError: It was never stored, was purged, or is lost.
        """
        if lost := self._lost(dataset, "source", embeddings=with_embeddings, secrets=with_secrets):
            raise PrivacyError(f"{lost} Nothing was charged.")

    def _lost(
        self, dataset: str, split: Split, *, embeddings: bool, secrets: bool = False
    ) -> str | None:
        """What is not there of a split, and what makes it, in one line; None where all is."""
        made_by = {f"{split}.parquet": "private_records"}
        if embeddings:
            for kind in ("version", "npy"):
                made_by[f"{split}_embeddings.{kind}"] = "private_embeddings"
        folder = self.folder(dataset)
        places = self.parts(dataset).places or (folder,)
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

    def _read(self, dataset: str, split: Split, *, with_embeddings: bool) -> PrivateInputs:
        if lost := self._lost(dataset, split, embeddings=with_embeddings):
            raise PrivacyError(lost)
        if places := self.parts(dataset).places:
            return read_whole(places, split, with_embeddings=with_embeddings)
        folder = self.folder(dataset)
        records = read_table(folder, f"{split}.parquet", self._files)
        if not with_embeddings:
            return PrivateInputs(records=records)
        embeddings = self._files.read_array(folder / f"{split}_embeddings.npy")
        if len(embeddings) != records.height:
            raise PrivacyError(
                f"Expected one embedding per record of dataset {dataset!r}, got another number. "
                f"Materialise {dataset}/shared/private_embeddings after private_records."
            )
        return PrivateInputs(records=records, embeddings=embeddings)

    @property
    def _files(self) -> PrivateFiles:
        return files_below(self.base)

    def _write_table(self, dataset: str, name: str, table: pl.DataFrame) -> Folder:
        path = self.folder(dataset) / name
        self._files.write(path, lambda file: table.write_parquet(file))
        return path


def _in_parts(parts: StoredParts) -> PrivateInputs:
    """Inputs whose records lie in parts, and nowhere else."""
    nothing = pl.DataFrame(schema=dict.fromkeys(CANONICAL, pl.String))
    return PrivateInputs(records=nothing, parts=parts)
