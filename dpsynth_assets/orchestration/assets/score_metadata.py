"""Scores of the internal report as metadata of its asset.

**Privacy** Internal, as the report: scores are computed from private records without noise. Numbers
of rows stand only where rows were released: of real rows they would count private records.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.metrics.comparison import METRICS
from dpsynth_assets.report import plots
from dpsynth_assets.report.cells import format_cell
from dpsynth_assets.report.pages import page_address


def score_metadata(
    cohort: str,
    report: Path,
    table: Sequence[Mapping[str, Any]],
    told: Sequence[str],
    pictures: Mapping[str, bytes],
) -> dict[str, Any]:
    """Puts scores where Dagster shows them.

    Args:
        cohort: Whose scores they are.
        report: The written page.
        table: Rows of the report's table.
        told: Sentences below it.
        pictures: Those that may be shown beside the asset.
    """
    metadata: dict[str, Any] = {
        "dpsynth/report": dg.MetadataValue.url(page_address("reports", cohort, report.name)),
        "dpsynth/scores": _score_table(table),
        "dpsynth/verdicts": dg.MetadataValue.md("\n\n".join(told)),
    }
    for name, picture in pictures.items():
        metadata[f"dpsynth/plot_{name}"] = dg.MetadataValue.md(plots.to_markdown(picture, name))
    for row in table:
        slug = row["name"].replace(" ", "_").replace("-", "_")
        for metric in ("mauve", "accuracy"):
            if row[metric] is not None:
                metadata[f"dpsynth/{metric}/{slug}"] = float(row[metric])
    return metadata


_SHOWN = (
    "name", "guarantee", "epsilon", "rows",
    *(f"{prefix}{metric}" for metric in METRICS for prefix in ("", "gap_closed_")),
)  # fmt: skip


def _score_table(table: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    records = [dg.TableRecord({column: _cell(column, row) for column in _SHOWN}) for row in table]
    columns = [dg.TableColumn(column, "string") for column in _SHOWN]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _cell(column: str, row: Mapping[str, Any]) -> str:
    value = row.get(column)
    if value is None:
        return "—"
    return format_cell(column, value, row)
