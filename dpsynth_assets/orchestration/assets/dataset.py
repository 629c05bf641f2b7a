"""Assets that every method of a dataset shares: records, embeddings, and released histograms."""

from functools import partial
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.models_run import TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.keys import public_key, shared_key
from dpsynth_assets.orchestration.assets.model_steps import model_step, step_of_tasks
from dpsynth_assets.orchestration.assets.release_asset import release_asset
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.tags import PRIVACY, SENSITIVE


def dataset_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """What all methods of one dataset share: records, embeddings, and released histograms."""
    histograms = [
        release_asset(spec, plan, shared, stage)
        for shared in plan.shared
        for stage in shared.plan.stages
    ]
    return dg.Definitions(assets=[_private_records(spec), _private_embeddings(spec), *histograms])


def _common(spec: PrivateDatasetSpec, artifact: str, *resources: str) -> dict[str, Any]:
    return {
        "key": shared_key(spec.name, artifact),
        "group_name": level_group(spec.name, SENSITIVE),
        "owners": spec.owners,
        "tags": {PRIVACY: SENSITIVE},
        "required_resource_keys": {
            "sensitive_store",
            *resources,
            *(["workers"] if spec.parts > 1 else []),
        },
    }


def _of_parts(spec: PrivateDatasetSpec) -> tuple[int, ...]:
    """The number of parts, where there is more than one: what is made is another value."""
    return (spec.parts,) if spec.parts > 1 else ()


def _private_records(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    divided = f", in {spec.parts} parts by a keyed hash of the unit" if spec.parts > 1 else ""
    metadata: dict[str, Any] = {
        "dpsynth/privacy_unit": spec.unit.describe(),
        "dpsynth/neighboring_relation": str(spec.neighboring_relation),
        "dpsynth/source_version": spec.source.version,
        "dpsynth/held_out_fraction": spec.held_out_fraction,
        "dpsynth/set_aside": "counts: `dpsynth datasets check` on the steward's terminal",
        **({"dpsynth/parts": spec.parts} if spec.parts > 1 else {}),
    }

    @dg.asset(
        **_common(spec, "private_records"),
        metadata=code_references("dpsynth_assets.sensitive.read_source.store_records"),
        kinds={"polars"},
        code_version=version_of(
            spec.source, spec.columns, spec.privacy_unit, spec.public_facts, *_of_parts(spec)
        ),
        description=(
            f"{spec.description or 'Private records.'} Canonical columns, unusable records set "
            "aside, contributions bounded by the privacy unit, held-out units split "
            f"off{divided}. Owner-only store; no count is shown."
        ),
    )
    @private_section(f"Reading dataset {spec.name!r}")
    def private_records(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        from dpsynth_assets.sensitive.read_source import store_records

        given = context.resources
        store_records(spec, given.sensitive_store, _workers(spec, given))
        return dg.MaterializeResult(metadata=metadata)

    return private_records


def _private_embeddings(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    step, gpus = model_step(spec.public_data, TEXT_EMBEDDER), 0.0
    if spec.parts > 1:
        step, gpus = step_of_tasks(step)
    made = "made part by part" if spec.parts > 1 else "made once"

    @dg.asset(
        **_common(spec, "private_embeddings", "models", "progress"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        deps=[shared_key(spec.name, "private_records")],
        ins={"text_embedder": dg.AssetIn(public_key(spec.public_data, "text_embedder"))},
        kinds={"pytorch", "numpy"},
        **step,
        code_version=version_of("embeddings", spec.public_data, *_of_parts(spec)),
        description=(
            f"Embeddings of the private records, float32 (N, d), unit length, {made} and reused "
            "by clusters and evaluation. Owner-only store."
        ),
    )
    @private_section(f"Embedding dataset {spec.name!r}")
    def private_embeddings(
        context: dg.AssetExecutionContext, text_embedder: dict
    ) -> dg.MaterializeResult:
        from dpsynth_assets.sensitive.read_source import embed_in_parts, embed_whole

        given = context.resources
        with public_section("Opening the text embedder"):
            embedder = given.models.text_embedder(text_embedder)
        progress, store = partial(given.progress.start, context), given.sensitive_store
        if (workers := _workers(spec, given)) is None:
            embed_whole(spec, store, text_embedder, embedder, progress)
        else:
            embed_in_parts(spec, store, text_embedder, workers, progress, gpus=gpus)
        return dg.MaterializeResult(metadata={"embedder": text_embedder["name"]})

    return private_embeddings


def _workers(spec: PrivateDatasetSpec, given: Any) -> Any:
    """Who goes over parts; None where records lie whole."""
    return given.workers.open() if spec.parts > 1 else None
