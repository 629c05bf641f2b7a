"""Secrets that a column of the source names: the user's own, which no detector looks for."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.records.record_filters import REASON, column_names, judge, record_ids
from dpsynth_assets.records.sources import read_source

_RECORD = "__record_id"


def values_of_columns(spec: PrivateDatasetSpec) -> dict[str, Mapping[str, set[str]]]:
    """Reads the columns that secrets come from.

    Returns:
        Kind -> record id -> values of its column; blank values are none. Records without an id
        column that have the same content share an id, and then each other's values.

    Raises:
        SourceError: The source is missing, broken, or lacks a column.

    **Privacy** Private. Reads the source anew: canonical records keep no other columns.
    """
    declared = spec.secrets.kinds if spec.secrets is not None else []
    columns = {kind.name: str(kind.column) for kind in declared if kind.detector == "column"}
    if not columns:
        return {}
    names = column_names(spec)
    extra = {f"secrets.kinds.{kind}.column": column for kind, column in columns.items()}
    raw = read_source(spec.source, replace(names, others={**names.others, **extra}))
    judged = pl.concat(
        [judge(raw, spec), raw.select(pl.col(c).alias(f"__{c}") for c in set(columns.values()))],
        how="horizontal",
    )
    kept = judged.filter(pl.col(REASON).is_null())
    kept = kept.with_columns(pl.Series(_RECORD, record_ids(kept, spec), dtype=pl.String))
    return {kind: _by_record(kept, f"__{column}") for kind, column in columns.items()}


def _by_record(kept: pl.DataFrame, column: str) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for record, value in kept.select(_RECORD, column).iter_rows():
        if value is not None and value.strip():
            found[record].add(value)
    return found
