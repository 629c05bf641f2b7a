"""Sources of private records for a release: the sensitive store, or a frame in memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.redaction import withheld
from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.paths import Folder, home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import EMBEDDINGS
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.records import canonical_frame
from dpsynth_assets.records.reading import PrivateRecords, frame_rows, refuse_unfit
from dpsynth_assets.sensitive.fingerprints import Prints, prints_of
from dpsynth_assets.sensitive.read_records import (
    declared_state,
    reading_digest,
    replaced_records,
    source_digest,
)
from dpsynth_assets.sensitive.read_source import require_parts
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import Workers


@dataclass(frozen=True, kw_only=True)
class StoreRecords:
    """Records that are in the sensitive store.

    Attributes:
        spec: The cohort.
        store: Where they lie.
        ledger: Where charges are open.
        workers: Opens those who go over the parts of the records for a stage that sums or draws
            over parts; None: every stage reads all records in this process.
        gpus: GPUs that a worker needs to draw a pass.
    """

    spec: PrivateDatasetSpec
    store: StoredRecords
    ledger: Ledger
    workers: Callable[[], Workers] | None = None
    gpus: float = 0

    def require(self, stage: Stage) -> None:
        """Refuses, before a charge, a stage whose records are not there or may not be read.

        Raises:
            PrivacyError: In one line that anybody may read; nothing was charged.
        """
        if self.workers is not None:
            require_parts(self.spec, self.store)
        self.store.require_records(self.spec.name, with_embeddings=stage.needs_embeddings)
        if stage.needs_embeddings:
            self.store.require_stated_embeddings(self.spec.name)

    def room(self, room: Room) -> Room:
        """What a release takes of the disks, given what it takes in one process.

        A worker's sums and the weights that it is given are smaller than a checkpoint.
        """
        return (
            room
            if self.workers is None
            else replace(room, kept=room.kept * (1 + self.workers().count))
        )

    def rests_on(self, stage: Stage) -> Mapping[str, Any] | None:
        """How the records were embedded, for the label: empty where that is unknown.

        None where a stage reads no embeddings.
        """
        return self.store.embeddings_rest_on(self.spec.name) if stage.needs_embeddings else None

    def drawn_from(self, stage: Stage) -> Mapping[str, Any]:
        """What of the records decides a draw; binds the charge, which is about to be made, to them.

        Returns:
            JSON values, private.
        """
        known = self.store.pay_for_records(
            self.spec.name,
            declared=reading_digest(self.spec),
            with_embeddings=stage.needs_embeddings,
        )
        return {"records": known}

    @contextmanager
    def opened(self, stage: Stage, reservation: Reservation) -> Iterator[PrivateInputs]:
        """Reads the records under a charge that is open.

        All of them, or parts with workers that stay until the stage ends.

        Raises:
            PrivacyError: They are others than were charged for.
        """
        parted = self.workers if stage.in_parts else None
        with nullcontext() if parted is None else parted().opened() as workers:
            yield self.store.read_for_release(
                self.spec.name,
                ledger=self.ledger,
                reservation=reservation,
                workers=workers,
                gpus=self.gpus,
                with_embeddings=stage.needs_embeddings,
            )

    def keep_internal(self, name: str, content: str) -> None:
        """Keeps text that depends on private data without noise, for the steward alone."""
        self.store.write_internal(self.spec.name, f"{name}_internal.json", content)


@dataclass(kw_only=True)
class FrameRecords:
    """Records of a frame in memory.

    Attributes:
        spec: The cohort; what its file says of a source is not asked.
        frame: Columns `text`, and `label` where labels are declared. Private.
        release: Name of the release that reads them.
        embedder: Opens the public text embedder.
        unfinished: Folder of releases that are not finished.
        compared: Whether they are compared with the records of this installation's other accounts.
    """

    spec: PrivateDatasetSpec
    frame: pl.DataFrame = field(repr=False)
    release: str
    embedder: Callable[[], Any]
    unfinished: Folder
    compared: bool

    def refuse_replaced(self) -> None:
        """Refuses another frame than the one that this release's paid stages read.

        Raises:
            PrivacyError: They read other records.
        """
        if not self.compared:
            return
        rows, name = self._installed.read_records, self.spec.name
        with self._before_a_charge():
            if rows.differ(name, declared_state(self.spec, self.release), self._digest(rows.key)):
                raise PrivacyError(replaced_records(name, release=self.release))

    def require(self, _stage: Stage) -> None:
        """Reads the frame, and refuses records that another account pays for."""
        with self._before_a_charge(), self._admitted():
            pass

    def room(self, room: Room) -> Room:
        """That of this process."""
        return room

    def rests_on(self, stage: Stage) -> Mapping[str, Any] | None:
        """How the records will be embedded."""
        return {EMBEDDINGS: self.embedder().made_by} if stage.needs_embeddings else None

    def drawn_from(self, stage: Stage) -> Mapping[str, Any]:
        """Binds the charge to the frame: its digest under the key of the unfinished release."""
        embedded = self.embedder().made_by if stage.needs_embeddings else {}
        with self._before_a_charge():
            # Another release may have been admitted since: these records are, until they are paid.
            with self._admitted():
                if self.compared:
                    rows, name = self._installed.read_records, self.spec.name
                    state = declared_state(self.spec, self.release)
                    rows.note_paid(name, state, self._digest(rows.key))
                    self._installed.fingerprints.note_paid(name)
            return {"embedded": embedded, "records": self._digest(self.store.read_records.key)}

    @contextmanager
    def opened(self, stage: Stage, _reservation: Reservation) -> Iterator[PrivateInputs]:
        """The frame in canonical form, embedded once where a stage needs it."""
        embeddings = self._embeddings if stage.needs_embeddings else None
        yield PrivateInputs(records=self._private.records, embeddings=embeddings)

    def keep_internal(self, name: str, content: str) -> None:
        """Nowhere: there is no internal report about a frame."""

    @cached_property
    def _private(self) -> PrivateRecords:
        private = canonical_frame(self.frame, self.spec)
        refuse_unfit(private.tally, self.spec)
        return private

    @cached_property
    def _prints(self) -> Prints:
        both = self._private.records, self._private.held_out
        return prints_of(both, self.spec, self._installed.read_records.key)

    @cached_property
    def _embeddings(self) -> np.ndarray:
        return self.embedder().embed(self._private.records["text"].to_list())

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Keeps the records' fingerprints, or refuses them, and holds the cohort's lock."""
        self._private  # noqa: B018 - a frame that cannot be read is refused, compared or not
        if not self.compared:
            yield
            return
        installed = self._installed
        digest = self._digest(installed.read_records.key)
        with installed.admitting(self.spec, digest, self._prints, self.release):
            yield

    def _before_a_charge(self) -> AbstractContextManager[None]:
        return withheld(f"Reading cohort {self.spec.name!r}", "Nothing was charged.")

    @property
    def store(self) -> StoredRecords:
        """Where releases that are not finished are kept: beside the stored releases."""
        return StoredRecords(self.unfinished)

    @property
    def _installed(self) -> StoredRecords:
        """The sensitive store of this installation, wherever the values of this run go."""
        return StoredRecords(home().sensitive)

    def _digest(self, key: bytes) -> str:
        return source_digest(frame_rows(self.frame, self.spec), self.spec, key)


RecordSource = StoreRecords | FrameRecords
"""The records of one cohort, as releases read them."""
