"""Assets that every method of a dataset shares: records, embeddings, secrets, histograms."""

import json
from collections.abc import Callable
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.methods.work import TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.audit import measured_recall
from dpsynth_assets.orchestration.assets.keys import cohort_asset, public_ins, shared_key
from dpsynth_assets.orchestration.assets.release_asset import part_assets
from dpsynth_assets.orchestration.resources.model_pool import model_step, step_of_tasks
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.sensitive.read_source import require_parts
from dpsynth_assets.tags import SENSITIVE
from dpsynth_assets.workers import LocalWorkers, Workers

SECRETS_KEY = "secrets"
DICTIONARY, SUMMARY = "secrets_dictionary", "secrets_summary.json"
"""Private counts for the steward: secrets of each kind, and those over their declared cap."""


def dataset_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Records, embeddings, released histograms, and secrets where some are declared."""
    histograms = [asset for shared in plan.shared for asset in part_assets(plan, shared)]
    found = [] if spec.secrets is None else [_secrets(spec, spec.secrets)]
    shared = [_private_records(spec), _private_embeddings(spec), *histograms, *found]
    return dg.Definitions(assets=shared)


def _common(
    spec: PrivateDatasetSpec, artifact: str, code: tuple[str, ...], *resources: str
) -> dict[str, Any]:
    workers = ["workers"] if spec.parts > 1 else []
    return {
        **cohort_asset(spec, SHARED, artifact, SENSITIVE, *code),
        "required_resource_keys": {"sensitive_store", *resources, *workers},
    }


def _of_parts(spec: PrivateDatasetSpec) -> tuple[int, ...]:
    """The number of shards, where there is more than one: what is made is another value."""
    return (spec.parts,) if spec.parts > 1 else ()


def _private_records(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    divided = f", in {spec.parts} parts by a keyed hash of the unit" if spec.parts > 1 else ""
    metadata: dict[str, Any] = {
        "dpsynth/privacy_unit": spec.unit.describe(),
        "dpsynth/neighboring_relation": str(spec.neighboring_relation),
        "dpsynth/source_version": spec.source.version,
        "dpsynth/held_out_fraction": spec.held_out_fraction,
    }

    @dg.asset(
        **_common(spec, "private_records", ("dpsynth_assets.sensitive.read_source.store_records",)),
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
    made = "made shard by shard" if spec.parts > 1 else "made once"
    code = ("dpsynth_assets.models.text_embedder.TextEmbedder",)

    @dg.asset(
        **_common(spec, "private_embeddings", code, "models", "progress"),
        deps=[shared_key(spec.name, "private_records")],
        ins=public_ins(spec.public_data, "text_embedder"),
        kinds={"pytorch", "numpy"},
        **step,
        code_version=version_of("embeddings", spec.public_data, *_of_parts(spec)),
        description=(
            f"Embeddings of the private records, float32 (N, d), unit length, {made} and used by "
            "clusters and evaluation. Owner-only store."
        ),
    )
    @private_section(f"Embedding dataset {spec.name!r}")
    def private_embeddings(
        context: dg.AssetExecutionContext, text_embedder: dict
    ) -> dg.MaterializeResult:
        from dpsynth_assets.sensitive.read_source import embed_records

        given = context.resources
        with public_section("Opening the text embedder"):
            embedder = given.models.text_embedder(text_embedder)
        report = given.progress.start(context, "Embedding private records")
        store, workers = given.sensitive_store, _workers(spec, given)
        embed_records(spec, store, text_embedder, embedder, workers, report, gpus=gpus)
        return dg.MaterializeResult(metadata={"embedder": text_embedder["name"]})

    return private_embeddings


def _workers(spec: PrivateDatasetSpec, given: Any) -> Workers:
    """Who goes over the shards of the records: one shard is done by the step itself."""
    workers: Workers = given.workers.open() if spec.parts > 1 else LocalWorkers()
    return workers


def _secrets(spec: PrivateDatasetSpec, declared: SecretsSpec) -> dg.AssetsDefinition:
    code = (
        "dpsynth_assets.secret_detection.finding.find_secrets",
        "dpsynth_assets.secret_detection.recall.planted_recall",
    )

    @dg.asset(
        **_common(spec, SECRETS_KEY, code, "progress"),
        deps=[shared_key(spec.name, "private_records")],
        ins=public_ins(spec.public_data, "public_corpus"),
        kinds={"polars"},
        code_version=version_of("secrets", declared),
        description=(
            "The dictionary of declared secrets found in private records. Owner-only store; no "
            "count is shown. How much the detectors miss is measured on secrets planted in public "
            "text."
        ),
    )
    @private_section(f"Finding secrets of dataset {spec.name!r}")
    def secrets(context: dg.AssetExecutionContext, public_corpus: Any) -> dg.MaterializeResult:
        given = context.resources
        report = given.progress.start(context, f"{spec.name}/{SHARED}/{SECRETS_KEY}")
        report(0.0, "planting secrets in public text")
        with public_section("Planting secrets in public text"):
            recall = measured_recall(spec.name, declared, public_corpus["text"].to_list())
        share = lambda done: report(0.2 + 0.8 * done, "")  # noqa: E731
        _find(spec, declared, given.sensitive_store, _workers(spec, given), share)
        return dg.MaterializeResult(metadata=_metadata(declared, recall))

    return secrets


def _find(
    spec: PrivateDatasetSpec,
    declared: SecretsSpec,
    store: SensitiveStore,
    workers: Workers,
    share: Callable[[float], None],
) -> None:
    """Detects, and stores everything for the owner alone.

    Workers search the shards; values of columns are read from the source again.
    """
    from dpsynth_assets.secret_detection.finding import merged_dictionary, secrets_of_columns
    from dpsynth_assets.sensitive.part_tasks import find_in_parts

    found = find_in_parts(declared, require_parts(spec, store), workers, share)
    if any(kind.detector == "column" for kind in declared.kinds):
        shards = store.each_for_scoring(spec.name, "source", with_embeddings=False)
        ids = [one for some in shards for one in some.records["record_id"]]
        found = merged_dictionary([found.secrets, secrets_of_columns(spec, ids)])
    store.write_internal_table(spec.name, DICTIONARY, found.secrets)
    store.write_internal(spec.name, SUMMARY, json.dumps(found.over_their_caps(declared)))


def _metadata(declared: SecretsSpec, recall: list[dict[str, Any]]) -> dict[str, Any]:
    """Declared numbers and recall on planted secrets: all public."""
    rows: list[dict[str, Any]] = [
        {
            "kind": kind.name,
            "detector": kind.detector,
            "prior": kind.prior,
            "posterior": kind.posterior,
            "max_records": kind.max_records,
            "recall": "not measured"
            if one["recall"] is None
            else f"{rounded_down(one['recall'], '.3f')} "
            f"(at least {rounded_down(one['recall_at_least'], '.3f')})",
        }
        for kind, one in zip(declared.kinds, recall, strict=True)
    ]
    return {
        "dpsynth/secret_kinds": dg.MetadataValue.table([dg.TableRecord(row) for row in rows]),
    }
