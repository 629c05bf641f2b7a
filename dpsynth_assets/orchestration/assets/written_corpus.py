"""Rows written from what a method's stages released: free, whatever their number."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs, Released
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.requests import corpus_request
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.corpora_behind import (
    corpora_read,
    inputs_of,
    with_corpora,
)
from dpsynth_assets.orchestration.assets.corpus_metadata import column_schema
from dpsynth_assets.orchestration.assets.keys import dataset_key, shared_key
from dpsynth_assets.orchestration.assets.launch import CorpusConfig, release_name, release_seed
from dpsynth_assets.orchestration.assets.method_assets import described, named, part_asset
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.assets.released_values import (
    node_ins,
    read_released_stage,
)
from dpsynth_assets.orchestration.assets.stage_metadata import shown_facts
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.public_base.inputs import load_public_inputs
from dpsynth_assets.releases.once import Drawn, StoredRelease, release_once
from dpsynth_assets.tags import PRIVACY, RELEASED


def written_corpus(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The candidate corpus of a method whose rows cost nothing."""
    method, node = planned.method, plan.graph.nodes[planned.corpus]

    @dg.asset(
        **part_asset(spec, planned, CANDIDATE_CORPUS),
        deps=corpora_read(node),
        ins=node_ins(node, method.public_inputs | method.writing_inputs),
        tags={PRIVACY: RELEASED},
        kinds={"pytorch", "polars"},
        **model_step(spec.public_data, *method.models_run(CANDIDATE_CORPUS)),
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
    @public_section(f"{spec.name}/{planned.folder}/{CANDIDATE_CORPUS}")  # Reads nothing private.
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
        run = _CorpusRun(
            spec=spec,
            plan=plan,
            planned=planned,
            node=node,
            release=release_name(context, config),
            rows=config.rows or method.default_rows,
            upstream=upstream,
            store=release_store,
            models=models,
            book=ledger.open(),
        )
        book, report = run.book, progress.start(context, run.name)
        stored = run.stored(report, context.run_id)
        rows = stored.rows if stored.rows is not None else pl.DataFrame()
        rows = rows.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
        behind = plan.graph.events_behind(planned.corpus)
        spend = spend_metadata(book, stored.reservation, plan.budget, inherited=behind)
        return dg.Output(
            rows,
            metadata={
                **spend,
                **shown_facts(stored),
                "dagster/row_count": rows.height,
                **column_schema(rows),
            },
            data_version=dg.DataVersion(stored.digest),
        )

    return candidate_corpus


@dataclass(frozen=True, kw_only=True)
class _CorpusRun:
    """One run that writes rows: what it reads, what it asks for, and how rows are written."""

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    planned: PlannedMethod
    node: Node
    release: str
    rows: int
    upstream: Mapping[str, Any]
    store: ReleaseStore
    models: Models
    book: Ledger

    @property
    def name(self) -> str:
        """The corpus's asset key as one string."""
        return f"{self.spec.name}/{self.planned.folder}/{CANDIDATE_CORPUS}"

    @property
    def _public_values(self) -> dict[str, Any]:
        needed = self.planned.method.public_inputs | self.planned.method.writing_inputs
        return {key: value for key, value in self.upstream.items() if key in needed}

    def stored(self, report: ProgressCallback, run_id: str) -> StoredRelease:
        """Writes the rows, or finds them written."""
        return release_once(
            ledger=self.book,
            store=self.store,
            request=corpus_request(
                self.spec,
                self.planned,
                rows=self.rows,
                inputs=inputs_of(self.node, self._public_values, self.upstream, self.book),
                release=self.release,
                run_id=run_id,
            ),
            terms=self.plan.budget,
            plan=self.plan.releases,
            draw=lambda _: self._written(report),
        )

    def _written(self, report: ProgressCallback) -> Drawn:
        made = self.planned.method.write(self._public(), self.rows, report)
        cost = Cost(guarantee=self.planned.plan.guarantee, event=POST_PROCESSING)
        return Drawn(facts=made.facts, rows=made.rows, cost=cost)

    def _public(self) -> PublicInputs:
        """Opens public artifacts and adds what was released: stages, topics, other corpora."""
        opened = load_public_inputs(
            self._public_values,
            self.models,
            self.plan.terms,
            self.plan.terms.engine if self.planned.method.uses_engine else None,
            salt=f"{self.spec.name}/{self.planned.folder}/{self.release}",
            seed=release_seed(self.release),
        )
        behind = with_corpora(opened, self.node, self.book, self.store)
        return replace(
            behind,
            released={
                stage.name: self._sealed(
                    stage.name, dataset_key(self.spec.name, self.planned.folder, stage.name)
                )
                for stage in self.planned.plan.stages
            },
            topic_histogram=None
            if TOPIC_HISTOGRAM not in self.upstream
            else self._sealed(TOPIC_HISTOGRAM, shared_key(self.spec.name, TOPIC_HISTOGRAM)).facts,
        )

    def _sealed(self, name: str, asset: dg.AssetKey) -> Released:
        return read_released_stage(self.upstream[name], asset, self.book, self.store)


def _description(planned: PlannedMethod) -> str:
    if planned.plan.refusal is not None:
        return described(planned)
    return (
        f"{named(planned)}. Written from what its stages released: "
        "charges nothing, whatever the number of rows."
    )
