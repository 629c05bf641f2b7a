"""Rows of a corpus as they are published, and the rows of a release behind them."""

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import PROVENANCE, StoredReleases, sealed_release

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod


def published_rows(
    spec: PrivateDatasetSpec, planned: "PlannedMethod", candidate: pl.DataFrame
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


def published_problems(
    spec: PrivateDatasetSpec,
    planned: "PlannedMethod",
    folder: Path,
    ledger: Ledger,
    store: StoredReleases,
) -> list[str]:
    """How a published corpus differs from what ledger and store hold; empty if it does not."""
    from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
    from dpsynth_assets.report.cards import corpus_problems, rows_problem

    asset = f"{spec.name}/{planned.folder}/{CANDIDATE_CORPUS}"

    def expected(reservation: str) -> pl.DataFrame | None:
        rows = sealed_release(ledger, store, reservation, asset)[1]
        return None if rows is None else published_rows(spec, planned, rows)

    return corpus_problems(folder, ledger.entries()) or rows_problem(folder, expected)


def candidate_behind(rows: pl.DataFrame, name: str, method: str) -> pl.DataFrame:
    """Undoes `published_rows`.

    Args:
        rows: Published rows.
        name: What their ids begin with.
        method: Their method.

    Raises:
        ValueError: They have another form, in which something else could stand.
    """
    own = {each: f"{OWN_COLUMNS}{each}" for each in ("id", "method", *PROVENANCE)}
    there = {each: column for each, column in own.items() if column in rows.columns}
    labels = rows.columns[1 : rows.width - len(there)]
    if (
        rows.columns != ["text", *labels, *there.values()]
        or list(there)[:2] != ["id", "method"]
        or rows[own["id"]].to_list() != [f"{name}-{number}" for number in range(rows.height)]
        or set(rows[own["method"]].to_list()) - {method}
    ):
        raise ValueError("Expected the published rows, got other rows.")
    joined = pl.concat_str(labels, separator=LABEL_SEPARATOR, ignore_nulls=True)
    label = (joined if labels else pl.lit("")).alias("label")
    # Columns of labels are left behind: one may have the name of a column of the release.
    return rows.select("text", label, *(pl.col(there[each]).alias(each) for each in there))
