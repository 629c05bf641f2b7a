"""One asset for every stage, whatever releases it: reserve, read, release, store, commit.

Stages of methods and histograms that a dataset's methods share are released by the same steps
(`releases.once.release_once`). A public stage takes them too: it reads nothing private, requires no
resource that could, and is charged nothing.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.disk_room import Room
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.cluster_histogram import CLUSTER_HISTOGRAM, ClusterHistogram
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.requests import stage_request
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    Stage,
    StageRelease,
)
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.corpora_behind import (
    corpora_read,
    inputs_of,
    with_corpora,
)
from dpsynth_assets.orchestration.assets.corpus_metadata import column_schema
from dpsynth_assets.orchestration.assets.embedded_records import (
    embeddings_rest_on,
    require_stated_embeddings,
)
from dpsynth_assets.orchestration.assets.keys import dataset_key, shared_key
from dpsynth_assets.orchestration.assets.launch import (
    ReleaseConfig,
    composed_epsilon,
    release_name,
    release_seed,
    tag_run,
)
from dpsynth_assets.orchestration.assets.method_assets import described, part_asset
from dpsynth_assets.orchestration.assets.model_steps import stage_step
from dpsynth_assets.orchestration.assets.parted_records import given_parts, require_parts
from dpsynth_assets.orchestration.assets.released_values import (
    node_ins,
    read_released_stage,
)
from dpsynth_assets.orchestration.assets.stage_metadata import shown_facts, stage_pictures
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.private_section import (
    private_section,
    public_section,
    refused,
)
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest, Reservation
from dpsynth_assets.privacy.ledger.schema import RESERVE
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.public_base.inputs import load_public_inputs, model_files
from dpsynth_assets.records.source_digest import reading_digest
from dpsynth_assets.releases.once import Drawn, StoredRelease, plain_json, release_once
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint, StoredPasses
from dpsynth_assets.tags import MECHANISM, PRIVACY, RELEASED

_PUBLIC_RESOURCES = frozenset({"ledger", "release_store", "models", "progress"})


def release_asset(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    planned: PlannedMethod | PlannedShared,
    stage: Stage,
) -> dg.AssetsDefinition:
    """The asset of one stage of a method, or of a histogram that the methods share."""
    node = plan.graph.nodes[f"{planned.folder}/{stage.name}"]
    resources = _PUBLIC_RESOURCES if stage.public else _PUBLIC_RESOURCES | {"sensitive_store"}
    section = public_section if stage.public else private_section
    step, gpus = stage_step(spec, planned.method, stage)
    if in_parts := given_parts(spec, planned.method, stage):
        resources |= {"workers"}

    @dg.asset(
        **part_asset(spec, planned, stage.name),
        deps=[
            *([] if stage.public else private_inputs(spec, stage)),
            *corpora_read(node),
        ],
        ins=node_ins(node, planned.method.public_inputs),
        tags={PRIVACY: RELEASED}
        | ({} if stage.public else {MECHANISM: f"{planned.method.name}.{stage.name}"}),
        kinds=set(stage.kinds),
        **step,
        automation_condition=FOLLOWS_RELEASES if stage.public else None,
        code_version=version_of(
            planned.spec if isinstance(planned, PlannedMethod) else planned.method.config,
            None if stage.public else spec.budget,
            spec.prompt,
            spec.structured,
            planned.method.engine_identity,
            planned.method.code_version,
            stage.name,
        ),
        description=_description(planned, stage),
        required_resource_keys=set(resources),
    )
    @section(f"{spec.name}/{planned.folder}/{stage.name}")
    def released(
        context: dg.AssetExecutionContext, config: ReleaseConfig, **upstream: Any
    ) -> dg.Output[Any]:
        if planned.plan.refusal is not None:
            raise refused(planned.plan.refusal)
        run = _StageRun(
            spec=spec,
            plan=plan,
            planned=planned,
            node=node,
            stage=stage,
            in_parts=in_parts,
            context=context,
            release=release_name(context, config),
            upstream=upstream,
            gpus=gpus,
        )
        stored = run.stored()
        with public_section(run.name):  # What is shown was released.
            return run.output(stored)

    return released


def private_inputs(spec: PrivateDatasetSpec, stage: Stage) -> list[dg.AssetKey]:
    """Keys of the private assets that a stage reads."""
    names = [
        "private_records",
        *(["private_embeddings"] if stage.needs_embeddings else []),
        *(["secrets"] if stage.needs_secrets else []),
    ]
    return [shared_key(spec.name, name) for name in names]


def _description(planned: PlannedMethod | PlannedShared, stage: Stage) -> str:
    if stage.public:
        return f"{stage.title} Reads nothing private and charges nothing."
    if isinstance(planned, PlannedShared):
        return stage.title
    return f"{stage.title} {described(planned)}"


@dataclass(frozen=True, kw_only=True)
class _StageRun:
    """One run of one stage: its inputs, its request, its draw and its output."""

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    planned: PlannedMethod | PlannedShared
    node: Node
    stage: Stage
    in_parts: bool
    context: dg.AssetExecutionContext
    release: str
    upstream: Mapping[str, Any]
    gpus: float

    @property
    def name(self) -> str:
        """The stage's asset key as one string."""
        return f"{self.spec.name}/{self.planned.folder}/{self.stage.name}"

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger that pays."""
        book: Ledger = self.context.resources.ledger.open()
        return book

    @cached_property
    def report(self) -> Any:
        """Where progress is told."""
        return self.context.resources.progress.start(self.context, self.name)

    @property
    def _store(self) -> ReleaseStore:
        store: ReleaseStore = self.context.resources.release_store
        return store

    @property
    def _sensitive(self) -> SensitiveStore:
        store: SensitiveStore = self.context.resources.sensitive_store
        return store

    @cached_property
    def public_values(self) -> dict[str, Any]:
        """Upstream artifacts of the public base."""
        needed = self.planned.method.public_inputs
        return {name: value for name, value in self.upstream.items() if name in needed}

    @cached_property
    def public(self) -> PublicInputs:
        """Opens public models and earlier releases and checks them: before a charge, or at resume.

        Raises:
            ValueError: The stage could not run with them.
        """
        terms = self.planned.method.terms
        inputs = load_public_inputs(
            self.public_values,
            self.context.resources.models,
            terms,
            terms.engine if self.planned.method.uses_engine else None,
            salt=f"{self.spec.name}/{self.planned.folder}/{self.release}",
            seed=release_seed(self.release),
        )
        inputs = replace(
            inputs,
            released={
                name: self._sealed(name, dataset_key(self.spec.name, self.planned.folder, name))
                for name in self.stage.after
            },
            cluster_histogram=None
            if CLUSTER_HISTOGRAM not in self.upstream
            else ClusterHistogram.from_json(
                dict(
                    self._sealed(
                        CLUSTER_HISTOGRAM, shared_key(self.spec.name, CLUSTER_HISTOGRAM)
                    ).facts
                )
            ),
        )
        inputs = with_corpora(inputs, self.node, self.ledger, self._store)
        self.planned.method.check_public(self.stage, inputs)
        return inputs

    def _sealed(self, name: str, asset: dg.AssetKey) -> Released:
        return read_released_stage(self.upstream[name], asset, self.ledger, self._store)

    def stored(self) -> StoredRelease:
        """Releases the stage, or finds it released."""
        self._tag()
        with tempfile.TemporaryDirectory() as scratch:
            draw = partial(self._make_public, Path(scratch)) if self.stage.public else self._draw
            stored = release_once(
                ledger=self.ledger,
                store=self._store,
                request=self._request(),
                terms=self.plan.budget,
                plan=self.plan.releases,
                draw=draw,
                passes=None if self.stage.public else self._unfinished,
                drawn_from=self._drawn_from,
                prepare=None if self.stage.public else self._check,
                rests_on=lambda: self.planned.method.rests_on(self.stage, self.public),
            )
        if stored.reservation.reused:
            self.report(1.0, "stored release reused, nothing charged")
        return stored

    def _tag(self) -> None:
        """Tags the run with what it was charged for the cohort by now."""
        charged = [
            entry.event
            for entry in self.ledger.entries(self.spec.account)
            if entry.kind == RESERVE and entry.run_id == self.context.run_id
        ]
        epsilon = composed_epsilon(charged, self.plan.budget)
        tag_run(self.context, self.spec.name, self.release, epsilon)

    def _check(self) -> Room:
        """Refuses, before a charge, what the stage could not end with; returns what it takes."""
        public = self.public
        if self.in_parts:
            require_parts(self.spec, self._sensitive)
        self._sensitive.require_records(
            self.spec.name,
            with_embeddings=self.stage.needs_embeddings,
            with_secrets=self.stage.needs_secrets,
        )
        if self.stage.needs_embeddings:
            require_stated_embeddings(self._sensitive, self.spec.name)
        room = self.planned.method.room(self.stage, public)
        if not self.in_parts:
            return room
        # A worker's sums and the weights that it is given are smaller than a checkpoint.
        return replace(room, kept=room.kept * (1 + self.context.resources.workers.open().count))

    def _request(self) -> ReleaseRequest:
        return stage_request(
            self.spec,
            self.planned,
            self.stage,
            release=self.release,
            run_id=self.context.run_id,
            inputs=inputs_of(self.node, self.public_values, self.upstream, self.ledger),
            rests_on=embeddings_rest_on(self._sensitive, self.spec.name)
            if self.stage.needs_embeddings
            else None,
        )

    def _drawn_from(self) -> dict[str, Any]:
        """All that decides the draw beside its request; binds the charge to the stored records."""
        method = self.planned.method
        engine = method.terms.engine if method.uses_engine else None
        return {
            **self.node.drawn_from,
            "files": model_files(self.public_values, engine),
            "records": self._sensitive.pay_for_records(
                self.spec.name,
                declared=reading_digest(self.spec),
                with_embeddings=self.stage.needs_embeddings,
                with_secrets=self.stage.needs_secrets,
            ),
        }

    def _unfinished(self, reservation: Reservation) -> StoredCheckpoint | StoredPasses:
        """What a killed run of this stage left under its charge."""
        if self.stage.resumes_by == "passes":
            return self._sensitive.passes(self.spec.name, reservation)
        return self._sensitive.checkpoint(self.spec.name, reservation)

    def _draw(self, reservation: Reservation) -> Drawn:
        """Reads private data under the charge and releases."""
        self._tag()
        self.report(0.0, _budget_line(self.ledger, self.plan))
        with public_section(self.name):  # Where a run resumes, they are opened only here.
            public = self.public
        checkpoint = self._sensitive.checkpoint(self.spec.name, reservation)
        with self._private(reservation) as private:
            started = time.monotonic()
            made = self.planned.method.release(self.stage, private, public, checkpoint, self.report)
            self._keep_internal(made, time.monotonic() - started)
        return _drawn(made.value, made.cost)

    @contextmanager
    def _private(self, reservation: Reservation) -> Iterator[PrivateInputs]:
        """All records, or parts with workers that stay until the stage ends."""
        if not self.in_parts:
            yield self._whole(reservation)
            return
        with self.context.resources.workers.open().opened() as workers:
            yield self._sensitive.read_parts_for_release(
                self.spec.name,
                ledger=self.ledger,
                reservation=reservation,
                workers=workers,
                with_embeddings=self.stage.needs_embeddings,
                gpus=self.gpus,
                with_secrets=self.stage.needs_secrets,
            )

    def _whole(self, reservation: Reservation) -> PrivateInputs:
        private = self._sensitive.read_for_release(
            self.spec.name,
            ledger=self.ledger,
            reservation=reservation,
            with_embeddings=self.stage.needs_embeddings,
            with_secrets=self.stage.needs_secrets,
        )
        if self.stage.resumes_by == "passes":
            return replace(private, passes=self._sensitive.passes(self.spec.name, reservation))
        return private

    def _make_public(self, scratch: Path, _: Reservation) -> Drawn:
        """Makes a public stage in a scratch folder, from which its files are stored."""
        made = self.planned.method.make_public(self.stage, self.public, scratch, self.report)
        cost = Cost(guarantee=self.planned.plan.guarantee, event=POST_PROCESSING)
        return _drawn(made, cost)

    def _keep_internal(self, made: Release[StageRelease], seconds: float) -> None:
        """Keeps what depends on private data without noise for the steward."""
        internal, place = dict(made.value.internal), f"{self.planned.folder}_{self.stage.name}"
        if self.stage.name == CANDIDATE_CORPUS:
            place = self.planned.folder
            internal |= {"seconds": seconds, "ex_post_epsilon": made.cost.ex_post_epsilon}
        if internal:
            content = json.dumps(plain_json(internal))
            self._sensitive.write_internal(self.spec.name, f"{place}_internal.json", content)

    def output(self, stored: StoredRelease) -> dg.Output[Any]:
        """The asset's value, with spend, facts and pictures as metadata."""
        behind = self.plan.graph.events_behind(self.node.name)
        metadata = {
            **spend_metadata(self.ledger, stored.reservation, self.plan.budget, inherited=behind),
            **shown_facts(stored),
            **stage_pictures(
                self.planned.folder,
                self.stage,
                stored,
                self.public_values,
                self.context.resources.models,
            ),
        }
        version = dg.DataVersion(stored.digest)
        if stored.rows is None:
            value = {"reservation": stored.reservation.id, "facts": stored.facts}
            return dg.Output(value, metadata=metadata, data_version=version)
        rows = stored.rows.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
        return dg.Output(
            rows,
            metadata={**metadata, "dagster/row_count": rows.height, **column_schema(rows)},
            data_version=version,
        )


def _drawn(made: StageRelease, cost: Cost) -> Drawn:
    return Drawn(facts=made.facts, rows=made.rows, cost=cost, files=made.files)


def _budget_line(book: Ledger, plan: DatasetPlan) -> str:
    spend = book.spend(plan.terms.ledger_account, plan.budget)
    return f"budget ε {epsilon_up(spend.epsilon)} of {declared(plan.budget.epsilon)} reserved"
