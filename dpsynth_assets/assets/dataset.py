"""Assets that every method of a dataset shares: records, embeddings, and the cluster histogram."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import dagster as dg
import numpy as np
from pydantic import Field

from dpsynth_assets.assets.embedded_records import embeddings_stated, require_stated_embeddings
from dpsynth_assets.assets.groups import Step, step_group
from dpsynth_assets.assets.identity import dataset_key, version_of, version_of_texts
from dpsynth_assets.assets.mechanism import Drawn, release_once
from dpsynth_assets.assets.public import public_key
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.shared_records import source_places
from dpsynth_assets.metadata import code_references, spend_metadata
from dpsynth_assets.methods.base import ProgressCallback
from dpsynth_assets.methods.planned import DatasetPlan, PlannedHistogram
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import ReleaseRequest, Reservation
from dpsynth_assets.resources.fingerprints import Reader
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import private_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore, Split
from dpsynth_assets.tags import (
    GPU_OP_TAGS,
    GPU_POOL,
    MECHANISM,
    PRIVACY,
    RELEASE,
    RELEASED,
    SENSITIVE,
)

SHARED = "shared"
SPLITS: tuple[Split, ...] = ("source", "held_out")
DEFAULT_RELEASE = "1"


class ReleaseConfig(dg.Config):
    """What a person may choose at launch; ε and δ are fixed by the dataset file."""

    release: str = Field(
        default="",
        description=(
            "Name of the release. The same name never pays twice; a new name draws afresh and "
            'pays. Empty: the run\'s tag `dpsynth/release`, else "1".'
        ),
    )


def release_name(context: dg.AssetExecutionContext, config: ReleaseConfig) -> str:
    """The release a run asks for: Launchpad, then run tag, then the first release."""
    return config.release or context.run.tags.get(RELEASE, "") or DEFAULT_RELEASE


def dataset_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Shared assets of one dataset."""
    assets = [_private_records(spec), _private_embeddings(spec)]
    if plan.histogram is not None:
        assets.append(_cluster_histogram(spec, plan, plan.histogram))
    return dg.Definitions(assets=assets)


def _common(spec: PrivateDatasetSpec, artifact: str) -> dict[str, Any]:
    return {
        "key": dataset_key(spec.name, SHARED, artifact),
        "group_name": step_group(spec.name, Step.RECORDS),
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
    def private_records(sensitive_store: SensitiveStore) -> dg.MaterializeResult:
        from dpsynth_assets.records import read_private_records

        with private_section(f"Reading dataset {spec.name!r}"):
            private = read_private_records(spec)
            reader = Reader(
                cohort=spec.name,
                account=spec.account,
                dataset=spec.dataset,
                places=tuple(sorted(source_places(spec.source.path))),
            )
            texts = chain(private.records["text"], private.held_out["text"])
            sensitive_store.refuse_shared_records(reader, texts)
            sensitive_store.write_records(spec.name, "source", private.records)
            sensitive_store.write_records(spec.name, "held_out", private.held_out)
        return dg.MaterializeResult(
            metadata={
                "dpsynth/privacy_unit": spec.unit.describe(),
                "dpsynth/neighboring_relation": str(spec.neighboring_relation),
                "dpsynth/source_version": spec.source.version,
                "dpsynth/held_out_fraction": spec.held_out_fraction,
                "dpsynth/set_aside": "counts: `dpsynth datasets check` on the steward's terminal",
            }
        )

    return private_records


def _private_embeddings(spec: PrivateDatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(spec, "private_embeddings"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        deps=[dataset_key(spec.name, SHARED, "private_records")],
        ins={"text_embedder": dg.AssetIn(public_key(spec.public_data, "text_embedder"))},
        tags={PRIVACY: SENSITIVE},
        kinds={"pytorch", "numpy"},
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of("embeddings", spec.public_data),
        description=(
            "Embeddings of the private records, float32 (N, d), unit length, made once and reused "
            "by clusters and evaluation. Owner-only store."
        ),
    )
    def private_embeddings(
        context: dg.AssetExecutionContext,
        text_embedder: dict,
        models: Models,
        sensitive_store: SensitiveStore,
        progress: Progress,
    ) -> dg.MaterializeResult:
        with private_section(f"Embedding dataset {spec.name!r}"):
            embedder = models.text_embedder(text_embedder)
            for split in SPLITS:
                private = sensitive_store.read_internal(spec.name, split, purpose="embed records")
                texts = private.records["text"].to_list()
                version = version_of(text_embedder, version_of_texts(texts), embedder.made_by)
                report = progress.start(context, f"Embedding private records ({split})")
                if sensitive_store.embeddings_version(spec.name, split) == version:
                    report(1.0, "already embedded")
                    continue
                embeddings = embedder.embed(texts, _without_counts(report))
                sensitive_store.write_embeddings(
                    spec.name, split, embeddings, version, embedder.made_by
                )
        return dg.MaterializeResult(metadata={"embedder": text_embedder["name"]})

    return private_embeddings


def _without_counts(report: ProgressCallback) -> ProgressCallback:
    """Passes the share done and drops the message, which would tell how many records there are."""
    return lambda share, _message: report(share, "")


def _cluster_histogram(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedHistogram
) -> dg.AssetsDefinition:
    from dpsynth_assets.methods.private_prediction.cluster_histogram import (
        CODE_VERSION,
        release_cluster_histogram,
    )

    def request(
        release: str, run_id: str, centers_version: str, stated: Mapping[str, Any]
    ) -> ReleaseRequest:
        return ReleaseRequest(
            cohort=spec.account,
            dataset=spec.dataset,
            asset=f"{spec.name}/{SHARED}/cluster_histogram",
            mechanism=f"two {planned.spec.noise} histograms over public clusters",
            guarantee=GuaranteeType.DP,
            event=planned.event,
            parameters={
                "noise": planned.spec.noise,
                "scale": planned.scale,
                "clusters_per_label": planned.spec.clusters_per_label,
                "labels": list(plan.terms.labels),
                "public_clusters": centers_version,
                **stated,
            },
            code_version=CODE_VERSION,
            data_version=spec.source.version,
            release=release,
            run_id=run_id,
        )

    @dg.asset(
        **_common(spec, "cluster_histogram"),
        metadata=code_references(
            "dpsynth_assets.methods.private_prediction.cluster_histogram.release_cluster_histogram"
        ),
        deps=[
            dataset_key(spec.name, SHARED, "private_records"),
            dataset_key(spec.name, SHARED, "private_embeddings"),
        ],
        ins={"public_clusters": dg.AssetIn(public_key(spec.public_data, "public_clusters"))},
        tags={PRIVACY: RELEASED, MECHANISM: f"discrete_{planned.spec.noise}_histogram"},
        kinds={"opendp"},
        code_version=version_of(planned.spec, spec.budget, spec.public_facts),
        description=(
            "Noisy counts per label and public cluster; the largest clusters of each label are "
            "kept and counted again (Amin et al. 2025, Section 4.1, rebalancing). Batch counts "
            "of every method come from here."
        ),
    )
    def cluster_histogram(
        context: dg.AssetExecutionContext,
        config: ReleaseConfig,
        public_clusters: np.ndarray,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
    ) -> dg.Output[dict]:
        book = ledger.open()

        def draw(reservation: Reservation) -> Drawn:
            private = sensitive_store.read_for_release(
                spec.name, ledger=book, reservation=reservation, with_embeddings=True
            )
            release = release_cluster_histogram(
                private,
                public_clusters,
                plan.terms,
                noise=planned.spec.noise,
                scale=planned.scale,
                clusters_per_label=planned.spec.clusters_per_label,
            )
            return Drawn(facts=release.value.to_json(), rows=None, cost=release.cost)

        with private_section(f"{spec.name}/{SHARED}/cluster_histogram"):
            stored = release_once(
                ledger=book,
                store=release_store,
                request=request(
                    release_name(context, config),
                    context.run_id,
                    array_version(public_clusters),
                    embeddings_stated(sensitive_store, spec.name),
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=draw,
                prepare=lambda: require_stated_embeddings(sensitive_store, spec.name),
            )
        facts = {**stored.facts, "reservation": stored.reservation.id}
        return dg.Output(
            facts,
            metadata={
                **spend_metadata(book, stored.reservation, plan.budget),
                "dpsynth/noise_scale": planned.scale,
                "dpsynth/plot": _histogram_plot(stored.facts),
            },
        )

    return cluster_histogram


def array_version(values: np.ndarray) -> str:
    """Digest of a public array: part of the identity of what is released over it."""
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def _histogram_plot(facts: dict[str, Any]) -> dg.MetadataValue:
    """Noisy counts of the kept clusters, a bar group per label, as an inline picture."""
    from dpsynth_assets.report.plots import histogram_plot, to_markdown

    groups = {str(label or "all"): list(counts) for label, counts in _kept_counts(facts)}
    return dg.MetadataValue.md(to_markdown(histogram_plot(groups), "noisy cluster counts"))


def _kept_counts(facts: dict[str, Any]) -> Any:
    return zip(facts["labels"], facts["dp_counts"], strict=True)
