"""Records as a release reads them: bound to a charge before it is made, read once it is open."""

import hashlib
from dataclasses import replace

import polars as pl

from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import absolute
from dpsynth_assets.privacy.errors import PrivacyError, UnaccountedReleaseError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.sensitive.part_tasks import NoteRead
from dpsynth_assets.sensitive.read_records import Contributions
from dpsynth_assets.sensitive.record_parts import EXCHANGE, read_table
from dpsynth_assets.sensitive.store import DICTIONARY, StoredRecords, in_parts
from dpsynth_assets.sensitive.stored_parts import StoredParts, new_folder
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint, StoredPasses
from dpsynth_assets.workers import Workers

_PASSES = "passes"


class PaidRecords(StoredRecords):
    """The store of private records, for releases too."""

    def require_records(
        self, dataset: str, *, with_embeddings: bool = False, with_secrets: bool = False
    ) -> None:
        """Refuses a release, before its charge, where a file that it would read is not there.

        Raises:
            PrivacyError: It was never stored, was purged, or is lost.
        """
        if lost := self._lost(dataset, "source", embeddings=with_embeddings, secrets=with_secrets):
            raise PrivacyError(f"{lost} Nothing was charged.")

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
        self.fingerprints.note_paid(dataset)
        if with_embeddings:
            places = self.parts(dataset).places
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

    def read_for_release(
        self,
        dataset: str,
        *,
        ledger: Ledger,
        reservation: Reservation,
        with_embeddings: bool,
        with_secrets: bool = False,
        workers: Workers | None = None,
        gpus: float = 0,
    ) -> PrivateInputs:
        """Reads the source split for a mechanism whose cost is already reserved.

        Args:
            dataset: Whose records they are.
            ledger: Where the charge is open.
            reservation: That charge.
            with_embeddings: Whether the mechanism reads embeddings.
            with_secrets: Whether it reads how many records hold each secret.
            workers: Who counts, sorts and draws over the parts, which nobody reads together
                (`Stage.in_parts`); None: this process reads all records.
            gpus: GPUs that a worker needs to draw a pass.

        Raises:
            UnaccountedReleaseError: If the reservation is not open in the ledger.
            WorkerError: A worker failed.
        """
        self._require_charge(dataset, ledger, reservation)

        def require_charged() -> None:
            with self.read_records.alone(dataset):
                self._require_charged_records(dataset, reservation, with_embeddings, with_secrets)

        with self.read_records.alone(dataset):
            self._require_charged_records(dataset, reservation, with_embeddings, with_secrets)
            places = self.parts(dataset).places
            found = self._found_secrets(dataset) if with_secrets else None
            if workers is None:
                private = self._read(dataset, "source", with_embeddings=with_embeddings)
                if (
                    with_embeddings
                ):  # One that embeds has no such lock, but takes the version first.
                    self._require_charged_records(dataset, reservation, True, with_secrets)
        if workers is None:
            self.contributions(dataset).note(reservation.id, private.records)
            return replace(private, secrets=found)
        for _ in workers.map_parts(NoteRead(reservation.id), places):
            pass
        release = absolute(self.folder(dataset) / _PASSES / reservation.id)
        self._files.make_folder(release.parent, release)
        exchange = new_folder(self._files, release, EXCHANGE)
        parts = StoredParts(
            places, workers, with_embeddings, exchange, release, gpus, require_charged
        )
        return replace(in_parts(parts), passes=self.passes(dataset, reservation), secrets=found)

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
