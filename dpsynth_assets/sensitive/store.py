"""The owner-only store of private intermediates.

A mechanism reads with an open reservation in the ledger: records are bound to a charge before it is
made, and read once it is open. Internal stages (embedding the records, scoring against held-out
text) read without a charge, and may not release what they derive.

With DPSYNTH_SENSITIVE_KEY in the environment every file is encrypted (`sealing.py`) and decrypted
in memory; nothing is memory-mapped, so records and embeddings have to fit there. With
DPSYNTH_SENSITIVE_URL the files are in an object store (`sealed_objects.py`), never without a key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.standing import source_places
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder, absolute
from dpsynth_assets.privacy.errors import PrivacyError, UnaccountedReleaseError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.guarantees import EMBEDDINGS
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.sensitive.fingerprints import (
    Fingerprints,
    Prints,
    Reader,
    refuse_unmatched,
    shared_records,
)
from dpsynth_assets.sensitive.part_tasks import NoteRead
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.read_records import (
    Contributions,
    ReadRecords,
    declared_state,
    reading_digest,
    replaced_records,
)
from dpsynth_assets.sensitive.record_parts import (
    EXCHANGE,
    RecordParts,
    Split,
    embeddings_made_by,
    read_part,
    read_whole,
)
from dpsynth_assets.sensitive.stored_parts import StoredParts, new_folder
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint, StoredPasses
from dpsynth_assets.workers import Workers

_PASSES = "passes"


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
        """The shards that a dataset's records are in."""
        return RecordParts(self._files, self.folder(dataset))

    @contextmanager
    def admitting(
        self, spec: PrivateDatasetSpec, digest: str, prints: Prints, release: str | None = None
    ) -> Iterator[None]:
        """Admits records of a cohort, or refuses them, and holds the cohort's lock.

        One process at a time replaces a cohort's records or is charged for them. Records of a
        source are stored by the block: one that is cut off leaves a reading without a charge.

        Args:
            spec: The cohort.
            digest: Of the rows, under the store's key.
            prints: Fingerprints of the records, under the same key.
            release: Name of the release, for a frame in memory.

        Raises:
            PrivacyError: Others were paid for under the version, or the release, of these; or
                another account pays for them. What is stored stays.
        """
        rows, places = self.read_records, source_places(spec.source.path) if release is None else ()
        with rows.alone(spec.name):
            if rows.differ(spec.name, declared_state(spec, release or ""), digest):
                raise PrivacyError(replaced_records(spec.name, spec.source.version, release or ""))
            reader = Reader(
                cohort=spec.name,
                account=spec.account,
                dataset=spec.dataset,
                places=tuple(sorted(places)),
            )
            refuse_unmatched(spec, prints, rows.key)
            found = self.fingerprints.admit(reader, prints)
            if found is not None:
                raise PrivacyError(shared_records(reader, found))
            if release is not None:
                yield
                return
            rows.begin_reading(spec.name)
            yield
            rows.note_read(spec.name, declared_state(spec), reading_digest(spec), digest)

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

        None: They are unknown, or not the same in all shards.
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
        """Refuses embeddings of which it is unknown whether one record could move another's.

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
        return self._files.text(self.folder(dataset) / name)

    def remove_internal(self, dataset: str, name: str) -> None:
        """Removes a file of a dataset, if it is there."""
        self._files.remove(self.folder(dataset) / name)

    def write_internal_table(self, dataset: str, name: str, table: pl.DataFrame) -> Folder:
        """Stores a table that depends on private data without noise; returns its path."""
        path = self.folder(dataset) / f"{name}.parquet"
        with self.read_records.alone(dataset):
            self._files.write_table(path, table)
        return path

    def read_internal_table(self, dataset: str, name: str) -> pl.DataFrame:
        """Reads what `write_internal_table` stored, for an internal stage."""
        return self._files.read_table(self.folder(dataset) / f"{name}.parquet")

    def read_internal(
        self, dataset: str, split: Split, *, with_embeddings: bool = False
    ) -> PrivateInputs:
        """Reads a split for a stage whose output stays sensitive or internal."""
        self._require(dataset, split, with_embeddings=with_embeddings)
        places = self.parts(dataset).places
        return read_whole(places, split, with_embeddings=with_embeddings)

    def each_for_scoring(
        self, dataset: str, split: Split, *, with_embeddings: bool = True
    ) -> Iterator[PrivateInputs]:
        """Records of a split, shard by shard, for internal evaluation."""
        self._require(dataset, split, with_embeddings=with_embeddings)
        for place in self.parts(dataset).places:
            yield read_part(place, split, with_embeddings=with_embeddings)

    def require_records(self, dataset: str, *, with_embeddings: bool = False) -> None:
        """Refuses a release, before its charge, where a file that it would read is not there.

        Raises:
            PrivacyError: It was never stored, was purged, or is lost.
        """
        self._require(dataset, "source", " Nothing was charged.", with_embeddings=with_embeddings)

    def pay_for_records(
        self, dataset: str, *, declared: str | None = None, with_embeddings: bool = False
    ) -> str:
        """Binds a charge to the stored records, just before it is made.

        Args:
            dataset: The cohort.
            declared: `reading_digest` of its declaration; None: not compared.
            with_embeddings: Whether the draw reads their embeddings.

        Returns:
            What they are known by from then on; private.

        Raises:
            PrivacyError: There are none, or others than were paid for; nothing was charged.
        """
        with self.read_records.alone(dataset):
            return self._paid_for(dataset, declared, with_embeddings)

    def _paid_for(self, dataset: str, declared: str | None, with_embeddings: bool) -> str:
        self.require_records(dataset, with_embeddings=with_embeddings)
        known = [*self.read_records.pay(dataset, declared)]
        self.fingerprints.note_paid(dataset)
        if with_embeddings:
            places = self.parts(dataset).places
            made = [self._files.read(place / "source_embeddings.version") for place in places]
            known += [version.decode() for version in made]
        return "/".join(known)

    def _require_charged_records(
        self, dataset: str, reservation: Reservation, with_embeddings: bool
    ) -> None:
        """Refuses other records than those that the charge was made for."""
        charged = self.passes(dataset, reservation).drawn_from.get("records")
        found = self._paid_for(dataset, None, with_embeddings)
        if charged not in (None, found):
            raise PrivacyError(
                f"Expected the records of {dataset!r} as they were charged for, got others. None "
                f"was read; the charge stands. Materialise {dataset}/shared/private_records under "
                "the declaration it was made with, and run again."
            )

    def read_for_release(
        self,
        dataset: str,
        *,
        ledger: Ledger,
        reservation: Reservation,
        workers: Workers | None = None,
        gpus: float = 0,
        with_embeddings: bool = False,
    ) -> PrivateInputs:
        """Reads the source split for a mechanism whose cost is already reserved.

        Args:
            dataset: Whose records they are.
            ledger: Where the charge is open.
            reservation: That charge.
            workers: Who counts, sorts and draws over the shards, which are never read together
                (`Stage.in_parts`); None: this process reads all records.
            gpus: GPUs that a worker needs to draw a pass.
            with_embeddings: Whether the mechanism reads their embeddings.

        Raises:
            UnaccountedReleaseError: If the reservation is not open in the ledger.
            WorkerError: A worker failed.
        """
        self._require_charge(dataset, ledger, reservation)

        def require_charged() -> None:
            with self.read_records.alone(dataset):
                self._require_charged_records(dataset, reservation, with_embeddings)

        with self.read_records.alone(dataset):
            self._require_charged_records(dataset, reservation, with_embeddings)
            places = self.parts(dataset).places
            if workers is None:
                private = read_whole(places, "source", with_embeddings=with_embeddings)
                if with_embeddings:  # Who embeds has no such lock, but takes the version first.
                    self._require_charged_records(dataset, reservation, with_embeddings)
        if workers is None:
            self.contributions(dataset).note(reservation.id, private.records)
            return private
        for _ in workers.map_parts(NoteRead(reservation.id), places):
            pass
        release = absolute(self.folder(dataset) / _PASSES / reservation.id)
        self._files.make_folder(release.parent, release)
        exchange = new_folder(self._files, release, EXCHANGE)
        parts = StoredParts(
            places, workers, with_embeddings, exchange, release, gpus, require_charged
        )
        nothing = pl.DataFrame(schema=dict.fromkeys(CANONICAL, pl.String))
        return PrivateInputs(records=nothing, parts=parts, passes=self.passes(dataset, reservation))

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

    def _require(
        self, dataset: str, split: Split, told: str = "", *, with_embeddings: bool = False
    ) -> None:
        """Refuses, in one line, where something of a split is not there."""
        made_by = {f"{split}.parquet": "private_records"}
        if with_embeddings:
            for kind in ("version", "npy"):
                made_by[f"{split}_embeddings.{kind}"] = "private_embeddings"
        places = self.parts(dataset).places
        needed = [(place / name, made) for place in places for name, made in made_by.items()]
        if lost := {made: path.name for path, made in needed if not self._files.exists(path)}:
            raise PrivacyError(
                f"Expected {', '.join(lost.values())} of {dataset!r} in the sensitive store, got "
                "nothing: purged, lost, or not made yet. Materialise "
                f"{', '.join(f'{dataset}/shared/{name}' for name in lost)} (`dpsynth run "
                f"{dataset}` does).{told}"
            )

    @property
    def _files(self) -> PrivateFiles:
        return files_below(self.base)
