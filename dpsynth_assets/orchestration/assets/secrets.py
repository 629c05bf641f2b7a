"""The asset that finds declared secrets in the private records, and what its detectors miss."""

import json
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.kept import JSON
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.keys import dataset_key, public_key
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.report.label_texts import RECALL
from dpsynth_assets.sensitive.read_source import require_parts
from dpsynth_assets.sensitive.store import DICTIONARY
from dpsynth_assets.tags import PRIVACY, SENSITIVE
from dpsynth_assets.workers import Workers

SECRETS_KEY = "secrets"
SUMMARY = "secrets_summary.json"
"""Private counts for the steward: secrets of each kind, and those over their declared cap."""

RECALL_SEED = 0


def secret_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """The asset `secrets` of a dataset that declares some; nothing else."""
    if spec.secrets is None:
        return dg.Definitions()
    return dg.Definitions(assets=[_secrets(spec, spec.secrets)])


def recall_results(dataset: str) -> list[dict[str, Any]]:
    """Last measured recall of each kind of secret of a dataset, as a label prints it; public."""
    return list(_recalls().get(dataset, []))


def _recalls() -> dict[str, Any]:
    path = home().audits.with_name("detector_recall.json")
    if not path.exists():
        return {}
    try:
        known: dict[str, Any] = JSON.read(path)
    except ValueError:
        raise ValueError(
            f"Expected the measured recall of detectors in {path}, got something else. Remove the "
            "file and materialise secrets again."
        ) from None
    return known


def _secrets(spec: PrivateDatasetSpec, declared: SecretsSpec) -> dg.AssetsDefinition:
    resources = {"sensitive_store", "progress"} | ({"workers"} if spec.parts > 1 else set())

    @dg.asset(
        key=dataset_key(spec.name, SHARED, SECRETS_KEY),
        group_name=level_group(spec.name, SENSITIVE),
        owners=spec.owners,
        deps=[dataset_key(spec.name, SHARED, "private_records")],
        ins={"public_corpus": dg.AssetIn(public_key(spec.public_data, "public_corpus"))},
        tags={PRIVACY: SENSITIVE},
        metadata=code_references(
            "dpsynth_assets.secret_detection.incidence.find_secrets",
            "dpsynth_assets.secret_detection.recall.planted_recall",
        ),
        kinds={"polars"},
        code_version=version_of("secrets", declared),
        description=(
            "Which private record holds which declared secret, and the dictionary of secrets "
            "found. Owner-only store; no count is shown. What its detectors miss is measured on "
            "secrets planted in public text."
        ),
        required_resource_keys=resources,
    )
    @private_section(f"Finding secrets of dataset {spec.name!r}")
    def secrets(
        context: dg.AssetExecutionContext, public_corpus: pl.DataFrame
    ) -> dg.MaterializeResult:
        given = context.resources
        report = given.progress.start(context, f"{spec.name}/{SHARED}/{SECRETS_KEY}")
        report(0.0, "planting secrets in public text")
        with public_section("Planting secrets in public text"):
            recall = measured_recall(spec.name, declared, public_corpus["text"].to_list())
        share = lambda done: report(0.2 + 0.8 * done, "")  # noqa: E731
        workers = given.workers.open() if spec.parts > 1 else None
        _find(spec, declared, given.sensitive_store, workers, share)
        return dg.MaterializeResult(metadata=_metadata(declared, recall))

    return secrets


def measured_recall(
    dataset: str, declared: SecretsSpec, public_texts: list[str]
) -> list[dict[str, Any]]:
    """Measures and keeps what each detector finds of planted secrets.

    **Privacy** Public text and made-up values only.
    """
    from dpsynth_assets.secret_detection import planted_recall

    results = [
        {
            **planted_recall(
                kind, public_texts, planted=declared.planted, seed=RECALL_SEED
            ).to_json(),
            "name": f"{dataset}/{RECALL}/{kind.name}",
            "detector": kind.detector,
        }
        for kind in declared.kinds
    ]
    content = JSON.write({**_recalls(), dataset: results})
    write_whole(home().audits.with_name("detector_recall.json"), content)
    return results


def _find(
    spec: PrivateDatasetSpec,
    declared: SecretsSpec,
    store: SensitiveStore,
    workers: Workers | None,
    share: Any,
) -> None:
    """Detects, and stores everything for the owner alone.

    Values of columns are read from the source anew, beside all records; else parts are searched by
    workers, and each keeps its own incidence.
    """
    from dpsynth_assets.secret_detection import find_secrets, values_of_columns
    from dpsynth_assets.sensitive.secret_parts import find_in_parts, forget_tables

    of_columns = any(kind.detector == "column" for kind in declared.kinds)
    if workers is not None and not of_columns:
        found = find_in_parts(declared, require_parts(spec, store), workers, share)
        store.forget_internal_table(spec.name, SECRETS_KEY)
    else:
        private = store.read_internal(spec.name, "source", purpose="find secrets")
        values = values_of_columns(spec)
        found = find_secrets(private.records, declared, of_columns=values, progress=share)
        forget_tables(store.parts(spec.name).places)
        store.write_internal_table(spec.name, SECRETS_KEY, found.table)
    store.write_internal_table(spec.name, DICTIONARY, found.secrets)
    store.write_internal(spec.name, SUMMARY, json.dumps(found.over_their_caps(declared)))


def _metadata(declared: SecretsSpec, recall: list[dict[str, Any]]) -> dict[str, Any]:
    """Declared numbers and recall on planted secrets: all public."""
    rows = [
        dg.TableRecord(
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
        )
        for kind, one in zip(declared.kinds, recall, strict=True)
    ]
    return {
        "dpsynth/secret_kinds": dg.MetadataValue.table(rows),
        "dpsynth/secret_adjacency": declared.adjacency,
        "dpsynth/secret_incidence": "public" if declared.public_incidence else "private",
        "dpsynth/planted": declared.planted,
        "dpsynth/counts": "over declared caps: secrets_summary.json in the sensitive store",
    }
