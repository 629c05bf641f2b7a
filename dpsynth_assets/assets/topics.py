"""The released histogram of public topics, which conditional generation follows."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.assets.dataset import SHARED, ReleaseConfig, release_name
from dpsynth_assets.assets.embedded_records import embeddings_stated, require_stated_embeddings
from dpsynth_assets.assets.groups import Step, step_group
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.assets.mechanism import Drawn, release_once
from dpsynth_assets.assets.public import public_key
from dpsynth_assets.assets.public_inputs import public_versions
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import code_references, spend_metadata
from dpsynth_assets.methods.planned import DatasetPlan, PlannedTopics
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import ReleaseRequest, Reservation
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import private_section
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore
from dpsynth_assets.tags import MECHANISM, PRIVACY, RELEASED

SHOWN_TOPICS = 12


def topic_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The topic histogram of one dataset, if its file declares one."""
    if plan.topics is None:
        return dg.Definitions()
    return dg.Definitions(assets=[_topic_histogram(spec, plan, plan.topics)])


def _topic_histogram(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedTopics
) -> dg.AssetsDefinition:
    from dpsynth_assets.methods.topic_histogram import CODE_VERSION, release_topic_histogram

    name = f"{spec.name}/{SHARED}/topic_histogram"

    def request(
        release: str, run_id: str, inputs: Mapping[str, str], stated: Mapping[str, Any]
    ) -> ReleaseRequest:
        return ReleaseRequest(
            cohort=spec.account,
            dataset=spec.dataset,
            asset=name,
            mechanism="gaussian histogram over public topics",
            guarantee=GuaranteeType.DP,
            event=planned.event,
            parameters={
                "noise_std": planned.noise_std,
                "labels": list(plan.terms.labels),
                "inputs": dict(inputs),
                **stated,
            },
            code_version=CODE_VERSION,
            data_version=spec.source.version,
            release=release,
            run_id=run_id,
        )

    @dg.asset(
        key=dataset_key(spec.name, SHARED, "topic_histogram"),
        group_name=step_group(spec.name, Step.RECORDS),
        owners=spec.owners,
        metadata=code_references("dpsynth_assets.methods.topic_histogram.release_topic_histogram"),
        deps=[
            dataset_key(spec.name, SHARED, "private_records"),
            dataset_key(spec.name, SHARED, "private_embeddings"),
        ],
        ins={"topic_model": dg.AssetIn(public_key(spec.public_data, "topic_model"))},
        tags={PRIVACY: RELEASED, MECHANISM: "discrete_gaussian_histogram"},
        kinds={"opendp"},
        code_version=version_of(spec.topic_histogram, spec.budget, spec.public_facts),
        description=(
            "Noisy counts per label and public topic, unclassified records included "
            "(Tan et al. 2025, Section 3.3). Corpora are written in its proportions."
        ),
    )
    def topic_histogram(
        context: dg.AssetExecutionContext,
        config: ReleaseConfig,
        topic_model: dict,
        models: Models,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
    ) -> dg.Output[dict]:
        book = ledger.open()
        topics = models.topic_model(topic_model)

        def draw(reservation: Reservation) -> Drawn:
            private = sensitive_store.read_for_release(
                spec.name, ledger=book, reservation=reservation, with_embeddings=True
            )
            release = release_topic_histogram(
                private, topics, plan.terms, noise_std=planned.noise_std
            )
            return Drawn(facts=release.value.to_json(), rows=None, cost=release.cost)

        with private_section(name):
            stored = release_once(
                ledger=book,
                store=release_store,
                request=request(
                    release_name(context, config),
                    context.run_id,
                    public_versions({"topic_model": topic_model}),
                    embeddings_stated(sensitive_store, spec.name),
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=draw,
                prepare=lambda: require_stated_embeddings(sensitive_store, spec.name),
            )
        return dg.Output(
            {**stored.facts, "reservation": stored.reservation.id},
            metadata={
                **spend_metadata(book, stored.reservation, plan.budget),
                "dpsynth/noise_scale": planned.noise_std,
                **_pictures(stored.facts, topics.keywords),
            },
        )

    return topic_histogram


def _pictures(facts: Mapping[str, Any], keywords: Any) -> dict[str, dg.MetadataValue]:
    """The largest noisy topics by label as a table of keywords, and as bars."""
    from dpsynth_assets.report.plots import histogram_plot, to_markdown

    rows = [(label or "all", counts) for label, counts in zip(*_cells(facts), strict=True)]
    lines = ["| label | topic | noisy count |", "|---|---|---|"]
    for label, counts in rows:
        largest = sorted(range(len(counts)), key=lambda topic: -counts[topic])[:SHOWN_TOPICS]
        lines += [f"| {label} | {_words(keywords, t)} | {counts[t]} |" for t in largest]
    groups = {str(label): sorted(counts, reverse=True)[:SHOWN_TOPICS] for label, counts in rows}
    plot = to_markdown(histogram_plot(groups), "largest noisy topic counts")
    return {
        "dpsynth/topics": dg.MetadataValue.md("\n".join(lines)),
        "dpsynth/plot": dg.MetadataValue.md(plot),
    }


def _cells(facts: Mapping[str, Any]) -> tuple[list[str], list[list[int]]]:
    return list(facts["labels"]), [list(counts) for counts in facts["dp_counts"]]


def _words(keywords: Any, topic: int) -> str:
    return ", ".join(keywords[topic][:5]) if topic < len(keywords) else "unclassified"
