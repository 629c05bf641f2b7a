"""SecPE beside Aug-PE on Yelp by category and rating: the paper's Table 5 in small.

    PYTHONPATH=. python benchmarks/real_text/secpe_table.py [--tiny | --small] [--work FOLDER]

Secrets are words near a quantile of the vocabulary (SecPE, section 4.2). For each r/p four corpora:
Aug-PE at the μ that the paper compares with, which protects a secret in ONE record; Aug-PE at μ/m,
which protects a secret in m records; SecPE with noise and sampling AS PRINTED, which is NO
guarantee (its column says what r/p it really attains); SecPE as the product runs it. Beside them
real text and evolution without noise. Scores: accuracy on real held-out reviews of classifiers
trained on the corpus, and the Fréchet distance of embeddings to those reviews.

The language model is trained on public corpora in minutes on a processor, and writes fragments:
differences between methods are what to read, not levels. `--small` takes some twenty minutes on two
cores. Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
from prediction_base import public_documents, trained_model

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.methods.base import CohortTerms, PrivateInputs, PublicInputs
from dpsynth_assets.methods.evolution import AugPe, SecPe
from dpsynth_assets.methods.evolution.config import AugPeConfig
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.evolution.secpe import Unkept
from dpsynth_assets.methods.evolution.secret_clusters import (
    Representatives,
    label_numbers,
    public_clusters,
)
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.evolution.secret_plan import CLUSTER_STAGE
from dpsynth_assets.methods.staged import Released
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.frechet import Moments, frechet_distance
from dpsynth_assets.models.language_model_training import TrainingSettings
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.secret_noise import shift_event
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    poisson_binomial,
    posterior_of_events,
)
from dpsynth_assets.privacy.secret_sampling import sampling_probabilities, secret_weights
from dpsynth_assets.privacy.secret_statistics import ClusterStatistics
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit
from dpsynth_assets.secret_detection import find_secrets

PRIOR, DELTA = 1e-4, 1e-6
RATIOS = (2, 10, 50)
CHARACTERS = 240
SEPARATOR = " | "


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    records: int
    held_out: int
    categories: int
    population: int
    variations: int
    iterations: int
    clusters: int
    rows: int
    words: int
    public_documents: int
    model: TrainingSettings


def _model(width: int, layers: int, tokens: int) -> TrainingSettings:
    return TrainingSettings(
        vocabulary=2048, width=width, layers=layers, token_budget=tokens, max_document_tokens=96
    )


SIZES = {
    "tiny": Size(400, 200, 2, 24, 2, 2, 2, 60, 30, 300, _model(64, 2, 100_000)),
    "small": Size(4_000, 900, 4, 200, 3, 3, 4, 600, 300, 3_000, _model(128, 4, 3_000_000)),
}


class Remembering:
    """An embedder that embeds a text once: public documents are clustered for every corpus."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self._embedder, self._known = embedder, {}
        self.name, self.dimension = embedder.name, embedder.dimension

    def embed(self, texts, progress=None):
        """See `TextEmbedder.embed`."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known.update(zip(new, self._embedder.embed(new, progress), strict=True))
        return np.stack([self._known[text] for text in texts])


class Bench:
    """Private reviews with their secrets, public base, and what every corpus is scored by."""

    def __init__(self, size: Size, data: Path, work: Path) -> None:
        self.size, self.work = size, work
        reviews = pl.read_parquet(data / "yelp_reviews.parquet").with_columns(
            pl.col("text").str.slice(0, CHARACTERS)
        )
        kept = reviews["category"].value_counts(sort=True)["category"].head(size.categories)
        reviews = reviews.filter(pl.col("category").is_in(kept.to_list())).sample(
            fraction=1.0, shuffle=True, seed=0
        )
        labels = [f"{c}{SEPARATOR}{s}" for c in sorted(kept) for s in range(1, 6)]
        label = pl.format("{}" + SEPARATOR + "{}", "category", "stars")
        records = reviews.select(
            pl.format("r{}", pl.int_range(pl.len())).alias("record_id"),
            pl.format("r{}", pl.int_range(pl.len())).alias("unit_id"),
            "text",
            label.alias("label"),
        )
        embedder = Remembering(TextEmbedder(max_tokens=64))
        private, held = records.head(size.records), records.tail(size.held_out)
        self.private = PrivateInputs(
            records=private, embeddings=embedder.embed(private["text"].to_list())
        )
        self.held, self.held_vectors = held, embedder.embed(held["text"].to_list())
        prose = public_documents(data).filter(~pl.col("group").str.starts_with("records"))
        model, _ = trained_model(
            prose, work / f"model-{size.model.token_budget}", size.model, "cpu"
        )
        sample = prose.sample(size.public_documents, seed=0).select("text", "label")
        self.public = PublicInputs(
            language_model=model, text_embedder=embedder, public_records=sample, seed=1
        )
        self.terms = CohortTerms(
            cohort="yelp",
            relation=NeighboringRelation.ADD_REMOVE,
            unit=PrivacyUnit(),
            epsilon=100.0,
            delta=DELTA,
            accountant="tight",
            labels=tuple(labels),
            label_texts=tuple(text.replace(SEPARATOR, " review, stars ") for text in labels),
        )
        self._find_words()

    def _find_words(self) -> None:
        """Rare words and the cap that holds for them; a real cohort would declare it blindly."""
        kind = {
            "name": "word",
            "detector": "rare_words",
            "quantile": 0.8,
            "words": self.size.words,
            "max_records": 1,
            "posterior": 0.5,
        }
        found = find_secrets(self.private.records, SecretsSpec.model_validate({"kinds": [kind]}))
        held = found.table.group_by("secret", maintain_order=True).agg("record")["record"]
        self.secrets = [rows.to_numpy().astype(np.int64) for rows in held]
        self.cap = max(len(rows) for rows in self.secrets)
        self.kind = {**kind, "max_records": self.cap}

    def settings(self) -> dict[str, int]:
        """What both methods are told."""
        size = self.size
        return {
            "iterations": size.iterations,
            "population": size.population,
            "variations": size.variations,
            "rows": size.rows,
            "max_new_tokens": 48,
        }

    def score(self, rows: pl.DataFrame) -> dict[str, float]:
        """Accuracies and Fréchet distance on held-out reviews."""
        vectors = self.public.text_embedder.embed(rows["text"].to_list())
        scores = {}
        for place, name in enumerate(("category", "rating")):
            part = [label.split(SEPARATOR)[place] for label in rows["label"]]
            truth = [label.split(SEPARATOR)[place] for label in self.held["label"]]
            scores[name] = downstream_accuracy(vectors, part, self.held_vectors, truth)
        scores["frechet"] = frechet_distance(Moments.of(vectors), Moments.of(self.held_vectors))
        return scores


def aug_pe(bench: Bench, mu: float) -> pl.DataFrame:
    """Aug-PE whose votes are μ-GDP for one record."""
    method, config = AugPe(), AugPeConfig(**bench.settings())
    plan = method.plan(config, bench.terms, target_epsilon=gaussian_epsilon(mu, DELTA))
    with tempfile.TemporaryDirectory() as scratch:
        made = method.release_stage(
            STAGE, plan, config, bench.terms, bench.private, bench.public,
            Unkept(Path(scratch)), _quiet,
        ).value  # fmt: skip
        return _written(bench, method, plan, config, {STAGE: made})


def secpe(bench: Bench, ratio: float) -> tuple[pl.DataFrame, float]:
    """SecPE as the product runs it; returns its r/p too."""
    kinds = [{**bench.kind, "posterior": ratio * PRIOR}]
    terms = replace(bench.terms, secrets=SecretsSpec.model_validate({"kinds": kinds}).promise)
    method, config = SecPe(), SecPeConfig(clusters=bench.size.clusters, **bench.settings())
    plan = method.plan(config, terms, target_epsilon=0.0)
    with tempfile.TemporaryDirectory() as scratch:
        clusters = method.release_stage(
            CLUSTER_STAGE, plan, config, terms, bench.private, bench.public,
            Unkept(Path(scratch) / "clusters"), _quiet,
        ).value  # fmt: skip
        rows = _evolved(bench, method, plan, config, clusters, Path(scratch))
    return rows, plan.parameters["posteriors"]["word"] / PRIOR


def secpe_as_printed(bench: Bench, ratio: float) -> tuple[pl.DataFrame, float]:
    """SecPE with the printed sampling and noise. NO guarantee: drawn by numpy, for comparison."""
    mu, size = gaussian_budget(PRIOR, ratio * PRIOR), bench.size
    count = bench.private.records.height
    weights = secret_weights(bench.secrets, [mu] * len(bench.secrets), count)
    chances = sampling_probabilities(weights, "algorithm-1")
    draw, rounds = np.random.default_rng(0), size.iterations
    noise = max(chances[rows].sum() for rows in bench.secrets) * math.sqrt(rounds) / mu
    config = SecPeConfig(clusters=size.clusters, **bench.settings())
    clusters = public_clusters(config, bench.terms, bench.public)
    statistics = ClusterStatistics(
        public_centres=clusters.centres, public_counts=clusters.counts, l2_bound=1.0,
        centre_groups=clusters.labels,
    )  # fmt: skip
    groups, made = label_numbers(bench.private, bench.terms.labels), []
    for _ in range(rounds):
        taken = draw.random(count) < chances
        sums = statistics.of(bench.private.embeddings[taken], groups[taken]).astype(float)
        made.append(statistics.merge(sums + draw.normal(0, noise * statistics.steps, sums.shape)))
    released = Representatives(
        centres=np.stack([each.centres for each in made]).astype(np.float32),
        counts=np.stack([each.counts for each in made]),
        labels=clusters.labels,
        public_counts=clusters.counts,
    )
    attained = max(
        posterior_of_events(
            [shift_event(count_probabilities=law, noise_std=noise, steps=rounds)], PRIOR
        )
        for law in _largest(bench.secrets, chances)
    )
    method = SecPe()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "clusters").mkdir()
        released.save(Path(scratch) / "clusters")
        rows = _evolved(
            bench, method, _Unpriced(), config, Path(scratch) / "clusters", Path(scratch)
        )
    return rows, attained / PRIOR


def _largest(secrets: list[np.ndarray], chances: np.ndarray) -> list[np.ndarray]:
    """Law of the most exposed secret: one composition of rounds takes a second."""
    most = max(secrets, key=lambda rows: float(chances[rows].sum()))
    return [poisson_binomial(chances[most])]


class _Unpriced:
    """Stands for the plan of what has no guarantee."""

    parameters: ClassVar = {"noise_std": 0.0}


def _evolved(bench, method, plan, config, clusters, scratch):
    folder = clusters if isinstance(clusters, Path) else clusters.files
    paid = Released(reservation="clusters", facts={}, folder=folder)
    public = replace(bench.public, released={CLUSTER_STAGE: paid})
    made = method.prepare_stage(
        STAGE, plan, config, bench.terms, public, scratch / "population", _quiet
    )
    return _written(bench, method, plan, config, {STAGE: made})


def _written(bench, method, plan, config, stages):
    released = {
        name: Released(reservation=name, facts=made.facts, folder=made.files)
        for name, made in stages.items()
    }
    public = replace(bench.public, released=released)
    return method.write(plan, config, bench.terms, public, bench.size.rows, _quiet).rows


def _quiet(*_):
    pass


def cells(bench: Bench):
    """(name, r/p asked, r/p attained for a secret in m records, rows)."""
    cap, real = bench.cap, bench.private.records.head(bench.size.rows)
    yield "real reviews", None, None, real
    yield "Aug-PE, no noise", math.inf, math.inf, aug_pe(bench, 50.0)
    for ratio in RATIOS:
        mu = gaussian_budget(PRIOR, ratio * PRIOR)
        of_secret = gaussian_posterior(cap * mu, PRIOR) / PRIOR
        yield "Aug-PE, μ of one record", ratio, of_secret, aug_pe(bench, mu)
        yield f"Aug-PE, μ of {cap} records", ratio, float(ratio), aug_pe(bench, mu / cap)
        rows, attained = secpe_as_printed(bench, ratio)
        yield "SecPE as printed: NO guarantee", ratio, attained, rows
        rows, attained = secpe(bench, ratio)
        yield "SecPE", ratio, attained, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--tiny", action="store_true", help="a minute or two: does it run")
    group.add_argument("--small", action="store_true", help="some twenty minutes (default)")
    parser.add_argument("--work", type=Path, default=project_root() / ".dpsynth" / "secpe_table")
    options = parser.parse_args()
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        raise SystemExit(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DPSYNTH_HOME", str(options.work / "home"))
    bench = Bench(SIZES["tiny" if options.tiny else "small"], data, options.work)
    print(
        f"{bench.private.records.height} reviews, {len(bench.terms.labels)} labels, "
        f"{len(bench.secrets)} secrets in at most m = {bench.cap} records, p = {PRIOR:g}"
    )
    print(f"{'corpus':<32} {'r/p asked':>9} {'attained':>9} {'category':>9} {'rating':>7} "
          f"{'Fréchet':>8} {'seconds':>8}")  # fmt: skip
    start = time.monotonic()
    for name, asked, attained, rows in cells(bench):
        score = bench.score(rows)
        print(f"{name:<32} {_number(asked):>9} {_number(attained):>9} {score['category']:>9.3f} "
              f"{score['rating']:>7.3f} {score['frechet']:>8.3f} "
              f"{time.monotonic() - start:>8.0f}", flush=True)  # fmt: skip
        line = {"corpus": name, "asked": asked, "attained": attained, **score}
        with (options.work / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        start = time.monotonic()


def _number(value: float | None) -> str:
    if value is None:
        return "—"
    return "∞" if math.isinf(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()
