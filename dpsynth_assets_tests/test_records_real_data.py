"""Real corpora are read whole, where they are at hand."""

import os
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


def test_ag_news_is_read_whole_and_split_by_record():
    file = FOLDER / "ag_news.parquet"
    topics = pl.read_parquet(file)["topic"].unique().sort().to_list()
    columns, facts = {"labels": ["topic"]}, {"labels": {"topic": topics}}
    declared = private(source={"path": str(file)}, columns=columns, public_facts=facts)
    result = read_private_records(declared)
    total = result.records.height + result.held_out.height
    assert total + sum(result.set_aside.values()) == 7600
    assert total > 7500
    assert 0.08 < result.held_out.height / total < 0.12
    assert result.records["label"].n_unique() == 4


def test_public_corpora_with_different_columns_are_joined():
    wanted = {"wikipedia_movies.parquet": "extract", "abc_news.parquet": "text"}
    sources = [
        {"source": {"path": str(FOLDER / file)}, "columns": {"text": column}, "max_documents": 500}
        for file, column in wanted.items()
    ]
    documents = read_public_records(PublicDataSpec(name="real", source=sources))
    assert documents.height == 1000
    assert documents["text"].str.len_chars().min() > 0
