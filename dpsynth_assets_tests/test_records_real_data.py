"""The same laws on real corpora, where they are at hand."""

import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets import paths
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.records import read_public_records
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.stored import read_private_records

FOLDER = Path(os.environ.get("DPSYNTH_REAL_DATA", paths.project_root().parent / "shared" / "data"))
pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(
        not FOLDER.is_dir(),
        reason=f"no real corpora: set DPSYNTH_REAL_DATA, or place them in {FOLDER}",
    ),
]


def declare(file, labels, **changes):
    source, columns = {"path": str(FOLDER / file)}, {"labels": list(labels)}
    return private(source=source, columns=columns, public_facts={"labels": labels}, **changes)


def values(file, column):
    return pl.read_parquet(FOLDER / file)[column].unique().sort().to_list()


def test_ag_news_is_read_whole_and_split_by_record():
    file = "ag_news.parquet"
    result = read_private_records(declare(file, {"topic": values(file, "topic")}))
    total = result.records.height + result.held_out.height
    assert total + sum(result.set_aside.values()) == 7600
    assert total > 7500
    assert 0.08 < result.held_out.height / total < 0.12
    assert result.records["label"].n_unique() == 4


def test_yelp_reviews_with_a_label_that_is_not_declared_are_set_aside():
    file = "yelp_reviews.parquet"
    labels = {"stars": [1, 2, 4, 5], "category": values(file, "category")}
    threes = pl.read_parquet(FOLDER / file).filter(pl.col("stars") == 3).height
    result = read_private_records(declare(file, labels))
    assert result.set_aside["missing or unknown label"] == threes
    assert set(result.records["label"]) <= set(declare(file, labels).composite_labels[0])


def test_a_bound_on_real_units_is_kept():
    spec = declare(
        "ag_news.parquet",
        {},
        privacy_unit={"column": "topic", "max_records": 7},
        held_out_fraction=0,
    )
    result = read_private_records(spec)
    assert set(Counter(result.records["unit_id"]).values()) == {7}


def test_public_corpora_with_different_columns_are_joined():
    wanted = {"wikipedia_movies.parquet": "extract", "abc_news.parquet": "text"}
    sources = [
        {"source": {"path": str(FOLDER / file)}, "columns": {"text": column}, "max_documents": 500}
        for file, column in wanted.items()
    ]
    documents = read_public_records(PublicDataSpec(name="real", source=sources))
    assert documents.height == 1000
    assert documents["text"].str.len_chars().min() > 0
