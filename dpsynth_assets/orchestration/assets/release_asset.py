"""Builds the asset of a stage, for all methods: it runs the release and adds metadata.

Stages of methods and histograms that a dataset's methods share are released by the same steps
(`run.runner`). A public stage takes them too: it reads nothing private, requires no resource that
could, and is charged nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR, Stage
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.keys import (
    dataset_key,
    described,
    named,
    part_asset,
    public_ins,
    shared_key,
)
from dpsynth_assets.orchestration.assets.launch import (
    CorpusConfig,
    ReleaseConfig,
    composed_epsilon,
    release_name,
    tag_run,
)
from dpsynth_assets.orchestration.assets.stage_metadata import (
    column_schema,
    shown_facts,
    stage_pictures,
)
from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.orchestration.resources.model_pool import given_parts, model_step, stage_step
from dpsynth_assets.orchestration.resources.private_section import (
    private_section,
    public_section,
    refused,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.schema import RESERVE
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.report.cards import LABEL_FILE, released_folder, released_label
from dpsynth_assets.run.records import StoreRecords
from dpsynth_assets.run.runner import Reads, Runner
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
    tags = {PRIVACY: RELEASED}
    if not stage.public:
        tags[MECHANISM] = f"{planned.method.name}.{stage.name}"

    @dg.asset(
        **(part_asset(spec, planned, stage.name) | {"tags": tags}),
        deps=[*private_inputs(spec, stage), *corpora_read(node)],
        ins=node_ins(node),
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
    """Keys of the private assets that a stage reads; a public one reads none."""
    if stage.public:
        return []
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
    runner: Runner, node: Node, stage: Stage, stored: StoredRelease, upstream: Mapping[str, Any]
) -> dg.Output[Any]:
    """The asset's value, with spend, facts and pictures as metadata."""
    pictures = stage_pictures(node.part, stage, stored, upstream, runner)
    metadata = {**_facts(runner, node, stored), **pictures}
    if stored.rows is None:
        value = {"reservation": stored.reservation.id, "facts": stored.facts}
        version = dg.DataVersion(stored.digest)
        return dg.Output(value, metadata=metadata, data_version=version)
    return rows_output(stored, metadata)


def _facts(runner: Runner, node: Node, stored: StoredRelease) -> dict[str, Any]:
    """Spend and released facts of a node as metadata."""
    behind = runner.plan.graph.events_behind(node.name)
    spend = spend_metadata(runner.ledger, stored.reservation, runner.plan.budget, inherited=behind)
    return {**spend, **shown_facts(stored)}


# The Runner of a step: from the resources of its run, with what upstream assets hand on.


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


# Published corpora that another method of the cohort builds on: the charges behind them.


def corpora_read(node: Node) -> list[dg.AssetKey]:
    """Keys of the published corpora that a node reads."""
    return [dataset_key(node.spec.name, folder, "corpus") for folder in node.corpora]


def corpus_charges(node: Node, book: Ledger) -> dict[str, str]:
    """Charge of each published corpus that a node reads, and of the weights that wrote it.

    A method that reads weights alone names theirs, not their corpus: other rows of it, which are
    free, then make no other release.

    Raises:
        dg.Failure: A corpus is not published, or is not DP.
    """
    charges = {}
    for folder, place in node.corpora.items():
        corpus = _charge_behind(node.spec, folder)
        charges[place] = _charge_of(place, corpus, book)
        charges[f"{folder}/{CANDIDATE_CORPUS}"] = corpus
    return charges


def _charge_of(place: str, corpus: str, book: Ledger) -> str:
    """The charge of a published corpus, or of the weights that wrote it, where a method reads them.

    Where no weights of the cohort wrote it, the corpus stands for them.
    """
    charge = None if place.endswith(f"/{CANDIDATE_CORPUS}") else book.charge(corpus)
    return corpus if charge is None else str(charge.inputs.get(FINETUNED_GENERATOR, corpus))


def _charge_behind(spec: PrivateDatasetSpec, folder: str) -> str:
    """The charge behind a published corpus, which must be DP itself to be written from further.

    The plan has asked the dataset file; what is there may be older than the file.

    Raises:
        dg.Failure: No corpus is published there, or one that is not DP.
    """
    there = (released_folder(spec.name, folder) / LABEL_FILE).exists()
    label = released_label(spec.name, folder) if there else {"guarantee": {"type": "none"}}
    if (published := label["guarantee"]["type"]) != GuaranteeType.DP:
        raise dg.Failure(
            description=f"Expected a published corpus of {folder} that is DP, got {published}. "
            f"Materialise {folder} under the present dataset file first.",
            allow_retries=False,
        )
    return str(label["subject"]["reservation"])


def node_ins(node: Node) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of what a node reads: public artifacts, stages and shared histograms."""
    read = {
        name: dg.AssetIn([node.spec.name, *place.split("/")]) for name, place in node.reads.items()
    }
    return public_ins(node.spec.public_data, *node.step.reads) | read


# Rows written from what a method's stages released: free, regardless of their number.


def written_corpus(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The candidate corpus of a method whose rows cost nothing."""
    method, node = planned.method, plan.graph.nodes[planned.corpus]
    name = f"{spec.name}/{node.name}"

    @dg.asset(
        **part_asset(spec, planned, CANDIDATE_CORPUS),
        deps=corpora_read(node),
        ins=node_ins(node),
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
        description=_written_from(planned),
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
        return rows_output(stored, _facts(runner, node, stored))

    return candidate_corpus


def _written_from(planned: PlannedMethod) -> str:
    if planned.plan.refusal is not None:
        return described(planned)
    return (
        f"{named(planned)}. Written from the releases of its stages: any number of rows costs "
        "nothing."
    )
