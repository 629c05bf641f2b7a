"""Fills the sensitive store from a cohort's source: records, then their embeddings."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.reading import (
    Tally,
    pieces_of_source,
    refuse_unfit,
)
from dpsynth_assets.sensitive import part_tasks
from dpsynth_assets.sensitive.fingerprints import prints_of
from dpsynth_assets.sensitive.read_records import joined_digest
from dpsynth_assets.sensitive.record_parts import PIECE, SPLITS, files_of
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import Here, Workers

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder


def store_records(spec: PrivateDatasetSpec, store: StoredRecords, workers: Workers) -> None:
    """Reads a source and makes its records the dataset's, or refuses and keeps what was there.

    Args:
        spec: The cohort; no process reads the records of several shards together.
        store: Where they go.
        workers: Who makes shards canonical.

    Raises:
        PrivacyError: Records are unfit, were replaced under their version, or another account
            pays for them.
        SourceError: The source is missing, broken, or lacks a declared column.
    """
    parts = store.parts(spec.name)
    places = parts.begin(spec.parts)
    nothing, canonical = pl.DataFrame(), partial(part_tasks.make_canonical, spec)
    try:
        for number, pieces in enumerate(pieces_of_source(spec)):
            for part, place in enumerate(places):  # Which get rows must not show in names of files.
                path = place / f"{PIECE}-{number:05d}.parquet"
                files_of(place).write_table(path, pieces.get(part, nothing))
        digests, tallies = zip(*workers.map_parts(canonical, places), strict=True)
        refuse_unfit(Tally.of_all(tallies), spec)
        prints = prints_of(canonical_frames(places), spec, store.read_records.key)
        with store.admitting(spec, joined_digest(digests), prints):
            parts.keep(places)
    finally:
        parts.drop(places)


def require_parts(spec: PrivateDatasetSpec, store: StoredRecords) -> tuple[Folder, ...]:
    """The shards of a dataset, as many as it declares.

    Raises:
        PrivacyError: Its records are in another number of shards, or nowhere yet.
    """
    places = store.parts(spec.name).places
    if len(places) != spec.parts:
        raise PrivacyError(
            f"parts: expected the records of {spec.name!r} in {spec.parts} parts, got "
            f"{len(places)}. Materialise {spec.name}/shared/private_records."
        )
    return places


def embed_records(
    spec: PrivateDatasetSpec,
    store: StoredRecords,
    manifest: Mapping[str, Any],
    embedder: "TextEmbedder",
    workers: Workers,
    report: ProgressCallback,
    *,
    gpus: float = 0,
) -> None:
    """Embeds the records of each shard that is not embedded yet.

    One process at a time embeds a cohort: another waits, then finds what is made. Charges and new
    records do not wait for it.

    Args:
        spec: The cohort.
        store: Where they lie.
        manifest: What describes the embedder.
        embedder: The embedder, opened in this process.
        workers: Who embeds.
        report: Told the share done.
        gpus: GPUs that a worker needs.
    """
    with store.read_records.alone(f"{spec.name}.embeddings"):
        places = require_parts(spec, store)
        embed_parts(manifest, places, workers, report, gpus=gpus, embedder=embedder)


# Reads a source into shards, embeds them, counts and draws over them: the driver's side of workers.
#
# The driver sorts rows into shards in one pass, holds the keys and the ledger, adds up what the
# workers return and collects what they keep. It never holds the records of more than a few batches.


def canonical_frames(places: Sequence[Folder]) -> Iterator[pl.DataFrame]:
    """The records of a cohort, those held out included, one split of a shard after another."""
    for place in places:
        for split in SPLITS:
            yield files_of(place).read_table(place / f"{split}.parquet")


def embed_parts(
    manifest: Mapping[str, Any],
    places: Sequence[Folder],
    workers: Workers,
    report: ProgressCallback,
    *,
    gpus: float = 0,
    embedder: "TextEmbedder | None" = None,
) -> dict[str, str]:
    """Embeds every shard that is not embedded yet; returns what made the embeddings (public).

    A run that was killed goes on with the shards that it had not finished.

    Raises:
        PrivacyError: Workers embed in different ways, so that who worked on a shard could be seen
            in the results.
    """
    made_by: dict[str, str] | None = None
    told = report if len(places) == 1 else None  # One shard tells its own share.
    task = partial(
        part_tasks.embed_part, dict(manifest), Here((embedder, told))
    )  # Open in this process alone.
    for done, made in enumerate(workers.map_parts(task, places, gpus=gpus), 1):
        if made_by is not None and made != made_by:
            raise PrivacyError(
                "Expected workers that embed in one way, got "
                f"{sorted(made_by.items())} and {sorted(made.items())}. Use nodes of one kind."
            )
        made_by = made
        report(done / len(places), "")
    return made_by or {}
