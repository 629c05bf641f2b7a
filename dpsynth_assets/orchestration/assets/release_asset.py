"""One asset for every stage, whatever releases it: the Runner's release, with metadata.

Stages of methods and histograms that a dataset's methods share are released by the same steps
(`run.runner`). A public stage takes them too: it reads nothing private, requires no resource that
could, and is charged nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.orchestration.assets.asset_runner import (
    PUBLIC_RESOURCES,
    reads_of,
    rows_output,
    runner_of,
    tag_charges,
)
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.corpora_behind import corpora_read
from dpsynth_assets.orchestration.assets.keys import shared_key
from dpsynth_assets.orchestration.assets.launch import ReleaseConfig, release_name
from dpsynth_assets.orchestration.assets.method_assets import described, part_asset
from dpsynth_assets.orchestration.assets.model_steps import given_parts, stage_step
from dpsynth_assets.orchestration.assets.released_values import node_ins
from dpsynth_assets.orchestration.assets.stage_metadata import shown_facts, stage_pictures
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.private_section import (
    private_section,
    public_section,
    refused,
)
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.run.records import StoreRecords
from dpsynth_assets.run.runner import Runner
from dpsynth_assets.tags import MECHANISM, PRIVACY, RELEASED


def release_asset(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    planned: PlannedMethod | PlannedShared,
    stage: Stage,
) -> dg.AssetsDefinition:
    """The asset of one stage of a method, or of a histogram that the methods share."""
    resources = PUBLIC_RESOURCES if stage.public else PUBLIC_RESOURCES | {"sensitive_store"}
    section = public_section if stage.public else private_section
    step, gpus = stage_step(spec, stage)
    node = plan.graph.nodes[f"{planned.folder}/{stage.name}"]
    name = f"{spec.name}/{node.name}"
    if in_parts := given_parts(spec, stage):
        resources |= {"workers"}

    @dg.asset(
        **part_asset(spec, planned, stage.name),
        deps=[
            *([] if stage.public else private_inputs(spec, stage)),
            *corpora_read(node),
        ],
        ins=node_ins(node, node.step.reads),
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
            stage.engine_identity,
            planned.method.code_version,
            stage.name,
        ),
        description=_description(planned, stage),
        required_resource_keys=set(resources),
    )
    @section(name)
    def released(
        context: dg.AssetExecutionContext, config: ReleaseConfig, **upstream: Any
    ) -> dg.Output[Any]:
        if planned.plan.refusal is not None:
            raise refused(planned.plan.refusal)
        given, release = context.resources, release_name(context, config)
        private: dict[str, Any] = {}
        if not stage.public:
            private["charged"] = partial(tag_charges, context)
            private["records"] = StoreRecords(
                spec=spec,
                store=given.sensitive_store,
                ledger=given.ledger.open(),
                workers=given.workers.open if in_parts else None,
                gpus=gpus,
            )
        runner = runner_of(context, plan, release, name, **private)
        tag_charges(context, runner)
        stored = runner.release(node, reads_of(node, upstream, runner.ledger))
        with public_section(name):  # What is shown was released.
            return _output(runner, node, stage, stored, upstream)

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


def _output(
    runner: Runner,
    node: Node,
    stage: Stage,
    stored: StoredRelease,
    upstream: Mapping[str, Any],
) -> dg.Output[Any]:
    """The asset's value, with spend, facts and pictures as metadata."""
    behind = runner.plan.graph.events_behind(node.name)
    metadata = {
        **spend_metadata(runner.ledger, stored.reservation, runner.plan.budget, inherited=behind),
        **shown_facts(stored),
        **stage_pictures(node.part.folder, stage, stored, upstream, runner.models),
    }
    if stored.rows is None:
        value = {"reservation": stored.reservation.id, "facts": stored.facts}
        version = dg.DataVersion(stored.digest)
        return dg.Output(value, metadata=metadata, data_version=version)
    return rows_output(stored, metadata)
