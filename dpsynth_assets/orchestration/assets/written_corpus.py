"""Rows written from what a method's stages released: free, whatever their number."""

from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.orchestration.assets.asset_runner import (
    PUBLIC_RESOURCES,
    reads_of,
    rows_output,
    runner_of,
)
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.corpora_behind import corpora_read
from dpsynth_assets.orchestration.assets.launch import CorpusConfig, release_name
from dpsynth_assets.orchestration.assets.method_assets import described, named, part_asset
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.assets.released_values import node_ins
from dpsynth_assets.orchestration.assets.stage_metadata import shown_facts
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.tags import PRIVACY, RELEASED


def written_corpus(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The candidate corpus of a method whose rows cost nothing."""
    method, node = planned.method, plan.graph.nodes[planned.corpus]
    name = f"{spec.name}/{node.name}"

    @dg.asset(
        **part_asset(spec, planned, CANDIDATE_CORPUS),
        deps=corpora_read(node),
        ins=node_ins(node, node.step.reads),
        tags={PRIVACY: RELEASED},
        kinds={"pytorch", "polars"},
        **model_step(spec.public_data, *node.step.models),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(
            method.config,
            spec.prompt,
            spec.structured,
            node.step.engine_identity,
            method.code_version,
        ),
        description=_description(planned),
        required_resource_keys=set(PUBLIC_RESOURCES),
    )
    @public_section(name)  # Reads nothing private.
    def candidate_corpus(
        context: dg.AssetExecutionContext, config: CorpusConfig, **upstream: Any
    ) -> dg.Output[pl.DataFrame]:
        if planned.plan.refusal is not None:
            raise dg.Failure(description=planned.plan.refusal, allow_retries=False)
        runner = runner_of(context, plan, release_name(context, config), name)
        reads = reads_of(node, upstream, runner.ledger)
        stored = runner.write(planned, config.rows or None, reads)
        behind = plan.graph.events_behind(node.name)
        spend = spend_metadata(runner.ledger, stored.reservation, plan.budget, inherited=behind)
        return rows_output(stored, {**spend, **shown_facts(stored)})

    return candidate_corpus


def _description(planned: PlannedMethod) -> str:
    if planned.plan.refusal is not None:
        return described(planned)
    return (
        f"{named(planned)}. Written from what its stages released: "
        "charges nothing, whatever the number of rows."
    )
