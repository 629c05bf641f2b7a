"""Source records as internal evaluation reads them: counted shard by shard, and a sample of them.

The evaluation holds the records of one shard at a time, and the sample. The sample follows from the
records, by a keyed hash of each one's id: it is the same for any number of shards.

**Privacy** Internal: everything here is computed from private records without noise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from dpsynth_assets.attacks.overlap import HeldRecords
from dpsynth_assets.files.kept import array_version, version_of, version_of_texts
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.records.record_filters import CANONICAL, Purpose, hash_rows
from dpsynth_assets.sensitive.store import StoredRecords

_KEY, _PLACE = "__key", "__place"


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredSource:
    """The source split that corpora are searched for copies of: one shard is held at a time.

    Attributes:
        store: Where the records are.
        dataset: Whose they are.
        by_unit: Whether records of a unit count once.
        with_embeddings: Whether close records are counted, too.
    """

    store: StoredRecords
    dataset: str
    by_unit: bool = False
    with_embeddings: bool = False

    def __iter__(self) -> Iterator[HeldRecords]:
        """Reads the shards, at every call."""
        embedded = self.with_embeddings
        for some in self.store.each_for_scoring(self.dataset, "source", with_embeddings=embedded):
            units = some.records["unit_id"].to_list() if self.by_unit else None
            texts = some.records["text"].to_list()
            yield HeldRecords(texts=texts, units=units, features=some.embeddings)


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceSample:
    """Some source records, and what is known of all of them.

    Attributes:
        records: At most as many as asked, those of the smallest hashes.
        embeddings: Their embeddings.
        labels: How many labels all records have.
        version: Digest of all records and embeddings as they lie.
    """

    records: pl.DataFrame = field(repr=False)
    embeddings: np.ndarray = field(repr=False)
    labels: int
    version: str


def sampled_source(each: Iterable[PrivateInputs], dataset: str, rows: int) -> SourceSample:
    """Draws a sample of records that come shard by shard.

    Args:
        each: All records with their embeddings, some at a time.
        dataset: Key of the hash.
        rows: Size of the sample, a public number.

    Raises:
        ValueError: There are no embeddings.
    """
    kept: list[tuple[pl.DataFrame, np.ndarray]] = []
    labels: set[str] = set()
    versions: list[str] = []
    for some in each:
        if some.embeddings is None:
            raise ValueError("Expected embeddings of the private records, got none.")
        texts, own = some.records["text"].to_list(), some.records["label"].to_list()
        labels |= set(own)
        versions.append(version_of(version_of_texts(texts), own, array_version(some.embeddings)))
        keys = hash_rows(Purpose.SCORED, dataset, [some.records["record_id"].to_list()])
        known = some.records.with_columns(pl.Series(_KEY, keys, dtype=pl.String))
        kept = [_first([*kept, _first([(known, some.embeddings)], rows)], rows)]
    records, embeddings = kept[0]
    return SourceSample(
        records=records.select(CANONICAL),
        embeddings=embeddings,
        labels=len(labels),
        version=version_of(versions),
    )


def _first(
    each: Sequence[tuple[pl.DataFrame, np.ndarray]], rows: int
) -> tuple[pl.DataFrame, np.ndarray]:
    """The records of the smallest hashes, with their embeddings.

    Records of one hash are equal in every column, or are distinguished by their content.
    """
    known = pl.concat([records for records, _ in each])
    placed = known.with_row_index(_PLACE).sort([_KEY, *CANONICAL], maintain_order=True)
    chosen = placed[_PLACE].head(rows).to_numpy()
    stacked = each[0][1] if len(each) == 1 else np.concatenate([those for _, those in each])
    return known[chosen], np.asarray(stacked[chosen], dtype=np.float32)
