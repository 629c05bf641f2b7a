"""Pictures for the steward: costs of private prediction, and clusterings of the private records.

Costs of the median, true cluster sizes and V-measures are computed from private data without noise:
the asset is internal, nothing released may depend on it, and they are shown in the owner-only
report alone, not in Dagster's metadata. Pictures of released numbers come from `released_metadata`
and may stand at released assets.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.methods.capabilities import Evolves, capability
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.evolution.population import generation_facts, read_generations
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.keys import (
    EVALUATION,
    PREDICTION_COSTS,
    cohort_asset,
    dataset_key,
    part_asset,
    public_ins,
    shared_key,
)
from dpsynth_assets.orchestration.assets.scoring import internal_facts
from dpsynth_assets.orchestration.assets.stage_metadata import pictures_metadata
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.stores import Models, ReleaseStore, SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.public_base.making import embedded_documents
from dpsynth_assets.report.cards import read_released, released_label, released_rows_path
from dpsynth_assets.tags import INTERNAL

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder


def prediction_plot_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The internal pictures of one dataset."""
    return dg.Definitions(assets=[_prediction_costs(spec, plan)])


def prediction_folder(dataset: str) -> Path:
    """Owner-only folder of the pictures of one dataset."""
    return home().reports / dataset / "prediction"


def prediction_pictures(dataset: str) -> dict[str, bytes]:
    """PNG pictures by name in the order of their titles; none before the asset was made."""
    from dpsynth_assets.report.method_plots import TITLES

    paths = {name: prediction_folder(dataset) / f"{name}.png" for name in TITLES}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def _prediction_costs(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    ins = {}
    if plan.histogram is not None:
        ins["cluster_histogram"] = dg.AssetIn(shared_key(spec.name, "cluster_histogram"))

    @dg.asset(
        **cohort_asset(
            spec,
            EVALUATION,
            PREDICTION_COSTS,
            INTERNAL,
            "dpsynth_assets.report.method_plots.internal_pictures",
        ),
        ins=ins,
        deps=[dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora],
        kinds={"matplotlib"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("prediction costs", spec.methods),
        description=(
            "What the median's tokens cost along a text and batch by batch (Amin et al. 2025, "
            "Figures 3 to 6), released counts of clusters, and how many tokens were private. "
            "Private pictures stand in the report alone. Internal."
        ),
    )
    @private_section(f"{spec.name}/evaluation/prediction_costs")
    def prediction_costs(
        context: dg.AssetExecutionContext,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
        progress: Progress,
        **upstream: dict,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.report.method_plots import internal_pictures

        report = progress.start(context, f"{spec.name}: costs")
        histogram = upstream.get("cluster_histogram", {}).get("facts")
        facts = {
            planned.folder: internal_facts(sensitive_store, spec.name, planned.folder)
            for planned in plan.corpora
        }
        released = _released_pictures(spec, plan, histogram, release_store)
        pictures = internal_pictures(facts) | released
        folder = _write(prediction_folder(spec.name), pictures)
        report(1.0, "pictures written")
        # Private costs and counts stay in the owner-only folder and the internal report:
        # Dagster's event log is not a place for them.
        shown = {"dpsynth/folder": dg.MetadataValue.path(str(folder))}
        return dg.MaterializeResult(metadata={**shown, **pictures_metadata(released)})

    return prediction_costs


def _released_pictures(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    histogram: Mapping[str, Any] | None,
    store: ReleaseStore,
) -> dict[str, bytes]:
    """Pictures of released numbers, all published corpora side by side."""
    from dpsynth_assets.report.method_plots import (
        rebalanced_counts,
        rebalancing_plot,
        released_pictures,
    )

    pictures = {}
    if histogram is not None:
        pictures["noisy_cluster_sizes"] = rebalancing_plot(rebalanced_counts(histogram))
    corpora = {
        planned.folder: (
            _released_facts(spec.name, planned.folder, store),
            read_released(spec.name, planned.folder),
        )
        for planned in plan.corpora
        if released_rows_path(spec.name, planned.folder).exists()
    }
    return pictures | released_pictures(corpora)


def _released_facts(dataset: str, folder: str, store: ReleaseStore) -> dict[str, Any]:
    """Facts of the release behind a published corpus; none where the store was cleared."""
    reservation = released_label(dataset, folder)["subject"]["reservation"]
    return store.load(reservation)[0] if store.has(reservation) else {}


def _write(folder: Path, pictures: Mapping[str, bytes]) -> Path:
    """Replaces the pictures of an earlier run, for their owner only."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, png in pictures.items():
        write_whole(folder / f"{name}.png", png)
    return folder


# Course of an evolution, round by round, as metadata and pictures of a released asset.
#
# Reads the released generations and public text alone: post-processing, and charged nothing.


ROUNDS = "rounds"
"""Last part of the asset's key."""

REFERENCE_ROWS = 1_000
"""Public documents, the first of the public corpus, that survivors are compared with."""


def evolution_plot_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """One asset for each evolving method of a dataset."""
    evolving = [(planned, capability(planned.method, Evolves)) for planned in plan.methods]
    return dg.Definitions(
        assets=[_rounds(spec, planned, own.stage) for planned, own in evolving if own is not None]
    )


def _rounds(
    spec: PrivateDatasetSpec, planned: PlannedMethod, population: str
) -> dg.AssetsDefinition:
    name = f"{spec.name}/{planned.folder}/{ROUNDS}"

    @dg.asset(
        **part_asset(spec, planned, ROUNDS),
        ins={
            **public_ins(spec.public_data, "public_corpus", "text_embedder"),
            population: dg.AssetIn(dataset_key(spec.name, planned.folder, population)),
        },
        kinds={"matplotlib", "polars"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("rounds", planned.spec),
        description=(
            "Votes, survivors and Fréchet distance to public text of every round. Computed from "
            "released votes and public text: charges nothing."
        ),
    )
    @public_section(name)
    def rounds(
        context: dg.AssetExecutionContext,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **upstream: Any,
    ) -> dg.MaterializeResult:
        report = progress.start(context, name)
        stage: Mapping[str, Any] = upstream[population]
        generations = read_generations(release_store.files(str(stage["reservation"])))
        embedder = models.text_embedder(upstream["text_embedder"])
        report(0.0, "embedding public text and survivors")
        public_texts = upstream["public_corpus"]["text"].head(REFERENCE_ROWS).to_list()
        public = embedded_documents(
            spec.public_data, upstream["text_embedder"], public_texts, models, _silent
        )
        distances = round_distances(generations, public, embedder)
        facts = {**generation_facts(generations), "frechet_distance": distances}
        report(1.0, f"{facts['iterations']} rounds described")
        noise_std = planned.plan.parameters.get("noise_std")
        return dg.MaterializeResult(
            metadata={
                "dpsynth/rounds": dg.MetadataValue.md(rounds_table(facts)),
                **_pictures(generations, stage["facts"]["labels"], facts, noise_std),
            }
        )

    return rounds


def round_distances(
    generations: pl.DataFrame, public: np.ndarray, embedder: "TextEmbedder"
) -> list[float | None]:
    """Fréchet distance of each round's survivors to public text; None under two rows a side.

    Args:
        generations: Texts of all rounds, with how often each survived.
        public: Embeddings of public texts, float32 (N, d).
        embedder: Embeds the survivors.
    """
    from dpsynth_assets.metrics.embedding_distances import Moments, frechet_distance

    survivors = generations.filter(pl.col("survived") > 0).partition_by(
        "iteration", maintain_order=True
    )
    texts = sorted({text for frame in survivors for text in frame["text"].to_list()})
    place = {text: row for row, text in enumerate(texts)}
    if len(public) < 2:
        return [None] * len(survivors)
    embeddings, reference = embedder.embed(texts, public=True), Moments.of(public)
    distances: list[float | None] = []
    for frame in survivors:
        rows = np.array([place[text] for text in frame["text"].to_list()])
        features = embeddings[np.repeat(rows, frame["survived"].to_numpy())]
        enough = len(features) >= 2
        distances.append(frechet_distance(Moments.of(features), reference) if enough else None)
    return distances


def _silent(_share: float, _message: str) -> None:
    """Takes progress that the step does not show."""


def rounds_table(facts: Mapping[str, Any]) -> str:
    """Markdown table: a line a round."""
    head = ("round", "vote entropy (bits)", "new survivors", "votes", "Fréchet distance")
    lines = []
    columns = ("vote_entropy", "survivors_new", "votes_total", "frechet_distance")
    for number, values in enumerate(zip(*(facts[name] for name in columns), strict=True), 1):
        entropy, new, votes, distance = values
        shown = "" if distance is None else f"{distance:.3f}"
        lines.append((number, f"{entropy:.2f}", f"{new:.0%}", f"{votes:,.0f}", shown))
    return markdown_table(head, lines)


def _pictures(
    generations: pl.DataFrame,
    labels: list[str],
    facts: Mapping[str, Any],
    noise_std: float | None,
) -> dict[str, dg.MetadataValue]:
    from dpsynth_assets.report.method_plots import evolution_pictures

    distances = facts["frechet_distance"]
    pictures = evolution_pictures(
        generations,
        labels,
        facts["vote_entropy"],
        noise_std=noise_std,
        distances=None if None in distances else distances,
    )
    return pictures_metadata(pictures)
