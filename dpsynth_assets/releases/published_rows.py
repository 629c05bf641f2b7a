"""Rows of a corpus as they are published, and the digest by which the ledger knows them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.storage.whole_folders import file_digests

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod

ROWS, FILES = "rows", "files"
"""What a commit tells the digest of, in the public part of the ledger."""

PROVENANCE = ("method", "origin", "batch", "cluster", "topic", "n_tokens")


def published_rows(
    spec: PrivateDatasetSpec, planned: "PlannedMethod", candidate: pl.DataFrame
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


def content_digests(rows: pl.DataFrame | None, files: Path | None) -> dict[str, str]:
    """What a commit tells of a release: SHA-256 of its rows, or of its files, by what they are.

    **Privacy** A function of what the charge paid for, and no more private than that.
    """
    told = {} if rows is None else {ROWS: rows_digest(rows)}
    if files is not None and files.is_dir():
        told[FILES] = files_digest(file_digests(files))
    return told


def rows_digest(candidate: pl.DataFrame) -> str:
    """SHA-256 of what is published of a candidate, row by row; names of label columns are not."""
    kept = [name for name in ("text", "label", *PROVENANCE[1:]) if name in candidate.columns]
    digest = hashlib.sha256(json.dumps(kept).encode())
    for row in candidate.select(kept).iter_rows():
        digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def files_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 of released files from that of each, by its name."""
    return hashlib.sha256(json.dumps(dict(digests), sort_keys=True).encode()).hexdigest()


def candidate_behind(rows: pl.DataFrame, name: str, method: str) -> pl.DataFrame:
    """Undoes `published_rows`.

    Args:
        rows: Published rows.
        name: What their ids begin with.
        method: Their method.

    Raises:
        ValueError: They have another form, in which something else could stand.
    """
    place = rows.columns.index("id")
    labels, provenance = rows.columns[1:place], rows.columns[place + 1 :]
    if (
        rows.columns[0] != "text"
        or provenance != [each for each in PROVENANCE if each in provenance]
        or rows["id"].to_list() != [f"{name}-{number}" for number in range(rows.height)]
        or set(rows["method"].to_list()) - {method}
    ):
        raise ValueError("Expected rows as they are published, got others.")
    joined = pl.concat_str(labels, separator=LABEL_SEPARATOR, ignore_nulls=True)
    return rows.with_columns((joined if labels else pl.lit("")).alias("label"))
