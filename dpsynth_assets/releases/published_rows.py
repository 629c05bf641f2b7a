"""Rows of a corpus as they are published."""

import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.methods.dataset_plan import PlannedMethod

PROVENANCE = ("origin", "batch", "cluster", "topic", "n_tokens")


def published_rows(
    spec: PrivateDatasetSpec, planned: PlannedMethod, candidate: pl.DataFrame
) -> pl.DataFrame:
    """Columns text and labels; id, method and provenance, under names that no label can have."""
    parts = pl.col("label").str.split(LABEL_SEPARATOR)
    name = f"{spec.name}-{planned.folder}"
    own = {
        "id": pl.format("{}-{}", pl.lit(name), pl.int_range(pl.len())),
        "method": pl.lit(planned.method.name),
        **{column: pl.col(column) for column in PROVENANCE if column in candidate.columns},
    }
    return candidate.select(
        "text",
        *(
            parts.list.get(place, null_on_oob=True).alias(column)
            for place, column in enumerate(spec.columns.labels)
        ),
        *(value.alias(f"{OWN_COLUMNS}{column}") for column, value in own.items()),
    )
