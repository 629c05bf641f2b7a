"""Assets of a staged method: one for every stage, then corpora that cost nothing."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from dpsynth_assets.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.assets.copied_spans import copied_spans_asset
from dpsynth_assets.assets.corpora import (
    corpus_asset,
    corpus_asset_checks,
    describe,
    method_asset,
    plain_json,
)
from dpsynth_assets.assets.dataset import SHARED, ReleaseConfig, release_name
from dpsynth_assets.assets.embedded_records import embeddings_stated, require_stated_embeddings
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.assets.mechanism import Drawn, release_once
from dpsynth_assets.assets.prepared_stage import prepared_stage
from dpsynth_assets.assets.public_inputs import (
    load_public_inputs,
    public_ins,
    public_versions,
    stage_devices,
)
from dpsynth_assets.assets.published import read_released, released_folder
from dpsynth_assets.assets.staged_requests import (
    engine_identity,
    refuse_if_planned_so,
    release_seed,
    released_stage,
    shown_facts,
    stage_request,
    staged_method,
    staged_request,
)
from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.metadata import spend_metadata
from dpsynth_assets.methods.base import PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.staged import Stage
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import private_section, public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore
from dpsynth_assets.tags import GPU_POOL, MECHANISM, PRIVACY, RELEASED, gpu_op_tags

__all__ = ["CorpusConfig", "stage_request", "staged_definitions"]

TOPIC_HISTOGRAM = "topic_histogram"


class CorpusConfig(ReleaseConfig):
    """What a person may choose at launch; rows are free, whatever their number."""

    rows: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Rows to write; 0: as many as the dataset file says. Asking for more never "
        "pays again.",
    )


def staged_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Definitions:
    """Stages, candidate, blocking checks and published corpus of one staged method."""
    method = staged_method(planned)
    stages = method.stages(planned.config, plan.terms)
    assets = [
        (prepared_stage if stage.public else _paid_stage)(spec, plan, planned, stage)
        for stage in stages
    ]
    if not method.writes_corpus:
        return dg.Definitions(assets=assets)
    assets += [
        _candidate_corpus(spec, plan, planned, stages),
        copied_spans_asset(spec, planned),
        corpus_asset(spec, plan, planned),
    ]
    return dg.Definitions(
        assets=assets, asset_checks=corpus_asset_checks(spec, plan.budget, planned)
    )


def _paid_stage(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod, stage: Stage
) -> dg.AssetsDefinition:
    method = staged_method(planned)
    name = f"{spec.name}/{planned.folder}/{stage.name}"
    earlier = {s: dg.AssetIn(dataset_key(spec.name, planned.folder, s)) for s in stage.after}
    needed = method.public_inputs(planned.config)
    private = [
        "private_records",
        *(["private_embeddings"] if stage.needs_embeddings else []),
        *(["secrets"] if stage.needs_secrets else []),
    ]

    @dg.asset(
        **method_asset(spec, planned, stage.name),
        deps=[dataset_key(spec.name, SHARED, artifact) for artifact in private],
        ins={**public_ins(spec, needed), **earlier},
        tags={PRIVACY: RELEASED, MECHANISM: f"{method.name}.{stage.name}"},
        kinds=set(stage.kinds),
        pool=GPU_POOL,
        op_tags=gpu_op_tags(stage_devices(spec, planned)),
        code_version=version_of(planned.spec, spec.budget, method.code_version, stage.name),
        description=f"{stage.title} {describe(planned)}",
    )
    def paid_stage(
        context: dg.AssetExecutionContext,
        config: ReleaseConfig,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **upstream: Any,
    ) -> dg.Output[dict]:
        refuse_if_planned_so(planned)
        public_values = {key: value for key, value in upstream.items() if key in needed}
        released = {key: released_stage(upstream[key], release_store) for key in earlier}
        book, release = ledger.open(), release_name(context, config)
        report = progress.start(context, name)

        @cache
        def public() -> PublicInputs:
            if stage.needs_embeddings:
                require_stated_embeddings(sensitive_store, spec.name)
            inputs = load_public_inputs(
                public_values,
                models,
                plan.terms,
                spec.engine if method.uses_engine(planned.config) else None,
                salt=f"{name}/{release}",
                seed=release_seed(release),
            )
            inputs = replace(inputs, released=released)
            method.open_models(stage.name, planned.config, plan.terms, inputs)
            return inputs

        def draw(reservation: Reservation) -> Drawn:
            report(0.0, _budget_line(book, plan))
            with public_section(name):  # Where a run goes on, they are opened only here.
                inputs = public()
            made = method.release_stage(
                stage.name,
                planned.plan,
                planned.config,
                plan.terms,
                sensitive_store.read_for_release(
                    spec.name,
                    ledger=book,
                    reservation=reservation,
                    with_embeddings=stage.needs_embeddings,
                    with_secrets=stage.needs_secrets,
                ),
                inputs,
                sensitive_store.checkpoint(spec.name, reservation),
                report,
            )
            _keep_internal(sensitive_store, spec.name, planned.folder, stage.name, made.value)
            facts = {key: plain_json(value) for key, value in made.value.facts.items()}
            return Drawn(facts=facts, rows=None, cost=made.cost, files=made.value.files)

        with private_section(name):
            stored = release_once(
                ledger=book,
                store=release_store,
                request=stage_request(
                    spec,
                    planned,
                    stage.name,
                    release=release,
                    run_id=context.run_id,
                    inputs={
                        **public_versions(public_values),
                        **{key: value.reservation for key, value in released.items()},
                    },
                    stated=embeddings_stated(sensitive_store, spec.name)
                    if stage.needs_embeddings
                    else None,
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=draw,
                passes=lambda reservation: sensitive_store.checkpoint(spec.name, reservation),
                prepare=public,
            )
        if stored.reservation.reused:
            report(1.0, "stored release reused, nothing charged")
        return dg.Output(
            {"reservation": stored.reservation.id, "facts": stored.facts},
            metadata={
                **spend_metadata(book, stored.reservation, plan.budget),
                **shown_facts(stored),
            },
        )

    return paid_stage


def _candidate_corpus(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    planned: PlannedMethod,
    stages: tuple[Stage, ...],
) -> dg.AssetsDefinition:
    method = staged_method(planned)
    name = f"{spec.name}/{planned.folder}/candidate_corpus"
    needed = method.public_inputs(planned.config) | method.writing_inputs(planned.config)
    ins = public_ins(spec, needed)
    ins |= {s.name: dg.AssetIn(dataset_key(spec.name, planned.folder, s.name)) for s in stages}
    if planned.follows_topics:
        ins[TOPIC_HISTOGRAM] = dg.AssetIn(dataset_key(spec.name, SHARED, TOPIC_HISTOGRAM))
    others = planned.builds_on

    @dg.asset(
        **method_asset(spec, planned, "candidate_corpus"),
        deps=[dataset_key(spec.name, folder, "corpus") for folder in others],
        ins=ins,
        tags={PRIVACY: RELEASED},
        kinds={"pytorch", "polars"},
        pool=GPU_POOL,
        op_tags=gpu_op_tags(spec.engine.tensor_parallel_size),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(planned.spec, method.code_version),
        description=describe(planned)
        if planned.plan.refusal is not None
        else f"{method.title} ({method.paper}). Written from what its stages released: charges "
        "nothing, whatever the number of rows.",
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
        refuse_if_planned_so(planned)
        book, release = ledger.open(), release_name(context, config)
        rows = config.rows or method.default_rows(planned.config)
        report = progress.start(context, name)
        public_values = {key: value for key, value in upstream.items() if key in needed}
        released = {s.name: released_stage(upstream[s.name], release_store) for s in stages}
        histogram = upstream.get(TOPIC_HISTOGRAM)

        def write(_: Reservation) -> Drawn:
            inputs = load_public_inputs(
                public_values,
                models,
                plan.terms,
                spec.engine if method.uses_engine(planned.config) else None,
                salt=f"{name}/{release}",
                seed=release_seed(release),
            )
            public: PublicInputs = replace(
                inputs,
                released=released,
                topic_histogram=None if histogram is None else _facts(histogram),
                corpora={folder: _published_rows(spec, folder) for folder in others},
            )
            made = method.write(planned.plan, planned.config, plan.terms, public, rows, report)
            facts = {key: plain_json(value) for key, value in made.facts.items()}
            cost = Cost(guarantee=planned.plan.guarantee, event=POST_PROCESSING)
            return Drawn(facts=facts, rows=made.rows, cost=cost)

        paid = {key: value.reservation for key, value in released.items()}
        if histogram is not None:
            paid[TOPIC_HISTOGRAM] = str(histogram["reservation"])
        paid |= {folder: _reservation_behind(spec, folder) for folder in others}
        with public_section(name):  # Reads nothing private.
            stored = release_once(
                ledger=book,
                store=release_store,
                request=staged_request(
                    spec,
                    planned,
                    "candidate_corpus",
                    event=POST_PROCESSING,
                    parameters={
                        **planned.plan.parameters,
                        **engine_identity(spec, planned),
                        "rows": rows,
                        "inputs": {**public_versions(public_values), **paid},
                    },
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
        if "dpsynth/epsilon_with_inputs" in spend:  # What its reader gets.
            spend["dpsynth/epsilon"] = spend["dpsynth/epsilon_with_inputs"]
        return dg.Output(
            written, metadata={**spend, **shown_facts(stored), "dagster/row_count": written.height}
        )

    return candidate_corpus


def _facts(histogram: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in histogram.items() if key != "reservation"}


def _budget_line(book: Ledger, plan: DatasetPlan) -> str:
    spend = book.spend(plan.terms.ledger_account, plan.budget)
    return (
        f"budget ε {rounded_up(spend.epsilon, '.2f')} of {declared(plan.budget.epsilon)} reserved"
    )


def _keep_internal(store: SensitiveStore, dataset: str, folder: str, stage: str, made: Any) -> None:
    if made.internal:
        content = json.dumps({key: plain_json(value) for key, value in made.internal.items()})
        store.write_internal(dataset, f"{folder}_{stage}_internal.json", content)


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
