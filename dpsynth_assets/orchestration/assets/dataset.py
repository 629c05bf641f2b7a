"""Assets that every method of a dataset shares: records, embeddings, and released histograms."""

from functools import partial
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.models_run import TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.keys import public_key, shared_key
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.assets.parted_records import declared_of_records, parted_assets
from dpsynth_assets.orchestration.assets.release_asset import release_asset
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore, Split
from dpsynth_assets.tags import PRIVACY, SENSITIVE

SPLITS: tuple[Split, ...] = ("source", "held_out")


def dataset_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """What all methods of one dataset share: records, embeddings, and released histograms."""
    histograms = [
        release_asset(spec, plan, shared, stage)
        for shared in plan.shared
        for stage in shared.plan.stages
    ]
    if spec.parts > 1:
        return dg.Definitions(assets=[*parted_assets(spec), *histograms])
    return dg.Definitions(assets=[_private_records(spec), _private_embeddings(spec), *histograms])


def _common(spec: PrivateDatasetSpec, artifact: str) -> dict[str, Any]:
    return {
        "key": shared_key(spec.name, artifact),
        "group_name": level_group(spec.name, SENSITIVE),
        "owners": spec.owners,
    }


def _private_records(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(spec, "private_records"),
        metadata=code_references("dpsynth_assets.records.reading.read_private_records"),
        tags={PRIVACY: SENSITIVE},
        kinds={"polars"},
        code_version=version_of(spec.source, spec.columns, spec.privacy_unit, spec.public_facts),
        description=(
            f"{spec.description or 'Private records.'} Canonical columns, unusable records set "
            "aside, contributions bounded by the privacy unit, held-out units split off. "
            "Owner-only store; no count is shown."
        ),
    )
    @private_section(f"Reading dataset {spec.name!r}")
    def private_records(sensitive_store: SensitiveStore) -> dg.MaterializeResult:
        from dpsynth_assets.records.reading import canonical_records, read_rows, refuse_unfit
        from dpsynth_assets.records.source_digest import source_digest
        from dpsynth_assets.sensitive.part_tasks import prints_of

        raw = read_rows(spec)
        private = canonical_records(raw, spec)
        refuse_unfit(private.tally, spec)
        with sensitive_store.replacing_records(
            spec, partial(source_digest, raw, spec), partial(prints_of, private, spec)
        ):
            sensitive_store.write_records(spec.name, "source", private.records)
            sensitive_store.write_records(spec.name, "held_out", private.held_out)
        return dg.MaterializeResult(metadata=declared_of_records(spec))

    return private_records


def _private_embeddings(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(spec, "private_embeddings"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        deps=[shared_key(spec.name, "private_records")],
        ins={"text_embedder": dg.AssetIn(public_key(spec.public_data, "text_embedder"))},
        tags={PRIVACY: SENSITIVE},
        kinds={"pytorch", "numpy"},
        **model_step(spec.public_data, TEXT_EMBEDDER),
        code_version=version_of("embeddings", spec.public_data),
        description=(
            "Embeddings of the private records, float32 (N, d), unit length, made once and reused "
            "by clusters and evaluation. Owner-only store."
        ),
    )
    @private_section(f"Embedding dataset {spec.name!r}")
    def private_embeddings(
        context: dg.AssetExecutionContext,
        text_embedder: dict,
        models: Models,
        sensitive_store: SensitiveStore,
        progress: Progress,
    ) -> dg.MaterializeResult:
        with public_section("Opening the text embedder"):
            embedder = models.text_embedder(text_embedder)
        for split in SPLITS:
            digest = sensitive_store.records_digest(spec.name, split)
            private = sensitive_store.read_internal(spec.name, split, purpose="embed records")
            texts = private.records["text"].to_list()
            version = version_of(text_embedder, version_of_texts(texts), embedder.made_by)
            report = progress.start(context, f"Embedding private records ({split})")
            if sensitive_store.embeddings_version(spec.name, split) == version:
                report(1.0, "already embedded")
                continue
            embeddings = embedder.embed(texts, _without_counts(report))
            sensitive_store.write_embeddings(
                spec.name, split, embeddings, version, embedder.made_by, digest
            )
        return dg.MaterializeResult(metadata={"embedder": text_embedder["name"]})

    return private_embeddings


def _without_counts(report: ProgressCallback) -> ProgressCallback:
    """Passes the share done and drops the message, which would tell how many records there are."""
    return lambda share, _message: report(share, "")
