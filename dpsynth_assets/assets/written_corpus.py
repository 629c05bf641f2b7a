"""Rows written from what a method's stages released: free, whatever their number."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.assets.keys import dataset_key, shared_key
from dpsynth_assets.assets.launch import CorpusConfig, release_name, release_seed
from dpsynth_assets.assets.method_assets import described, part_asset
from dpsynth_assets.assets.public_inputs import public_ins
from dpsynth_assets.assets.published import read_released, released_folder
from dpsynth_assets.assets.released_values import (
    read_released_stage,
    reservation_of,
    stage_facts,
)
from dpsynth_assets.methods.requests import corpus_request
from dpsynth_assets.assets.stage_metadata import shown_facts
from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.metadata import spend_metadata
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Reservation
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.public_base.inputs import load_public_inputs, public_versions
from dpsynth_assets.releases.once import Drawn, release_once
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.storage.identity import version_of
from dpsynth_assets.tags import GPU_POOL, PRIVACY, RELEASED, gpu_op_tags


def written_corpus(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The candidate corpus of a method whose rows cost nothing."""
    method, stages = planned.method, planned.plan.stages
    name = f"{spec.name}/{planned.folder}/{CANDIDATE_CORPUS}"
    needed = method.public_inputs | method.writing_inputs
    ins = public_ins(spec, needed)
    ins |= {s.name: dg.AssetIn(dataset_key(spec.name, planned.folder, s.name)) for s in stages}
    if planned.follows_topics:
        ins[TOPIC_HISTOGRAM] = dg.AssetIn(shared_key(spec.name, TOPIC_HISTOGRAM))

    @dg.asset(
        **part_asset(spec, planned, CANDIDATE_CORPUS),
        deps=[dataset_key(spec.name, folder, "corpus") for folder in planned.builds_on],
        ins=ins,
        tags={PRIVACY: RELEASED},
        kinds={"pytorch", "polars"},
        pool=GPU_POOL,
        op_tags=gpu_op_tags(spec.engine.tensor_parallel_size),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(
            method.config,
            spec.prompt,
            spec.structured,
            method.engine_identity,
            method.code_version,
        ),
        description=_description(planned),
    )
    def candidate_corpus(
        context: dg.AssetExecutionContext,
        config: CorpusConfig,
        ledger: PrivacyLedger,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **upstream: Any,
    ) -> dg.Output[pl.DataFrame]:
        if planned.plan.refusal is not None:
            raise dg.Failure(description=planned.plan.refusal, allow_retries=False)
        book, release = ledger.open(), release_name(context, config)
        rows = config.rows or method.default_rows
        report = progress.start(context, name)
        public_values = {key: value for key, value in upstream.items() if key in needed}

        def write(_: Reservation) -> Drawn:
            opened = load_public_inputs(
                public_values,
                models,
                plan.terms,
                spec.engine if method.uses_engine else None,
                salt=f"{spec.name}/{planned.folder}/{release}",
                seed=release_seed(release),
            )
            public = _with_releases(opened, spec, planned, upstream, release_store)
            made = method.write(public, rows, report)
            cost = Cost(guarantee=planned.plan.guarantee, event=POST_PROCESSING)
            return Drawn(facts=made.facts, rows=made.rows, cost=cost)

        with public_section(name):  # Reads nothing private.
            stored = release_once(
                ledger=book,
                store=release_store,
                request=corpus_request(
                    spec,
                    planned,
                    rows=rows,
                    inputs={**public_versions(public_values), **_paid(spec, planned, upstream)},
                    release=release,
                    run_id=context.run_id,
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=write,
            )
        written = stored.rows if stored.rows is not None else pl.DataFrame()
        written = written.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
        spend = spend_metadata(
            book, stored.reservation, plan.budget, inherited=plan.events_behind(planned)
        )
        return dg.Output(
            written, metadata={**spend, **shown_facts(stored), "dagster/row_count": written.height}
        )

    return candidate_corpus


def _description(planned: PlannedMethod) -> str:
    if planned.plan.refusal is not None:
        return described(planned)
    return (
        f"{planned.method.title} ({planned.method.paper}). Written from what its stages released: "
        "charges nothing, whatever the number of rows."
    )


def _with_releases(
    public: PublicInputs,
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    upstream: Mapping[str, Any],
    store: ReleaseStore,
) -> PublicInputs:
    """Adds what was released: stages, the topic histogram, and other methods' corpora."""
    histogram = upstream.get(TOPIC_HISTOGRAM)
    return replace(
        public,
        released={
            s.name: read_released_stage(upstream[s.name], store) for s in planned.plan.stages
        },
        topic_histogram=None if histogram is None else stage_facts(histogram),
        corpora={folder: _published_rows(spec, folder) for folder in planned.builds_on},
    )


def _paid(
    spec: PrivateDatasetSpec, planned: PlannedMethod, upstream: Mapping[str, Any]
) -> dict[str, str]:
    """Charge behind each release that the rows are written from."""
    names = [stage.name for stage in planned.plan.stages]
    names += [TOPIC_HISTOGRAM] if planned.follows_topics else []
    paid = {name: reservation_of(upstream[name]) for name in names}
    return paid | {folder: _reservation_behind(spec, folder) for folder in planned.builds_on}


def _published_rows(spec: PrivateDatasetSpec, folder: str) -> pl.DataFrame:
    """Published rows of another method, with the composite label that methods know."""
    rows = read_released(spec.name, folder)
    columns = spec.columns.labels
    label = pl.concat_str(columns, separator=LABEL_SEPARATOR) if columns else pl.lit("")
    return rows.with_columns(label.alias("label"))


def _reservation_behind(spec: PrivateDatasetSpec, folder: str) -> str:
    """The charge behind a published corpus, which must be DP itself to be written from further.

    The plan has asked the dataset file; what lies there may be older than the file.

    Raises:
        dg.Failure: No corpus is published there, or one that is not DP.
    """
    place = released_folder(spec.name, folder) / LABEL_FILE
    label = json.loads(place.read_text()) if place.exists() else None
    published = "none" if label is None else label["guarantee"]["type"]
    if label is None or published != GuaranteeType.DP:
        raise dg.Failure(
            description=f"Expected a published corpus of {folder} that is DP, got {published}. "
            f"Materialise {folder} under the present dataset file first.",
            allow_retries=False,
        )
    return str(label["subject"]["reservation"])
