"""One line of the SecPE table: private reviews, the corpora compared on them, and their scores.

Secrets are words near a quantile of the vocabulary (SecPE, section 4.2). Aug-PE and SecPE run as
the product runs them; what the paper prints is drawn by numpy, carries no guarantee and is named
so.
"""

import math
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from evolution_cells import balanced_accuracy

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution import AugPe, SecPe
from dpsynth_assets.methods.evolution.config import AugPeConfig
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.evolution.secpe import CLUSTER_STAGE, Unkept
from dpsynth_assets.methods.evolution.secret_clusters import (
    Representatives,
    label_numbers,
    public_clusters,
)
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.frechet import Moments, frechet_distance
from dpsynth_assets.metrics.lengths import length_distance
from dpsynth_assets.metrics.next_word import NextWordSettings, next_word_accuracy
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.language_model_training import TrainingSettings
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
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
CHARACTERS = 240
SEPARATOR = " | "
LEAST_NOISE_MU = 50.0
"""More than the mechanism gives: it then adds its least noise, σ = 1 vote."""


@dataclass(frozen=True, kw_only=True)
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
    next_word: NextWordSettings
    model: TrainingSettings


def _model(width: int, layers: int, tokens: int) -> TrainingSettings:
    return TrainingSettings(
        vocabulary=2048, width=width, layers=layers, token_budget=tokens, max_document_tokens=96
    )


SIZES = {
    "tiny": Size(
        records=400, held_out=200, categories=2, population=24, variations=2, iterations=2,
        clusters=2, rows=60, words=30, public_documents=300,
        next_word=NextWordSettings(token_budget=6_000, width=32, feed_forward=64, score_texts=60),
        model=_model(64, 2, 100_000),
    ),
    "small": Size(
        records=3_000, held_out=700, categories=4, population=100, variations=3, iterations=3,
        clusters=4, rows=300, words=300, public_documents=1_000,
        next_word=NextWordSettings(token_budget=50_000, score_texts=300),
        model=_model(128, 4, 3_000_000),
    ),
}  # fmt: skip


class Remembering:
    """An embedder that embeds a text once: public documents are clustered for every corpus."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self._embedder, self._known = embedder, {}
        self.name, self.dimension = embedder.name, embedder.dimension

    def embed(self, texts, progress=None, *, public=False):
        """See `TextEmbedder.embed`."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            found = self._embedder.embed(new, progress, public=public)
            self._known.update(zip(new, found, strict=True))
        return np.stack([self._known[text] for text in texts])


@dataclass(frozen=True)
class Corpus:
    """Rows of one method and what is promised of them.

    Attributes:
        rows: Columns `text` and `label`.
        epsilon: ε at `DELTA` for one record; None where there is no such guarantee.
        attained: r/p of a secret in as many records as any; None where nothing is promised.
    """

    rows: pl.DataFrame = field(repr=False)
    epsilon: float | None
    attained: float | None


class Bench:
    """Private reviews with their secrets, public base, and what every corpus is scored by."""

    def __init__(
        self, size: Size, data: Path, prose: pl.DataFrame, language_model: LanguageModel
    ) -> None:
        """Reads and embeds everything.

        Args:
            size: How much.
            data: Folder of the real corpora.
            prose: Public documents: `text`, `label`.
            language_model: Public writer.
        """
        self.size = size
        records, labels = _reviews(data, size.categories)
        embedder = Remembering(TextEmbedder(max_tokens=64))
        held = records.head(size.held_out)
        private = records[size.held_out : size.held_out + size.records]
        self.private = PrivateInputs(
            records=private, embeddings=embedder.embed(private["text"].to_list())
        )
        self.held, self.held_vectors = held, embedder.embed(held["text"].to_list())
        sample = prose.sample(size.public_documents, seed=0).select("text", "label")
        self.public = PublicInputs(
            language_model=language_model, text_embedder=embedder, public_records=sample, seed=1
        )
        self.terms = CohortTerms(
            cohort="yelp",
            relation=NeighboringRelation.ADD_REMOVE,
            unit=PrivacyUnit(),
            epsilon=100.0,
            delta=DELTA,
            accountant="tight",
            labels=labels,
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
        """Accuracies, next-word accuracy, and distances to held-out reviews."""
        texts, real = rows["text"].to_list(), self.held["text"].to_list()
        vectors = self.public.text_embedder.embed(texts)
        scores = {}
        for place, name in enumerate(("category", "rating")):
            part = [label.split(SEPARATOR)[place] for label in rows["label"]]
            truth = [label.split(SEPARATOR)[place] for label in self.held["label"]]
            scores[name] = downstream_accuracy(vectors, part, self.held_vectors, truth)
            balanced = balanced_accuracy(vectors, part, self.held_vectors, truth)
            scores[f"{name}_balanced"] = balanced
        scores["next_word"] = next_word_accuracy(texts, real, self.size.next_word).accuracy
        scores["frechet"] = frechet_distance(Moments.of(vectors), Moments.of(self.held_vectors))
        scores["length"] = length_distance(texts, real)
        return scores


def _reviews(data: Path, categories: int) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Reviews of the most frequent categories in one public order, and their labels."""
    reviews = pl.read_parquet(data / "yelp_reviews.parquet").with_columns(
        pl.col("text").str.slice(0, CHARACTERS)
    )
    kept = reviews["category"].value_counts(sort=True)["category"].head(categories).to_list()
    shuffled = reviews.filter(pl.col("category").is_in(kept)).sample(
        fraction=1.0, shuffle=True, seed=0
    )
    number = pl.format("r{}", pl.int_range(pl.len()))
    records = shuffled.select(
        number.alias("record_id"),
        number.alias("unit_id"),
        "text",
        pl.format("{}" + SEPARATOR + "{}", "category", "stars").alias("label"),
    )
    return records, tuple(f"{c}{SEPARATOR}{s}" for c in sorted(kept) for s in range(1, 6))


def real_reviews(bench: Bench) -> Corpus:
    """As many private reviews as a corpus has rows; nothing is protected."""
    return Corpus(bench.private.records.head(bench.size.rows), None, None)


def aug_pe(bench: Bench, mu: float) -> Corpus:
    """Aug-PE whose votes are μ-GDP for one record."""
    method = AugPe(AugPeConfig(**bench.settings()), bench.terms)
    plan = method.plan(gaussian_epsilon(mu, DELTA))
    with tempfile.TemporaryDirectory() as scratch:
        made = method.release(
            plan.stage(STAGE), bench.private, bench.public, Unkept(Path(scratch)), _quiet
        ).value
        rows = _written(bench, method, {STAGE: made})
    spent = gaussian_mu(plan.epsilon, DELTA)
    return Corpus(rows, plan.epsilon, gaussian_posterior(bench.cap * spent, PRIOR) / PRIOR)


def aug_pe_with_least_noise(bench: Bench) -> Corpus:
    """Aug-PE at σ = 1 vote: what more noise costs is seen from here."""
    return aug_pe(bench, LEAST_NOISE_MU)


def secpe(bench: Bench, ratio: float) -> Corpus:
    """SecPE as the product runs it."""
    kinds = [{**bench.kind, "posterior": ratio * PRIOR}]
    terms = replace(bench.terms, secrets=SecretsSpec.model_validate({"kinds": kinds}).promise)
    method = SecPe(SecPeConfig(clusters=bench.size.clusters, **bench.settings()), terms)
    plan = method.plan(0.0)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Unkept(Path(scratch) / "clusters")
        clusters = method.release(
            plan.stage(CLUSTER_STAGE), bench.private, bench.public, checkpoint, _quiet
        ).value
        rows = _evolved(bench, method, clusters.files, Path(scratch))
    return Corpus(rows, None, plan.parameters["posteriors"]["word"] / PRIOR)


def secpe_without_noise(bench: Bench) -> Corpus:
    """SecPE whose clusters hold every record and no noise: what clustering alone costs."""
    return Corpus(_by_hand(bench, np.ones(bench.private.records.height), 0.0, 1), None, None)


def secpe_as_printed(bench: Bench, ratio: float) -> Corpus:
    """SecPE with the printed sampling and noise. NO guarantee: drawn by numpy, for comparison."""
    mu, rounds = gaussian_budget(PRIOR, ratio * PRIOR), bench.size.iterations
    weights = secret_weights(bench.secrets, [mu] * len(bench.secrets), bench.private.records.height)
    chances = sampling_probabilities(weights, "algorithm-1")
    noise = max(chances[rows].sum() for rows in bench.secrets) * math.sqrt(rounds) / mu
    most = max(bench.secrets, key=lambda rows: float(chances[rows].sum()))
    law = shift_event(
        count_probabilities=poisson_binomial(chances[most]), noise_std=noise, steps=rounds
    )
    attained = posterior_of_events([law], PRIOR) / PRIOR
    return Corpus(_by_hand(bench, chances, noise, rounds), None, attained)


def _by_hand(bench: Bench, chances: np.ndarray, noise: float, releases: int) -> pl.DataFrame:
    """A corpus under clusters that numpy sampled and disturbed: no mechanism of the product."""
    draw = np.random.default_rng(0)
    config = SecPeConfig(clusters=bench.size.clusters, **bench.settings())
    clusters = public_clusters(config, bench.terms, bench.public)
    statistics = ClusterStatistics(
        public_centres=clusters.centres, public_counts=clusters.counts, l2_bound=1.0,
        centre_groups=clusters.labels,
    )  # fmt: skip
    groups, made = label_numbers(bench.private, bench.terms.labels), []
    for _ in range(releases):
        taken = draw.random(len(chances)) < chances
        sums = statistics.of(bench.private.embeddings[taken], groups[taken]).astype(float)
        made.append(statistics.merge(sums + draw.normal(0, noise * statistics.steps, sums.shape)))
    released = Representatives(
        centres=np.stack([each.centres for each in made]).astype(np.float32),
        counts=np.stack([each.counts for each in made]),
        labels=clusters.labels,
        public_counts=clusters.counts,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "clusters"
        folder.mkdir()
        released.save(folder)
        return _evolved(bench, SecPe(config, bench.terms), folder, Path(scratch))


def _evolved(bench, method, clusters: Path, scratch: Path) -> pl.DataFrame:
    paid = Released(reservation="clusters", facts={}, folder=clusters)
    public = replace(bench.public, released={CLUSTER_STAGE: paid})
    _, population = method.stages()
    made = method.make_public(population, public, scratch / "population", _quiet)
    return _written(bench, method, {STAGE: made})


def _written(bench, method, stages) -> pl.DataFrame:
    released = {
        name: Released(reservation=name, facts=made.facts, folder=made.files)
        for name, made in stages.items()
    }
    public = replace(bench.public, released=released)
    return method.write(public, bench.size.rows, _quiet).rows


def _quiet(*_):
    pass
