"""Records and embeddings of a dataset that lies in parts: the same two assets, made by workers."""

from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.base import Staged
from dpsynth_assets.methods.models_run import TEXT_EMBEDDER
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.keys import public_key, shared_key
from dpsynth_assets.orchestration.assets.model_steps import model_step, on_processors, step_of_tasks
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.orchestration.resources.workers import PartWorkers
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.tags import PRIVACY, SENSITIVE
from dpsynth_assets.workers import Workers


def parted_assets(spec: PrivateDatasetSpec) -> list[dg.AssetsDefinition]:
    """Private records and private embeddings of a dataset with more than one part."""
    return [_private_records(spec), _private_embeddings(spec)]


def declared_of_records(spec: PrivateDatasetSpec) -> dict[str, Any]:
    """Metadata of private records: what is declared about them, and no count."""
    return {
        "dpsynth/privacy_unit": spec.unit.describe(),
        "dpsynth/neighboring_relation": str(spec.neighboring_relation),
        "dpsynth/source_version": spec.source.version,
        "dpsynth/held_out_fraction": spec.held_out_fraction,
        "dpsynth/set_aside": "counts: `dpsynth datasets check` on the steward's terminal",
    }


def store_in_parts(spec: PrivateDatasetSpec, store: SensitiveStore, workers: Workers) -> None:
    """Reads a source into parts and makes them the dataset's, or refuses and keeps what was there.

    Raises:
        PrivacyError: Records are unfit, were replaced under their version, or another account
            pays for them.
        SourceError: The source is missing, broken, or lacks a declared column.
    """
    from dpsynth_assets.records.reading import refuse_unfit
    from dpsynth_assets.sensitive import parted_source

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


def given_parts(spec: PrivateDatasetSpec, method: Staged[Any], stage: Stage) -> bool:
    """Whether workers go over the parts of the records for a stage."""
    if not stage.in_parts or spec.parts <= 1:
        return False
    return not stage.in_model or on_processors(spec.public_data, method, stage.name)


def require_parts(spec: PrivateDatasetSpec, store: SensitiveStore) -> tuple[Folder, ...]:
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


def _common(spec: PrivateDatasetSpec, artifact: str) -> dict[str, Any]:
    return {
        "key": shared_key(spec.name, artifact),
        "group_name": level_group(spec.name, SENSITIVE),
        "owners": spec.owners,
        "tags": {PRIVACY: SENSITIVE},
    }


def _private_records(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(spec, "private_records"),
        metadata=code_references("dpsynth_assets.records.reading.pieces_of_source"),
        kinds={"polars"},
        code_version=version_of(
            spec.source, spec.columns, spec.privacy_unit, spec.public_facts, spec.parts
        ),
        description=(
            f"{spec.description or 'Private records.'} Canonical columns, unusable records set "
            "aside, contributions bounded by the privacy unit, held-out units split off, in "
            f"{spec.parts} parts by a keyed hash of the unit. Owner-only store; no count is shown."
        ),
    )
    @private_section(f"Reading dataset {spec.name!r}")
    def private_records(
        sensitive_store: SensitiveStore, workers: PartWorkers
    ) -> dg.MaterializeResult:
        store_in_parts(spec, sensitive_store, workers.open())
        return dg.MaterializeResult(
            metadata={**declared_of_records(spec), "dpsynth/parts": spec.parts}
        )

    return private_records


def _private_embeddings(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    step, gpus = step_of_tasks(model_step(spec.public_data, TEXT_EMBEDDER))

    @dg.asset(
        **_common(spec, "private_embeddings"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        deps=[shared_key(spec.name, "private_records")],
        ins={"text_embedder": dg.AssetIn(public_key(spec.public_data, "text_embedder"))},
        kinds={"pytorch", "numpy"},
        **step,
        code_version=version_of("embeddings", spec.public_data, spec.parts),
        description=(
            "Embeddings of the private records, float32 (N, d), unit length, made part by part and "
            "reused by clusters and evaluation. Owner-only store."
        ),
    )
    @private_section(f"Embedding dataset {spec.name!r}")
    def private_embeddings(
        context: dg.AssetExecutionContext,
        text_embedder: dict,
        models: Models,
        sensitive_store: SensitiveStore,
        workers: PartWorkers,
        progress: Progress,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.sensitive.parted_source import embed_parts

        with public_section("Opening the text embedder"):
            models.text_embedder(text_embedder)  # What it says of itself if it is not there.
        places = require_parts(spec, sensitive_store)
        report = progress.start(context, "Embedding private records, part by part")
        made_by = embed_parts(text_embedder, places, workers.open(), report, gpus=gpus)
        sensitive_store.note_embedded(spec.name, made_by)
        return dg.MaterializeResult(metadata={"embedder": text_embedder["name"]})

    return private_embeddings
