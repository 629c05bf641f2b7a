"""Course of an evolution, round by round, as metadata and pictures of a released asset.

Reads the released generations and public text alone: post-processing, and charged nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.capabilities import Evolves, capability
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.evolution.population import generation_facts, read_generations
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.keys import (
    dataset_key,
    part_asset,
    public_ins,
)
from dpsynth_assets.orchestration.assets.stage_metadata import pictures_metadata
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.stores import Models, ReleaseStore
from dpsynth_assets.public_base.making import embedded_documents
from dpsynth_assets.report.pages import markdown_table

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder


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
        from dpsynth_assets.report.method_plots import evolution_pictures

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
        drawn = evolution_pictures(generations, stage["facts"]["labels"], noise_std)
        return dg.MaterializeResult(
            metadata={
                "dpsynth/rounds": dg.MetadataValue.md(rounds_table(facts)),
                **pictures_metadata(drawn),
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
