"""Fills the sensitive store from a cohort's source: records, then their embeddings."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.files.kept import TABLE
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.reading import (
    PIECE_BYTES,
    Tally,
    canonical_records,
    pieces_of_source,
    read_rows,
    refuse_unfit,
)
from dpsynth_assets.records.source_digest import joined_digest, source_digest
from dpsynth_assets.sensitive.fingerprints import Prints, single_prints
from dpsynth_assets.sensitive.part_tasks import (
    IDS,
    PIECE,
    PRINTS,
    ROWS,
    TALLY,
    Canonical,
    Embed,
    prints_of,
)
from dpsynth_assets.sensitive.record_parts import SPLITS, files_of, read_text
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import Workers

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder


def store_records(spec: PrivateDatasetSpec, store: StoredRecords, workers: Workers | None) -> None:
    """Reads a source and makes its records the dataset's, or refuses and keeps what was there.

    Args:
        spec: The cohort.
        store: Where they go.
        workers: Who makes parts canonical; None where records lie whole.

    Raises:
        PrivacyError: Records are unfit, were replaced under their version, or another account
            pays for them.
        SourceError: The source is missing, broken, or lacks a declared column.
    """
    if workers is not None:
        store_in_parts(spec, store, workers)
        return
    raw = read_rows(spec)
    private = canonical_records(raw, spec)
    refuse_unfit(private.tally, spec)
    with store.replacing_records(
        spec, partial(source_digest, raw, spec), partial(prints_of, private, spec)
    ):
        store.write_records(spec.name, "source", private.records)
        store.write_records(spec.name, "held_out", private.held_out)


def store_in_parts(spec: PrivateDatasetSpec, store: StoredRecords, workers: Workers) -> None:
    """Does so in parts, whose records no process reads together."""
    parts = store.parts(spec.name)
    places = parts.begin(spec.parts)
    try:
        write_parts(spec, places, workers)
        refuse_unfit(tally_of_parts(places), spec)
        rows = digest_of_parts(places)
        prints = prints_of_parts(places)
        # Both were made under the store's key.
        with store.replacing_records(spec, lambda _: rows, lambda _: prints):
            remove_notes(places)
            store.keep_parts(spec.name, places)
    finally:
        parts.drop(places)


def require_parts(spec: PrivateDatasetSpec, store: StoredRecords) -> tuple[Folder, ...]:
    """The parts of a dataset, as many as it declares.

    Raises:
        PrivacyError: Its records lie whole, or in another number of parts.
    """
    places = store.parts(spec.name).places
    if len(places) != spec.parts:
        raise PrivacyError(
            f"parts: expected the records of {spec.name!r} in {spec.parts} parts, got "
            f"{len(places) or 'none'}. Materialise {spec.name}/shared/private_records."
        )
    return places


def embed_whole(
    spec: PrivateDatasetSpec,
    store: StoredRecords,
    manifest: Mapping[str, Any],
    embedder: "TextEmbedder",
    progress: Callable[[str], ProgressCallback],
) -> None:
    """Embeds records that lie whole, where they are not embedded yet.

    Args:
        spec: The cohort.
        store: Where they lie.
        manifest: What describes the embedder.
        embedder: The embedder, opened.
        progress: Opens a report of a title.
    """
    for split in SPLITS:
        digest = store.records_digest(spec.name, split)
        private = store.read_internal(spec.name, split, purpose="embed records")
        texts = private.records["text"].to_list()
        version = version_of(manifest, version_of_texts(texts), embedder.made_by)
        report = progress(f"Embedding private records ({split})")
        if store.embeddings_version(spec.name, split) == version:
            report(1.0, "already embedded")
            continue
        embeddings = embedder.embed(texts, _without_counts(report))
        store.write_embeddings(spec.name, split, embeddings, version, embedder.made_by, digest)


def embed_in_parts(
    spec: PrivateDatasetSpec,
    store: StoredRecords,
    manifest: Mapping[str, Any],
    workers: Workers,
    progress: Callable[[str], ProgressCallback],
    *,
    gpus: float,
) -> None:
    """Embeds each part that is not embedded yet."""
    places = require_parts(spec, store)
    report = progress("Embedding private records, part by part")
    made_by = embed_parts(manifest, places, workers, report, gpus=gpus)
    store.note_embedded(spec.name, made_by)


def _without_counts(report: ProgressCallback) -> ProgressCallback:
    """Passes the share done and drops the message, which would tell how many records there are."""
    return lambda share, _message: report(share, "")


# Reads a source into parts, embeds them, counts and draws over them: the driver's side of workers.
#
# The driver sorts rows into parts in one pass, holds the keys and the ledger, adds up what the
# workers return and collects what they keep. It never holds the records of more than a few batches.


def write_parts(
    spec: PrivateDatasetSpec,
    places: Sequence[Folder],
    workers: Workers,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Reads a cohort's source once and leaves canonical records in the folders of new parts.

    Args:
        spec: The declaration; as many parts as there are folders.
        places: Empty folders (`RecordParts.begin`).
        workers: Who makes the parts canonical.
        piece_bytes: Memory that rows may take before they are written.

    Raises:
        SourceError: The source is missing, broken, or lacks a declared column.
        WorkerError: A part failed.
    """
    nothing = pl.DataFrame()
    for number, pieces in enumerate(pieces_of_source(spec, piece_bytes)):
        for part, place in enumerate(places):  # Which get rows must not show in names of files.
            path = place / f"{PIECE}-{number:05d}.parquet"
            files_of(place).write(path, TABLE.write(pieces.get(part, nothing)))
    for _ in workers.map_parts(Canonical(spec), places):
        pass


def digest_of_parts(places: Iterable[Folder]) -> str:
    """The digest of all rows, as `source_digest` makes it of a source that is read whole."""
    return joined_digest(read_text(place, ROWS) or "0" for place in places)


def tally_of_parts(places: Iterable[Folder]) -> Tally:
    """Numbers of records, and of those set aside, of the whole source."""
    return Tally.of_all(Tally(**json.loads(read_text(place, TALLY) or "")) for place in places)


def prints_of_parts(places: Sequence[Folder]) -> Prints:
    """Fingerprints of the records of a cohort, as `part_tasks.prints_of` makes them of a whole."""
    texts = single_prints(_notes(places, PRINTS))
    ids = [*_notes(places, IDS)]
    return Prints(texts, np.unique(np.concatenate(ids)) if ids else None)


def _notes(places: Sequence[Folder], name: str) -> Iterator[np.ndarray]:
    for place in places:
        if files_of(place).exists(place / name):
            yield files_of(place).read_array(place / name)


def remove_notes(places: Iterable[Folder]) -> None:
    """Removes what the workers left for the driver alone."""
    for place in places:
        for name in (PRINTS, IDS, ROWS, TALLY):
            files_of(place).remove(place / name)


def embed_parts(
    manifest: Mapping[str, Any],
    places: Sequence[Folder],
    workers: Workers,
    report: ProgressCallback,
    *,
    gpus: float = 0,
) -> dict[str, str]:
    """Embeds every part that is not embedded yet; returns what made the embeddings (public).

    A run that was killed goes on with the parts that it had not finished.

    Raises:
        PrivacyError: Workers embed in different ways, so that who worked on a part could be seen
            in the results.
    """
    made_by: dict[str, str] | None = None
    for done, made in enumerate(workers.map_parts(Embed(dict(manifest)), places, gpus=gpus), 1):
        if made_by is not None and made != made_by:
            raise PrivacyError(
                "Expected workers that embed in one way, got "
                f"{sorted(made_by.items())} and {sorted(made.items())}. Use nodes of one kind."
            )
        made_by = made
        report(done / len(places), "")
    return made_by or {}
