"""Columns of a corpus with their meaning, and a few of its rows, as metadata of its asset.

**Privacy** Post-processing of released rows.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Final

import dagster as dg
import polars as pl

from dpsynth_assets.datasets.fields import OWN_COLUMNS

SAMPLES: Final = 5
"""Rows of a corpus that its page in the web UI shows, more only where it has more labels."""
MOST_SAMPLES: Final = 20
SAMPLE_CHARACTERS: Final = 400

MEANINGS: Final = {
    "text": "The synthetic text.",
    "label": "Its label; several label columns are joined into one.",
    "id": "Its name in this corpus: cohort, method and a running number.",
    "method": "The method that wrote it.",
    "origin": "Where the method took it from, as it says for each row.",
    "batch": "The batch of private predictions that it was drawn from.",
    "cluster": "The cluster of public text whose records stood in its prompt.",
    "topic": "The public topic that it was written for.",
    "n_tokens": "Its length in tokens of the method's model.",
    "reservation": "The charge in the ledger that paid for it.",
}
"""Column -> what it holds, of all columns but a dataset's own labels."""


def column_schema(rows: pl.DataFrame, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Metadata under `dagster/column_schema`: name, type and meaning of every column.

    Args:
        rows: The corpus.
        labels: Its label columns.
    """
    other = "Released beside the text by the method."
    columns = [
        dg.TableColumn(
            name,
            type=str(kind).lower(),
            description=f"Its label in the column {name}."
            if name in labels
            else MEANINGS.get(name.removeprefix(OWN_COLUMNS), other),
        )
        for name, kind in rows.schema.items()
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def sample_table(rows: pl.DataFrame, labels: Sequence[str]) -> dg.TableMetadataValue:
    """A few rows, labels first: one of each label, and further ones in turn.

    Args:
        rows: The corpus.
        labels: Its label columns.
    """
    names = [*labels, "text"]
    records = [
        dg.TableRecord({name: _shown(row[name]) for name in names})
        for row in _rows_in_turn(rows.select(names), labels)
    ]
    columns = [dg.TableColumn(name, "string") for name in names]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def _rows_in_turn(rows: pl.DataFrame, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    parts = (
        rows.partition_by(list(labels), maintain_order=True) if labels and rows.height else [rows]
    )
    wanted = min(rows.height, MOST_SAMPLES, max(SAMPLES, len(parts)))
    left = [part.iter_rows(named=True) for part in parts]
    for of_label in cycle(left):
        if wanted == 0:
            return
        row = next(of_label, None)
        if row is not None:
            wanted -= 1
            yield row


def _shown(value: Any) -> str:
    text = "—" if value is None else str(value).strip()
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[: SAMPLE_CHARACTERS - 1].rstrip()}…"
