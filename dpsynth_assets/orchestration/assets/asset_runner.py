"""The Runner of a step: from the resources of its run, with what upstream assets hand on."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.orchestration.assets.corpora_behind import corpus_charges
from dpsynth_assets.orchestration.assets.corpus_metadata import column_schema
from dpsynth_assets.orchestration.assets.launch import composed_epsilon, tag_run
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.schema import RESERVE
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.run.reads import Reads
from dpsynth_assets.run.runner import Runner

PUBLIC_RESOURCES = frozenset({"ledger", "release_store", "models", "progress"})
"""Resources of a step that reads nothing private."""


def runner_of(
    context: dg.AssetExecutionContext, plan: DatasetPlan, release: str, title: str, **private: Any
) -> Runner:
    """The Runner of one step, from the resources of its run.

    Args:
        context: Of the step.
        plan: Of its cohort.
        release: Name of the release.
        title: What progress is told of.
        private: Fields of the Runner of a step that reads records.
    """
    given = context.resources
    return Runner(
        plan=plan,
        ledger=given.ledger.open(),
        store=given.release_store,
        models=given.models,
        release_name=release,
        run_id=context.run_id,
        progress=given.progress.start(context, title),
        **private,
    )


def reads_of(node: Node, upstream: Mapping[str, Any], ledger: Ledger) -> Reads:
    """What upstream assets hand on to a node: public artifacts, and charges of earlier releases.

    Of what the asset of a release hands on, only the name of the release is used.
    """
    charges = {place: str(upstream[name]["reservation"]) for name, place in node.reads.items()}
    return Reads(public=upstream, charges=charges | corpus_charges(node, ledger))


def tag_charges(context: dg.AssetExecutionContext, runner: Runner) -> None:
    """Tags a run with what it was charged for the cohort by now."""
    charged = [
        entry.event
        for entry in runner.ledger.entries(runner.plan.spec.account)
        if entry.kind == RESERVE and entry.run_id == context.run_id
    ]
    epsilon = composed_epsilon(charged, runner.plan.budget)
    tag_run(context, runner.plan.spec.name, runner.release_name, epsilon)


def rows_output(stored: StoredRelease, metadata: Mapping[str, Any]) -> dg.Output[pl.DataFrame]:
    """Rows of a release as an asset hands them on: each names the charge behind it."""
    rows = stored.rows if stored.rows is not None else pl.DataFrame()
    rows = rows.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
    return dg.Output(
        rows,
        metadata={**metadata, "dagster/row_count": rows.height, **column_schema(rows)},
        data_version=dg.DataVersion(stored.digest),
    )
