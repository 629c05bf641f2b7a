"""One cell of the evolution tables: a corpus of one method, cohort, ε and seed, and its scores.

The cohorts are Yelp by business category and by rating, as in Xie et al. 2024 and SecPE. Methods
are the registered ones, planned as the product plans them; the ε printed is the ε charged. The seed
chooses public randomness; privacy noise has none.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from prediction_base import TEXT_CHARACTERS, embedded_once, pieces

from dpsynth_assets.methods.base import CohortTerms, Method
from dpsynth_assets.methods.evolution.apis import open_api
from dpsynth_assets.methods.evolution.config import AugPeConfig, EvolutionConfig
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.methods.stages import MethodPlan, SyntheticCorpus
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.energy import energy_distance
from dpsynth_assets.metrics.frechet import Moments, frechet_distance
from dpsynth_assets.metrics.lengths import length_distance
from dpsynth_assets.metrics.mauve import MINIMUM_ROWS, MauveSettings, mauve_score
from dpsynth_assets.metrics.next_word import NextWordSettings, next_word_accuracy
from dpsynth_assets.models.fine_tuning import CheckpointFolders
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.secret_protection import gaussian_posterior
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

DELTA, PRIOR = 1e-6, 1e-4
"""δ of ε, and p of what ε promises to a secret in one record: r = Φ(Φ⁻¹(p) + μ)."""

HELD_OUT = 0.2
REAL, RANDOM = "real_data", "public_only"
COHORTS = {"yelp_category": "category", "yelp_rating": "stars"}
"""Cohort by the column of its labels."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is; one for the whole table."""

    records: int
    population: int
    variations: int
    iterations: int
    rows: int
    next_word: NextWordSettings = field(
        default_factory=lambda: NextWordSettings(score_texts=500), repr=False
    )

    def settings(self) -> dict[str, Any]:
        """Settings of an evolving method."""
        return {
            "population": self.population,
            "variations": self.variations,
            "iterations": self.iterations,
            "rows": self.rows,
            "max_new_tokens": 64,
        }


SIZES = {
    "tiny": Size(
        records=400, population=20, variations=2, iterations=2, rows=40,
        next_word=NextWordSettings(token_budget=6_000, width=32, feed_forward=64, score_texts=60),
    ),
    "small": Size(records=5_000, population=60, variations=5, iterations=4, rows=500),
    "full": Size(records=5_000, population=400, variations=6, iterations=10, rows=1_000),
}  # fmt: skip
"""small: 30 candidates a category for 400 private records, so that a vote is not lost in noise."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """One private corpus: source records that mechanisms read, and held-out ones that score."""

    name: str
    labels: tuple[str, ...]
    source: pl.DataFrame = field(repr=False)
    held_out: pl.DataFrame = field(repr=False)
    source_embeddings: np.ndarray = field(repr=False)
    held_out_embeddings: np.ndarray = field(repr=False)

    def terms(self, epsilon: float) -> CohortTerms:
        """What a plan may know: labels alone."""
        return CohortTerms(
            cohort=self.name,
            relation=NeighboringRelation.ADD_REMOVE,
            unit=PrivacyUnit(),
            epsilon=epsilon,
            delta=DELTA,
            accountant="tight",
            labels=self.labels,
            label_texts=self.labels,
        )

    def private(self) -> PrivateInputs:
        """What a paid stage reads."""
        return PrivateInputs(records=self.source, embeddings=self.source_embeddings)


def load_cohort(name: str, data: Path, size: Size, embedder: TextEmbedder, folder: Path) -> Cohort:
    """Reads Yelp, cuts texts at a public length and embeds them once."""
    reviews = pl.read_parquet(data / "yelp_reviews.parquet").sample(size.records, seed=0)
    first = [next(pieces(text, TEXT_CHARACTERS), None) for text in reviews["text"]]
    column = COHORTS[name]
    kept = reviews.with_columns(pl.Series("text", first)).drop_nulls("text")
    number = pl.int_range(pl.len()).cast(pl.String)
    records = kept.select(
        pl.format("r{}", number).alias("record_id"),
        pl.format("r{}", number).alias("unit_id"),
        "text",
        pl.col(column).cast(pl.String).alias("label"),
    )
    file = folder / f"yelp-{size.records}.npy"
    embeddings = embedded_once(records["text"].to_list(), embedder, file)
    cut = round(HELD_OUT * records.height)
    return Cohort(
        name=name,
        labels=tuple(sorted(records["label"].unique().to_list())),  # The declared label set.
        source=records[cut:],
        held_out=records[:cut],
        source_embeddings=embeddings[cut:],
        held_out_embeddings=embeddings[:cut],
    )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all cells share."""

    size: Size
    language_model: LanguageModel
    embedder: TextEmbedder
    folder: Path
    variation: Literal["prefix", "infill"] = "prefix"

    def public(self, seed: int, released: Mapping[str, Released] | None = None) -> PublicInputs:
        """Public and released inputs of one cell."""
        return PublicInputs(
            language_model=self.language_model,
            text_embedder=self.embedder,
            seed=seed,
            released=dict(released or {}),
        )


def run_cell(
    bench: Bench,
    cohort: Cohort,
    epsilon: float,
    method: str,
    seed: int,
    config: EvolutionConfig | None = None,
) -> dict[str, Any]:
    """Makes and scores one corpus.

    Args:
        bench: What cells share.
        cohort: Private records.
        epsilon: ε of the whole corpus.
        method: A registered staged method, `real_data` or `public_only`.
        seed: Public randomness.
        config: Settings of the method; Aug-PE's own with the table's size by default.
    """
    config = config or AugPeConfig(**bench.size.settings(), variation=bench.variation)
    started = time.process_time()
    if method == REAL:
        rows, facts = cohort.source.select("text", "label").head(bench.size.rows), {}
    elif method == RANDOM:
        rows, facts = _random_rows(bench, cohort, config, seed), {"epsilon": 0.0}
    else:
        rows, facts = _private_rows(bench, cohort, epsilon, method, seed, config)
    seconds = time.process_time() - started
    cell = [seed, cohort.name, epsilon, method]
    file = rows_file(bench, cell)
    file.parent.mkdir(exist_ok=True)
    rows.write_parquet(file)
    return {
        "cell": cell,
        "rows": rows.height,
        "processor_seconds": round(seconds, 1),
        **facts,
        **scores(bench, cohort, rows, seed),
    }


def rows_file(bench: Bench, cell: Sequence[Any]) -> Path:
    """Where the rows of a cell are kept."""
    seed, cohort, epsilon, method = cell
    other = "" if bench.variation == "prefix" else f"-{bench.variation}"
    return bench.folder / "rows" / f"{cohort}-{epsilon:g}-{method}-{seed}{other}.parquet"


def _random_rows(bench: Bench, cohort: Cohort, config: EvolutionConfig, seed: int) -> pl.DataFrame:
    """The first generation alone: what votes are worth is measured from here."""
    labels = [cohort.labels[row % len(cohort.labels)] for row in range(bench.size.rows)]
    api = open_api(config, cohort.terms(1.0), bench.public(seed))
    return pl.DataFrame({"text": api.random(labels, seed=seed), "label": labels})


def _private_rows(
    bench: Bench,
    cohort: Cohort,
    epsilon: float,
    name: str,
    seed: int,
    config: EvolutionConfig,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    method = get_method(name)(config, cohort.terms(epsilon))
    plan = method.plan(epsilon)
    if plan.refusal is not None:
        raise SystemExit(plan.refusal)
    with tempfile.TemporaryDirectory() as folder:
        corpus = staged_corpus(method, plan, cohort.private(), bench, seed, folder)
    facts = {
        "epsilon": plan.epsilon,
        "noise_std": plan.parameters.get("noise_std"),
        "secret_ratio": gaussian_posterior(gaussian_mu(plan.epsilon, DELTA), PRIOR) / PRIOR,
    }
    return corpus.rows.select("text", "label"), facts


def staged_corpus(
    method: Method[Any],
    plan: MethodPlan,
    private: PrivateInputs,
    bench: Bench,
    seed: int,
    folder: str,
) -> SyntheticCorpus:
    """Runs every stage of a method, then its writing."""
    released: dict[str, Released] = {}
    for number, stage in enumerate(plan.stages):
        place = Path(folder) / str(number)
        public = bench.public(seed, released)
        if stage.public:
            place.mkdir()
            made = method.make_public(stage, public, place, _quiet)
        else:
            checkpoint = CheckpointFolders(place)
            made = method.release(stage, private, public, checkpoint, _quiet).value
        files = made.files or place
        released[stage.name] = Released(reservation=stage.name, facts=made.facts, folder=files)
    return method.write(bench.public(seed, released), bench.size.rows, _quiet)


def scores(bench: Bench, cohort: Cohort, rows: pl.DataFrame, seed: int) -> dict[str, Any]:
    """Likeness to held-out records, and accuracy of models trained on the corpus."""
    texts, labels = rows["text"].to_list(), rows["label"].to_list()
    real_texts = cohort.held_out["text"].to_list()
    features = bench.embedder.embed(texts)
    real = cohort.held_out_embeddings
    found: dict[str, Any] = {
        **label_scores(cohort, features, labels, seed),
        "frechet_distance": frechet_distance(Moments.of(features), Moments.of(real)),
        "energy_distance": energy_distance(features, real),
        "length_distance": length_distance(texts, real_texts),
        "next_word_accuracy": next_word_accuracy(texts, real_texts, bench.size.next_word).accuracy,
    }
    if min(len(features), len(real)) >= MINIMUM_ROWS:
        settings = replace(MauveSettings(), max_rows=min(len(features), len(real)), seed=seed)
        found["mauve"] = mauve_score(real, features, settings).mean
    return found


def label_scores(
    cohort: Cohort, features: np.ndarray, labels: Sequence[str], seed: int
) -> dict[str, float]:
    """What a classifier trained on the corpus gets right of held-out records."""
    real, real_labels = cohort.held_out_embeddings, cohort.held_out["label"].to_list()
    return {
        "accuracy": downstream_accuracy(features, labels, real, real_labels, seed=seed),
        "balanced_accuracy": balanced_accuracy(features, labels, real, real_labels),
    }


def balanced_accuracy(
    features: np.ndarray, labels: Sequence[str], real: np.ndarray, real_labels: Sequence[str]
) -> float:
    """Mean over labels of the share recognised: what one gains by naming the largest label is 1/L.

    Six in ten reviews are of restaurants: plain accuracy rewards a classifier that knows no other.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    if len(set(labels)) == 1:
        return 1.0 / len(set(real_labels))
    model = LogisticRegression(C=10.0, max_iter=300).fit(features, labels)
    return float(balanced_accuracy_score(real_labels, model.predict(real)))


COLUMNS = {
    "noise_std": ("σ (votes)", ".1f"),
    "secret_ratio": ("r/p of a secret in one record", ".3g"),
    "accuracy": ("accuracy", ".3f"),
    "balanced_accuracy": ("balanced", ".3f"),
    "next_word_accuracy": ("next word", ".3f"),
    "mauve": ("MAUVE", ".3f"),
    "frechet_distance": ("FID", ".3f"),
    "energy_distance": ("energy distance", ".3f"),
    "length_distance": ("length distance (words)", ".1f"),
    "processor_seconds": ("processor s", ".0f"),
}


def table(results: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Markdown: a section a cohort, a line a method and ε, means over seeds."""
    lines: list[str] = []
    for name in COHORTS:
        own = [result for result in results if result["cell"][1] == name]
        if not own:
            continue
        head = " | ".join(("corpus", "ε", *(title for title, _ in COLUMNS.values())))
        lines += [f"\n**{name}**\n", f"| {head} |", "|" + "---|" * (len(COLUMNS) + 2)]
        keys = dict.fromkeys((r["cell"][3], r["cell"][2]) for r in own)
        for method, epsilon in sorted(keys, key=lambda key: (list(titles).index(key[0]), key[1])):
            cells = [r for r in own if r["cell"][3] == method and r["cell"][2] == epsilon]
            shown = "" if method in (REAL, RANDOM) else _mean(cells, "epsilon", ".3g")
            values = [_mean(cells, column, form) for column, (_, form) in COLUMNS.items()]
            lines.append(" | ".join((f"| {titles[method]}", shown, *values)) + " |")
    return "\n".join(lines) or "No results yet."


def _mean(cells: Sequence[Mapping[str, Any]], column: str, form: str) -> str:
    values = [cell[column] for cell in cells if cell.get(column) is not None]
    return format(float(np.mean(values)), form) if values else ""


def _quiet(_share: float, _message: str) -> None:
    """Reports to nobody."""
