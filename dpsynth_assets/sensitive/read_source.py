"""Fills the sensitive store from a cohort's source: records, then their embeddings."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.reading import canonical_records, read_rows, refuse_unfit
from dpsynth_assets.records.source_digest import source_digest
from dpsynth_assets.sensitive import parted_source
from dpsynth_assets.sensitive.part_tasks import prints_of
from dpsynth_assets.sensitive.record_parts import SPLITS
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
        parted_source.write_parts(spec, places, workers)
        refuse_unfit(parted_source.tally_of_parts(places), spec)
        rows = parted_source.digest_of_parts(places)
        prints = parted_source.prints_of_parts(places)
        # Both were made under the store's key.
        with store.replacing_records(spec, lambda _: rows, lambda _: prints):
            parted_source.remove_notes(places)
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
    made_by = parted_source.embed_parts(manifest, places, workers, report, gpus=gpus)
    store.note_embedded(spec.name, made_by)


def _without_counts(report: ProgressCallback) -> ProgressCallback:
    """Passes the share done and drops the message, which would tell how many records there are."""
    return lambda share, _message: report(share, "")
