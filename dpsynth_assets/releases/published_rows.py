"""Rows of a corpus as they are published."""

import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod

PROVENANCE = ("method", "origin", "batch", "cluster", "topic", "n_tokens")


def published_rows(
    spec: PrivateDatasetSpec, planned: PlannedMethod, candidate: pl.DataFrame
) -> pl.DataFrame:
    """Columns text, labels, id and provenance, and nothing else."""
    columns = spec.columns.labels
    parts = candidate["label"].str.split(LABEL_SEPARATOR)
    labels = [parts.list.get(i, null_on_oob=True).alias(name) for i, name in enumerate(columns)]
    name = f"{spec.name}-{planned.folder}"
    frame = candidate.with_columns(
        pl.format("{}-{}", pl.lit(name), pl.int_range(pl.len())).alias("id"),
        pl.lit(planned.method.name).alias("method"),
        *labels,
    )
    kept = [column for column in PROVENANCE if column in frame.columns]
    return frame.select("text", *columns, "id", *kept)
