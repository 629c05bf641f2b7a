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
from dpsynth_assets.methods.dataset_plan import DatasetPlan, Planned, PlannedMethod
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
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


def part_assets(plan: DatasetPlan, part: Planned) -> list[dg.AssetsDefinition]:
    """The assets of all that a method, or a histogram that methods share, releases or writes."""
    return [node_asset(plan, node) for node in plan.graph.nodes.values() if node.part is part]


def node_asset(plan: DatasetPlan, node: Node) -> dg.AssetsDefinition:
    """The asset of one stage; or of rows written from releases, free regardless of their number."""
    spec, part, stage, name = node.spec, node.part, node.stage, f"{node.spec.name}/{node.name}"
    artifact, public = node.name.removeprefix(f"{part.folder}/"), stage is None or stage.public
    step, gpus = (
        (model_step(spec.public_data, *node.step.models), 0.0)
        if stage is None
        else stage_step(spec, stage)
    )
    in_parts = stage is not None and given_parts(spec, stage)
    resources = set(PUBLIC_RESOURCES if public else PUBLIC_RESOURCES | {"sensitive_store"})
    tags = (
        {PRIVACY: RELEASED}
        if public
        else {PRIVACY: RELEASED, MECHANISM: f"{part.method.name}.{artifact}"}
    )
    settings: Any = CorpusConfig if stage is None else ReleaseConfig
    section = public_section if public else private_section

    @dg.asset(
        **(part_asset(spec, part, artifact) | {"tags": tags}),
        deps=[*private_inputs(node), *corpora_read(node)],
        ins=node_ins(node),
        kinds={"pytorch", "polars"} if stage is None else set(stage.kinds),
        **step,
        automation_condition=FOLLOWS_RELEASES if public else None,
        code_version=_code_version(node),
        description=_description(node),
        required_resource_keys=resources | {"workers"} if in_parts else resources,
    )
    @section(name)
    def released(
        context: dg.AssetExecutionContext, config: settings, **upstream: Any
    ) -> dg.Output[Any]:
        if part.plan.refusal is not None:
            raise refused(part.plan.refusal)
        given, release = context.resources, release_name(context, config)
        private: dict[str, Any] = {}
        if not public:
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
        reads = reads_of(node, upstream, runner.ledger)
        if stage is None and isinstance(part, PlannedMethod):
            stored = runner.write(part, config.rows or None, reads)
        else:
            stored = runner.release(node, reads)
        with public_section(name):  # What is shown was released.
            return _output(runner, node, stored, upstream)

    return released


def private_inputs(node: Node) -> list[dg.AssetKey]:
    """Keys of the private assets that a stage reads; a public one reads none."""
    stage = node.stage
    if stage is None or stage.public:
        return []
    names = [
        "private_records",
        *(["private_embeddings"] if stage.needs_embeddings else []),
        *(["secrets"] if stage.needs_secrets else []),
    ]
    return [shared_key(node.spec.name, name) for name in names]


def _code_version(node: Node) -> str:
    """A digest of everything declared that decides what is released or written."""
    spec, part, stage = node.spec, node.part, node.stage
    asked = spec.prompt, spec.structured, node.step.engine_identity, part.method.code_version
    if stage is None:
        return version_of(part.method.config, *asked)
    declared = part.spec if isinstance(part, PlannedMethod) else part.method.config
    return version_of(declared, None if stage.public else spec.budget, *asked, stage.name)


def _description(node: Node) -> str:
    part, stage = node.part, node.stage
    if stage is not None and stage.public:
        return f"{stage.title} Reads nothing private and charges nothing."
    if not isinstance(part, PlannedMethod):
        return "" if stage is None else stage.title
    if stage is not None:
        return f"{stage.title} {described(part)}"
    if part.plan.refusal is not None:
        return described(part)
    written = "Written from the releases of its stages: any number of rows costs nothing."
    return f"{named(part)}. {written}"


def _output(
    runner: Runner, node: Node, stored: StoredRelease, upstream: Mapping[str, Any]
) -> dg.Output[Any]:
    """The asset's value, with spend, facts and pictures as metadata."""
    metadata = {**_facts(runner, node, stored), **stage_pictures(node, stored, upstream, runner)}
    version = dg.DataVersion(stored.digest)
    if stored.rows is None:
        value = {"reservation": stored.reservation.id, "facts": stored.facts}
        return dg.Output(value, metadata=metadata, data_version=version)
    rows = stored.rows.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
    shown = {"dagster/row_count": rows.height, **column_schema(rows)}
    return dg.Output(rows, metadata={**metadata, **shown}, data_version=version)


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
