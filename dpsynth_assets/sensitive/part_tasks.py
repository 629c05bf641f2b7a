"""What workers do with one part: functions of its path, which hold public values only.

Each reads the records itself, from the sensitive store. None opens the ledger or adds noise.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.files.redaction import keep_out_of_core_dumps
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder
from dpsynth_assets.public_base.opening import OpenedModels
from dpsynth_assets.records.columns import empty_rows
from dpsynth_assets.records.reading import PrivateRecords, canonical_records
from dpsynth_assets.records.record_filters import column_names
from dpsynth_assets.records.source_digest import source_digest
from dpsynth_assets.sensitive.contributions import Contributions
from dpsynth_assets.sensitive.fingerprints import (
    Prints,
    all_prints,
    id_prints,
    single_prints,
    store_key,
)
from dpsynth_assets.sensitive.record_parts import (
    SPLITS,
    files_of,
    files_of_exchange,
    read_arrays,
    read_part,
    read_table,
    read_text,
    write_array,
    write_canonical,
    write_file,
    write_text,
)
from dpsynth_assets.workers import kept

PIECE: Final = "piece"
"""Beginning of the names of files with rows of a part as the source has them."""

PRINTS: Final = "prints.npy"
IDS: Final = "ids.npy"
ROWS: Final = "rows.digest"
TALLY: Final = "tally.json"
"""Fingerprints of a part's texts and ids, the digest of its rows, and how many records rules set
aside: for the driver, then removed."""

LARGEST_SENT: Final = 1 << 16
"""Bytes of counts that a worker sends; more are a file of the store, which Ray moves to no disk."""


@dataclass(frozen=True)
class Canonical:
    """Makes the pieces of a part its canonical records, and removes the pieces.

    Attributes:
        spec: The cohort's declaration.
    """

    spec: PrivateDatasetSpec

    def __call__(self, part: Folder) -> None:
        """Sets records aside, bounds units and splits held-out ones off, within the part."""
        keep_out_of_core_dumps()
        files = files_of(part)
        pieces = files.matching(part, f"{PIECE}-*.parquet")
        empty = empty_rows(column_names(self.spec))
        read = (read_table(part, piece.name) for piece in pieces)
        raw = pl.concat([empty, *(rows for rows in read if rows.height)])
        key = store_key(files, part.parents[2])
        write_text(part, ROWS, source_digest(raw, self.spec, key))
        private = canonical_records(raw, self.spec)
        write_text(part, TALLY, json.dumps(asdict(private.tally)))
        del raw
        write_canonical(part, "source", private.records)
        write_canonical(part, "held_out", private.held_out)
        texts, ids = _prints(private, self.spec, key)
        write_array(part, PRINTS, texts)
        if ids is not None:
            write_array(part, IDS, ids)
        for piece in pieces:
            files.remove(piece)


def prints_of(private: PrivateRecords, spec: PrivateDatasetSpec, key: bytes) -> Prints:
    """Fingerprints of a cohort's records, those held out included."""
    texts, ids = _prints(private, spec, key)
    return Prints(single_prints([texts]), ids)


def _prints(private: PrivateRecords, spec: PrivateDatasetSpec, key: bytes) -> Prints:
    """Fingerprints of texts, as often as they occur, and of ids where these name records."""
    both = [private.records, private.held_out]
    texts = all_prints(chain(*(each["text"] for each in both)), key)
    if spec.columns.id is None or spec.privacy_unit.column is not None:
        return Prints(texts)
    return Prints(texts, id_prints(chain(*(each["record_id"] for each in both)), key))


@dataclass(frozen=True)
class Embed:
    """Embeds the records of a part, unless they are embedded already.

    Attributes:
        manifest: The artifact `text_embedder` of the public base.
    """

    manifest: Mapping[str, Any]

    def __call__(self, part: Folder) -> dict[str, str]:
        """Writes both splits' embeddings; returns what made them, which is public."""
        keep_out_of_core_dumps()
        embedder = OpenedModels().text_embedder(self.manifest)
        for split in SPLITS:
            texts = read_table(part, f"{split}.parquet")["text"].to_list()
            version = version_of(self.manifest, version_of_texts(texts), embedder.made_by)
            if read_text(part, f"{split}_embeddings.version") == version:
                continue
            files_of(part).remove(part / f"{split}_embeddings.version")
            write_array(part, f"{split}_embeddings.npy", embedder.embed(texts))
            write_text(part, f"{split}_embeddings.version", version)
        return embedder.made_by


@dataclass(frozen=True)
class Count:
    """Counts the records of a part that mechanisms read.

    Attributes:
        count: Turns private inputs into whole numbers; it holds public values only.
        with_embeddings: Whether it reads embeddings.
        exchange: Owner-only folder in the store, for counts that are too many to be sent.
        state: File in it, of arrays that `count` reads beside the records; None: it reads none.
    """

    count: Callable[[PrivateInputs], np.ndarray]
    with_embeddings: bool = True
    exchange: Folder | None = None
    state: Folder | None = None

    def __call__(self, part: Folder) -> np.ndarray | Folder:
        """Returns counts without noise, or the file in the store that holds them: private."""
        keep_out_of_core_dumps()
        inputs = read_part(part, "source", with_embeddings=self.with_embeddings)
        counts = self.count(replace(inputs, state=self._state()))
        if self.exchange is None or counts.nbytes <= LARGEST_SENT:
            return counts
        path = self.exchange / f"{part.name}.npy"
        files = files_of_exchange(self.exchange)
        write_file(files, path, counts)
        if not files.has_begun(self.exchange):  # An object needs no folder to be written.
            files.remove(path)
            raise FileNotFoundError("Expected a folder for counts of a part, got a removed one.")
        return path

    def _state(self) -> Sequence[np.ndarray]:
        """The arrays, which this process reads once for all parts that it works on."""
        path = self.state
        if path is None:
            return ()
        return kept("state", str(path), lambda: read_arrays(files_of_exchange(path.parent), path))


@dataclass(frozen=True)
class NoteRead:
    """Notes in the contribution table that a release reads the records of a part.

    Attributes:
        reservation: Its charge in the ledger.
    """

    reservation: str

    def __call__(self, part: Folder) -> None:
        """Notes the source split."""
        keep_out_of_core_dumps()
        table = Contributions(files_of(part), part.parents[1] / "contributions")
        table.note(self.reservation, read_table(part, "source.parquet"))
