"""One cell of the prediction table: a corpus of one method, cohort, ε and seed, and its scores.

The seed chooses the public order of the records (and so which share a batch), the hash's key and
public randomness; privacy noise has no seed. What is printed as ε is what the plan charges, the
cluster histogram included.
"""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from prediction_base import embedded_once
from prediction_cohorts import CEILING, COHORTS, FLOOR, REAL, Cohort, declared_plan, prepare

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram, release_cluster_histogram
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.energy import energy_distance
from dpsynth_assets.metrics.mauve import MINIMUM_ROWS, MauveSettings, mauve_score
from dpsynth_assets.metrics.structured import structure_scores
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.records import read_private_records

CLUSTERED = ("mean_clustered", "median_clustered")


@dataclass(frozen=True, order=True)
class Cell:
    """One corpus of the table."""

    seed: int
    cohort: str
    epsilon: float
    method: str

    @property
    def name(self) -> str:
        """Names the cell's file."""
        return f"{self.cohort}-{self.epsilon:g}-{self.method}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Records:
    """A cohort's records and their embeddings; JSON records have none."""

    source: pl.DataFrame = field(repr=False)
    held_out: pl.DataFrame = field(repr=False)
    source_embeddings: np.ndarray | None = field(default=None, repr=False)
    held_out_embeddings: np.ndarray | None = field(default=None, repr=False)

    def in_order(self, seed: int) -> PrivateInputs:
        """Source records in a public order of this seed."""
        order = np.random.default_rng(seed).permutation(self.source.height)
        embeddings = self.source_embeddings
        return PrivateInputs(
            records=self.source[order],
            embeddings=None if embeddings is None else embeddings[order],
        )


@dataclass(kw_only=True)
class Bench:
    """What all cells of a process share."""

    data: Path
    folder: Path
    language_model: LanguageModel
    embedder: TextEmbedder
    centers: np.ndarray = field(repr=False)
    batches: int | None = None
    _records: dict[str, Records] = field(default_factory=dict, repr=False)
    _histograms: dict[tuple[str, float, int], ClusterHistogram] = field(default_factory=dict)

    def records(self, cohort: Cohort, spec: PrivateDatasetSpec) -> Records:
        """Reads and embeds a cohort once."""
        if cohort.name not in self._records:
            read = read_private_records(spec)
            parts: dict[str, Any] = {"source": read.records, "held_out": read.held_out}
            if not cohort.structured:
                for split, frame in tuple(parts.items()):
                    stem = self.folder / f"{cohort.name}_{split}"
                    texts = frame["text"].to_list()
                    parts[f"{split}_embeddings"] = embedded_once(texts, self.embedder, stem)
            self._records[cohort.name] = Records(**parts)
        return self._records[cohort.name]

    def histogram(self, run: "Run") -> ClusterHistogram | None:
        """The histogram that both clustered rows of one cohort, ε and seed build on."""
        planned = run.plan.histogram
        if planned is None:
            return None
        key = run.cell.cohort, run.cell.epsilon, run.cell.seed
        if key not in self._histograms:
            self._histograms[key] = release_cluster_histogram(
                run.private,
                self.centers,
                run.plan.terms,
                noise=planned.spec.noise,
                scale=planned.scale,
                clusters_per_label=planned.spec.clusters_per_label,
            ).value
        return self._histograms[key]


@dataclass(frozen=True)
class Run:
    """One cell with its plan and its inputs."""

    bench: Bench
    cell: Cell

    @cached_property
    def cohort(self) -> Cohort:
        """The cell's cohort."""
        return COHORTS[self.cell.cohort]

    @cached_property
    def _declared(self) -> tuple[PrivateDatasetSpec, DatasetPlan]:
        file = prepare(self.cohort, self.bench.data, self.bench.folder)
        method = self.cell.method
        rows = CLUSTERED if method in CLUSTERED else (method,)
        if method in (REAL, FLOOR, CEILING):
            rows = ("mean",)
        return declared_plan(self.cohort, file, self.cell.epsilon, rows, self.bench.batches)

    @property
    def spec(self) -> PrivateDatasetSpec:
        """The dataset file that declares this cell."""
        return self._declared[0]

    @property
    def plan(self) -> DatasetPlan:
        """Its plan."""
        return self._declared[1]

    @property
    def planned(self) -> PlannedMethod:
        """The cell's method; of a reference the mean, whose settings it shares."""
        name = self.cell.method.replace(".", "_")
        folders = {planned.folder: planned for planned in self.plan.methods}
        return folders.get(name) or self.plan.methods[0]

    @cached_property
    def records(self) -> Records:
        """The cohort's records."""
        return self.bench.records(self.cohort, self.spec)

    @cached_property
    def private(self) -> PrivateInputs:
        """Source records in this seed's public order."""
        return self.records.in_order(self.cell.seed)

    @property
    def public(self) -> PublicInputs:
        """Public and released inputs."""
        return PublicInputs(
            language_model=prompted(self.bench.language_model, self.plan.terms.prompts),
            cluster_centers=self.bench.centers,
            cluster_histogram=self.bench.histogram(self),
            salt=self.cell.name,
            seed=self.cell.seed,
        )

    @property
    def scored_rows(self) -> int:
        """Rows every corpus of this ε is scored on: what the plan promises at the least."""
        return int(self.planned.plan.rows_estimate or 0)


def run_cell(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Makes and scores one corpus; keeps its rows beside the results."""
    run = Run(bench, cell)
    _ = run.records  # Embedding belongs to no cell.
    started = time.process_time()
    rows, facts = _made(run)
    seconds = time.process_time() - started
    rows.write_parquet(bench.folder / "rows" / f"{cell.name}.parquet")
    scores = _structure(run, rows) if run.cohort.structured else _likeness(run, rows)
    return {
        "cell": [cell.seed, cell.cohort, cell.epsilon, cell.method],
        "rows": rows.height,
        "processor_seconds": round(seconds, 1),
        **facts,
        **scores,
    }


def _made(run: Run) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Rows of the corpus, and what it cost."""
    config, terms, method = run.planned.config, run.plan.terms, run.cell.method
    documents = run.scored_rows + 10  # A few may be blank.
    if method == REAL:
        return run.private.records.select("text", "label").head(run.scored_rows), {}
    if method == FLOOR:
        corpus = generate_public_only(config, terms, run.public, documents, _quiet)
        return corpus.rows, {"epsilon": 0.0}
    if method == CEILING:
        made = generate_non_private(config, terms, run.private, run.public, documents, _quiet)
        return made.value.rows, {}
    return _private_corpus(run)


def _private_corpus(run: Run) -> tuple[pl.DataFrame, dict[str, Any]]:
    planned, terms = run.planned, run.plan.terms
    made = planned.method.generate(
        planned.plan, planned.config, terms, run.private, run.public, _quiet
    )
    histogram = run.plan.histogram
    costs = {
        "epsilon": run.plan.total_epsilon if planned.plan.event is not None else None,
        "ex_post_epsilon": made.cost.ex_post_epsilon,
        "histogram_epsilon": None if histogram is None else histogram.epsilon,
    }
    return made.value.rows, {**costs, **_counts(made.value)}


def _counts(corpus: SyntheticCorpus) -> dict[str, Any]:
    names = ("batches", "tokens_per_batch", "private_tokens", "public_tokens")
    return {name: corpus.facts[name] for name in names}


def _likeness(run: Run, rows: pl.DataFrame) -> dict[str, Any]:
    """MAUVE, energy distance and accuracy against held-out records."""
    sample = rows.sample(min(run.scored_rows, rows.height), shuffle=True, seed=run.cell.seed)
    features = run.bench.embedder.embed(sample["text"].to_list())
    real, held_out = run.records.held_out_embeddings, run.records.held_out
    assert real is not None
    scores: dict[str, Any] = {"scored_rows": sample.height}
    if sample.height >= MINIMUM_ROWS:
        settings = replace(MauveSettings(), max_rows=sample.height, seed=run.cell.seed)
        scores["mauve"] = mauve_score(real, features, settings).mean
    scores["energy_distance"] = energy_distance(features, real)
    scores["accuracy"] = downstream_accuracy(
        features, sample["label"].to_list(), real, held_out["label"].to_list(), run.cell.seed
    )
    return scores


def _structure(run: Run, rows: pl.DataFrame) -> dict[str, Any]:
    structured = run.spec.structured
    assert structured is not None
    return structure_scores(rows["text"].to_list(), structured.schema_mapping).to_json()


def _quiet(_share: float, _message: str) -> None:
    """Reports to nobody."""
