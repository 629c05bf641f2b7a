"""Public corpora in the place of private records, cut, shuffled and split once for all cells."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset

SEPARATOR = " / "
"""Between the parts of a label."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A corpus in two parts.

    Attributes:
        name: Its name.
        domain: What its texts are, in public words.
        labels: Public label values, and how prompts word them.
        label_names: What the parts of a label are, e.g. category and rating.
        source: Records that methods read: `id`, `text`, `label`.
        held_out: Other records of the same corpus, which score.
        declared: Further fields of its dataset file.
    """

    name: str
    domain: str
    labels: Mapping[str, str]
    label_names: tuple[str, ...] = ("",)
    source: pl.DataFrame = field(repr=False)
    held_out: pl.DataFrame = field(repr=False)
    declared: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """A digest of its records: results of other records are not these."""
        rows = [*self.source.iter_rows(), *self.held_out.iter_rows()]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]

    def of(self, records: int) -> "Cohort":
        """The same with its first so many records, beside the same held-out ones."""
        return replace(self, source=self.source.head(records))


def read_cohort(name: str, dataset: BenchmarkDataset, records: int) -> Cohort:
    """Reads a declared corpus.

    Args:
        name: Its name in the benchmark.
        dataset: Its declaration.
        records: Most source records.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A column is not there, or the file is neither CSV nor Parquet.
    """
    found = _labelled(Path(dataset.path), dataset)
    if dataset.label_texts:
        found = found.filter(pl.col("label").is_in(list(dataset.label_texts)))
    labels = {}
    if dataset.label is not None:
        texts = dataset.label_texts
        labels = {value: texts.get(value, value) for value in sorted(found["label"].unique())}
    return split_cohort(
        found,
        name=name,
        domain=dataset.domain,
        labels=labels,
        max_characters=dataset.max_characters,
        records=records,
        held_out=dataset.held_out,
        declared=dataset.declared,
    )


def split_cohort(
    found: pl.DataFrame,
    *,
    max_characters: int | None,
    records: int | None,
    held_out: int,
    **fields: Any,
) -> Cohort:
    """Cuts texts, shuffles them alike every time, and sets held-out records aside.

    Args:
        found: Columns `text` and `label`.
        max_characters: Greatest length of a text; None: texts stay as they are.
        records: Most source records; None: all.
        held_out: Most held-out records; at most a fifth of all.
        fields: Other attributes of the cohort.
    """
    if max_characters is not None:
        cut = [next(pieces(text, max_characters), None) for text in found["text"]]
        found = found.with_columns(pl.Series("text", cut, dtype=pl.String)).drop_nulls("text")
    shuffled = found.unique(maintain_order=True).sample(fraction=1.0, shuffle=True, seed=0)
    test = min(held_out, shuffled.height // 5)
    source = shuffled[test:] if records is None else shuffled[test:].head(records)
    source = source.with_row_index("id").cast({"id": pl.String})
    return Cohort(source=source, held_out=shuffled[:test], **fields)


def pieces(text: str, characters: int) -> Iterator[str]:
    """Cuts a document at sentence ends into parts of at most `characters`; long sentences go."""
    part = ""
    for sentence in re.split(r"(?<=[.!?]) +", text.strip()):
        joined = f"{part} {sentence}".strip()
        if len(joined) > characters:
            if part:
                yield part
            joined = sentence if len(sentence) <= characters else ""
        part = joined
    if part:
        yield part


def read_documents(path: Path) -> pl.DataFrame:
    """Reads public documents: column `text`, and `label` if there is one."""
    frame = _read(path, ["text"])
    return frame.select([name for name in ("text", "label") if name in frame.columns])


def whole_texts(dataset: BenchmarkDataset) -> list[str]:
    """Every text of a corpus as it stands in its file, and every public document of its own."""
    texts: list[str] = _labelled(Path(dataset.path), dataset)["text"].to_list()
    own = dataset.documents
    return texts if own is None else [*texts, *read_documents(Path(own))["text"].drop_nulls()]


def _labelled(path: Path, dataset: BenchmarkDataset) -> pl.DataFrame:
    """Columns `text` and `label` of a corpus, rows without either left out."""
    frame = _read(path, [dataset.text, *([] if dataset.label is None else [dataset.label])])
    label = pl.lit("") if dataset.label is None else pl.col(dataset.label).cast(pl.String)
    return frame.select(text=pl.col(dataset.text), label=label).drop_nulls()


def _read(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    if path.suffix not in (".parquet", ".csv"):
        raise ValueError(f"datasets.path: expected a .csv or .parquet file, got {path.name!r}.")
    if not path.is_file():
        raise FileNotFoundError(
            f"datasets.path: expected a file, found none at {path}. Fix the path."
        )
    frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"datasets: expected columns of {path.name}, got {missing[0]!r}. "
            f"It has {', '.join(frame.columns)}."
        )
    return frame
