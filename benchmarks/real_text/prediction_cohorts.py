"""The private cohorts of the prediction table and what each of its rows declares.

Yelp by sentiment and AG News by topic follow Amin et al. 2025, Table 3; movie records in JSON
follow Amin et al. 2024, Table 4. Each row of the table is an account of its own over the same
records, for the sake of comparison: on real data the accounts would add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from prediction_base import TEXT_CHARACTERS, pieces

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planned import DatasetPlan
from dpsynth_assets.methods.planning import plan_dataset

DELTA = 1e-6
EXTRACT_CHARACTERS = 160
FLOOR, CEILING, REAL = "public_only", "one_real_example", "real_data"
REFERENCES = (REAL, FLOOR, CEILING)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the batches of one ε are: s contexts, clusters of a label, most batches."""

    contexts: int
    clusters_per_label: int
    batches: int


SIZES = {
    10.0: Size(contexts=64, clusters_per_label=3, batches=8),
    3.0: Size(contexts=192, clusters_per_label=2, batches=4),
}
RECORD_SIZE = Size(contexts=64, clusters_per_label=1, batches=8)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: a registered method and where its settings depart from the cohort's."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    clustered: bool = False


TEXT_ROWS = {
    "mean": Row(method="mean_uniform"),
    "mean_plus_plus": Row(method="mean_uniform", settings={"examples_per_context": 2}),
    "mean_clustered": Row(
        method="mean_clustered", settings={"examples_per_context": 2}, clustered=True
    ),
    "median_clustered": Row(
        method="median_clustered", settings={"examples_per_context": 2}, clustered=True
    ),
}
"""Amin et al. 2025, Table 10: the baseline has one example a context, every other row two."""

_TEST = {"public_temperature": 0.75}
"""A public token is drawn at three quarters of a private one's temperature, as in the paper."""

RECORD_ROWS = {
    "mean": Row(method="mean_uniform"),
    "svt_0.5": Row(method="mean_svt", settings={"svt_threshold": 0.5, **_TEST}),
    "svt_1.0": Row(method="mean_svt", settings={"svt_threshold": 1.0, **_TEST}),
}
"""Without and with the public-token test, at two thresholds as in Amin et al. 2024, Table 4."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """One private corpus: `structured` ones are JSON records, scored by their structure."""

    name: str
    labels: Mapping[str, Mapping[str, str]]
    rows: Mapping[str, Row]
    epsilons: tuple[float, ...]
    structured: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """What is made of it, references first; records have none."""
        return tuple(self.rows) if self.structured else (*REFERENCES, *self.rows)


COHORTS = {
    cohort.name: cohort
    for cohort in (
        Cohort(
            name="yelp",
            labels={"sentiment": {"negative": "negative review", "positive": "positive review"}},
            rows=TEXT_ROWS,
            epsilons=(10.0, 3.0),
        ),
        Cohort(
            name="ag_news",
            labels={"topic": {n: n for n in ("Business", "Sci/Tech", "Sports", "World")}},
            rows=TEXT_ROWS,
            epsilons=(10.0, 3.0),
        ),
        Cohort(name="movies_json", labels={}, rows=RECORD_ROWS, epsilons=(10.0,), structured=True),
    )
}


def prepare(cohort: Cohort, data: Path, folder: Path) -> Path:
    """Writes the cohort's records as the table uses them, with texts cut at a public length."""
    file = folder / f"{cohort.name}.parquet"
    if not file.exists():
        records = _RECORDS[cohort.name](data)
        records.with_row_index("id").cast({"id": pl.String}).write_parquet(file)
    return file


def _yelp(data: Path) -> pl.DataFrame:
    """One or two stars are negative, four or five positive, as many of each: Yelp Polarity."""
    reviews = _cut(pl.read_parquet(data / "yelp_reviews.parquet"), "text", TEXT_CHARACTERS)
    negative = reviews.filter(pl.col("stars") < 3)
    positive = reviews.filter(pl.col("stars") > 3).sample(negative.height, seed=0)
    return pl.concat(
        part.select("text", sentiment=pl.lit(sentiment))
        for sentiment, part in (("negative", negative), ("positive", positive))
    )


def _ag_news(data: Path) -> pl.DataFrame:
    articles = pl.read_parquet(data / "ag_news.parquet")
    return _cut(articles, "text", TEXT_CHARACTERS).select("text", "topic")


def _movies(data: Path) -> pl.DataFrame:
    movies = pl.read_parquet(data / "wikipedia_movies.parquet")
    complete = movies.drop_nulls().filter(pl.col("cast").list.len().is_between(1, 4))
    return _cut(complete, "extract", EXTRACT_CHARACTERS)


_RECORDS = {"yelp": _yelp, "ag_news": _ag_news, "movies_json": _movies}


def _cut(frame: pl.DataFrame, column: str, characters: int) -> pl.DataFrame:
    """Keeps the first whole sentences of each text; texts whose first one is longer go."""
    first = [next(pieces(text, characters), None) for text in frame[column]]
    return frame.with_columns(pl.Series(column, first)).drop_nulls(column)


def declared_plan(
    cohort: Cohort, file: Path, epsilon: float, methods: tuple[str, ...], batches: int | None
) -> tuple[PrivateDatasetSpec, DatasetPlan]:
    """Declares rows of the table as one dataset file of budget ε, and plans it.

    Args:
        cohort: Whose records.
        file: Their Parquet file.
        epsilon: Budget of these rows together; an ex-post row takes none.
        methods: Rows of one declaration: the two clustered ones share a histogram.
        batches: Most batches of a corpus; None for the size's own.
    """
    size = RECORD_SIZE if cohort.structured else SIZES[epsilon]
    declared = _declared_records(cohort, file) if cohort.structured else _declared(cohort, file)
    declared["budget"] = {"epsilon": epsilon, "delta": DELTA, "accepts_ex_post": True}
    declared["methods"] = [
        {
            "method": cohort.rows[name].method,
            "name": name.replace(".", "_"),
            "settings": {**_settings(cohort, size, batches), **cohort.rows[name].settings},
        }
        for name in methods
    ]
    if any(cohort.rows[name].clustered for name in methods):
        declared["cluster_histogram"] = {"clusters_per_label": size.clusters_per_label}
    spec = PrivateDatasetSpec.model_validate(declared)
    return spec, plan_dataset(spec)


def _settings(cohort: Cohort, size: Size, batches: int | None) -> dict[str, Any]:
    tokens = 144 if cohort.structured else 72
    return {
        "expected_batch_size": size.contexts,
        "max_batches": batches or size.batches,
        "max_document_tokens": tokens,
        "max_example_tokens": tokens,
        "batches_per_forward": 4,
        "batching": "hashed" if cohort.structured else "slots",
        "on_exhaustion": "drop" if cohort.structured else "finish_publicly",
    }


def _declared(cohort: Cohort, file: Path) -> dict[str, Any]:
    """Text cohorts: zero-out neighbours and full batches, as the paper's fixed chunks need."""
    records = pl.scan_parquet(file).select(pl.len()).collect().item()
    return {
        "name": cohort.name,
        "source": {"path": str(file)},
        "columns": {"text": "text", "id": "id", "labels": list(cohort.labels)},
        "neighboring_relation": "zero-out",
        "public_facts": {
            "labels": {name: dict(values) for name, values in cohort.labels.items()},
            "records": records,
            "slots": True,
        },
        "held_out_fraction": 0.1,
    }


def _declared_records(cohort: Cohort, file: Path) -> dict[str, Any]:
    """JSON records: add/remove neighbours, hashed batches; structure and prompts as declared."""
    path = Path(__file__).with_name("movies_json.yaml")
    declared = yaml.safe_load(path.read_text(encoding="utf-8"))["attributes"]
    records = pl.scan_parquet(file).select(pl.len()).collect().item()
    return {
        **{name: declared[name] for name in ("columns", "structured", "prompt")},
        "name": cohort.name,
        "source": {"path": str(file)},
        "public_facts": {"records": records},
        "held_out_fraction": 0.02,
    }
