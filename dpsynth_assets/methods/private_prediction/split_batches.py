"""The batches of a run, and how records are placed in them: all together, or shard by shard.

By the keyed hash of its id a record's place is a function of that record alone: one record added or
removed changes exactly one batch (Assumption 1 of Amin 2024) and leaves every other record where it
was. One step sorts records in shards: each goes to the pass of its batch. In slots a record's place
is its public rank among all records of its cell, so there are two steps: each shard gives its first
records of a cell, as many as the cell's batches hold, and each cell cuts the first of all.

A placed record is a row of `placed_table`. By any process and in any order rows come, the
batches they make are the same to the last bit. So each batch may be filled where it is decoded.

Letters: N records, s contexts in a batch, k records in a context, b batches of a cell.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, SortStep
from dpsynth_assets.methods.private_prediction.declared_batches import (
    NO_CLUSTER,
    BatchCell,
    DeclaredBatches,
    generating_cells,
)
from dpsynth_assets.models.language_model import in_parts
from dpsynth_assets.privacy.batch_terms import row_key
from dpsynth_assets.records.record_filters import CANONICAL

_PERSON = b"dpsynth-batches"

Cell = tuple[int, int | None]
"""Index of a label, and of a public centre or None."""

FindsCells = Callable[[PrivateInputs], tuple[np.ndarray, np.ndarray]]
"""(N,) indices of labels, and of centres or NO_CLUSTER, of some records (`RecordCells`)."""

_Named = tuple[str | int, tuple[str, ...]]
"""What names a context within its batch, and its k texts."""

_Place = tuple[int, int, str, str]
"""Context and slot of a record in its batch, its id and its text."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch that generates; public.

    Attributes:
        index: Position among all generating batches.
        label: Index into the declared labels.
        cluster: Index of a public centre, or None.
    """

    index: int
    label: int
    cluster: int | None


@dataclass(frozen=True, kw_only=True)
class PrivateBatch(Batch):
    """One batch that generates, with its contexts.

    Attributes:
        contexts: Any number of contexts (private, also in number), each of k texts.
        keys: For each context what names it (`row_key`), independent of other contexts.
    """

    contexts: tuple[tuple[str, ...], ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)


def placed_table(rows: Iterable[tuple[int, *_Place]]) -> pl.DataFrame:
    """Makes a table of placed records: `batch`, `context`, `slot`, `record_id`, `text`."""
    numbers = dict.fromkeys(("batch", "context", "slot"), pl.Int64)
    words = dict.fromkeys(("record_id", "text"), pl.String)
    schema: dict[str, Any] = {**numbers, **words}
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)


@dataclass(frozen=True, kw_only=True)
class RunBatches(ABC):
    """The batches of a run, and how records are placed in them, wherever they lie; public values.

    Attributes:
        declared: The method's batches, as declared.
        record_cells: Finds labels and clusters.
        cells: Public cells, which together list every batch, in order.
    """

    declared: DeclaredBatches
    record_cells: FindsCells
    cells: tuple[BatchCell, ...]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order; public."""
        owners = [cell for cell in self.cells for _ in range(cell.generating)]
        return tuple(
            Batch(index=index, label=cell.label, cluster=cell.cluster)
            for index, cell in enumerate(owners)
        )

    @cached_property
    def first_batches(self) -> list[int]:
        """Index of the first generating batch of each cell."""
        shares = [cell.generating for cell in self.cells]
        return [sum(shares[:number]) for number in range(len(shares))]

    @abstractmethod
    def places(self, private: PrivateInputs) -> pl.DataFrame:
        """Places all records, which lie here together."""

    @abstractmethod
    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Says how records in shards are sorted into the wanted ones of this many passes."""

    def filled(self, batches: Sequence[Batch], placed: pl.DataFrame) -> list[PrivateBatch]:
        """Fills batches with the records that are placed in them.

        With k = 1 a context by the hash is its record's, regardless of its number; else the drop
        rule holds and its number names it.

        Args:
            batches: All batches of the run, or those of a pass.
            placed: Their records (`placed_table`), in any order.

        **Privacy** A batch is a function of its own records as a set (with multiplicity): neither
        their order nor what placed them shows in it.
        """
        k = self.declared.config.examples_per_context
        by_record = k == 1 and not self.declared.in_slots
        by_batch: dict[int, list[_Place]] = defaultdict(list)
        for batch, *place in placed.iter_rows():
            by_batch[batch].append((place[0], place[1], place[2], place[3]))
        filled = []
        for batch in batches:
            rows = by_batch[batch.index]
            named = _by_record(rows) if by_record else _by_number(rows, k)
            filled.append(
                PrivateBatch(
                    **vars(batch),
                    contexts=tuple(texts for _, texts in named),
                    keys=tuple(row_key(batch.index, name) for name, _ in named),
                )
            )
        return filled

    def placed(self, private: PrivateInputs) -> list[PrivateBatch]:
        """Puts each record, by itself, into its batch; empty batches are listed, too."""
        return self.filled(self.batches, self.places(private))

    @property
    def passes(self) -> list[list[Batch]]:
        """The batches of each pass; the last may have fewer."""
        return in_parts(self.batches, self.declared.config.batches_per_forward)

    def filled_pass(self, number: int, tables: Sequence[pl.DataFrame]) -> list[PrivateBatch]:
        """Fills the batches of a pass with the rows that were sorted into it."""
        return self.filled(self.passes[number], pl.concat([placed_table([]), *tables]))

    def by_pass(self, placed: pl.DataFrame, wanted: Collection[int]) -> Mapping[int, pl.DataFrame]:
        """Divides placed records by the pass of their batch, as far as it is wanted."""
        size = self.declared.config.batches_per_forward
        numbered = placed.with_columns(number=pl.col("batch") // size)
        groups = numbered.partition_by("number", as_dict=True, include_key=False)
        return {int(key[0]): rows for key, rows in groups.items() if key[0] in wanted}


def _by_record(placed: Sequence[_Place]) -> list[_Named]:
    """Makes each record a context that is named by its id.

    Records of one content share an id where none is declared: a running number tells them apart,
    so that one more of them adds the last number and renames none.
    """
    seen: Counter[str] = Counter()
    named: list[_Named] = []
    for _, _, record_id, text in sorted(placed, key=lambda row: row[2:]):
        seen[record_id] += 1
        named.append((f"{seen[record_id]} of {record_id}", (text,)))
    return named


def _by_number(placed: Sequence[_Place], examples_per_context: int) -> list[_Named]:
    """Applies the drop rule: a context counts iff each of its k slots holds exactly one record.

    A context with a null record is not counted. Each is named by its number in the batch.
    """
    slots: dict[int, dict[int, list[str]]] = {}
    for context, slot, _, text in placed:
        slots.setdefault(context, {}).setdefault(slot, []).append(text)
    return [
        (number, tuple(by_slot[slot][0] for slot in range(examples_per_context)))
        for number, by_slot in sorted(slots.items())
        if len(by_slot) == examples_per_context
        and all(len(texts) == 1 and texts[0].strip() for texts in by_slot.values())
    ]


def split_batches(
    declared: DeclaredBatches, private: PrivateInputs, public: PublicInputs
) -> RunBatches:
    """Decides which batches there are; only slots look at records, at public facts of them.

    Raises:
        UndeclaredPublicFactError: If the places of records are not declared public.
        ValueError: If centres, histogram or embeddings are missing, or the histogram's labels are
            not the declared ones.
    """
    finds = declared.record_cells(public)
    if declared.in_slots:
        return slot_batches(declared, finds, declared.slot_cells(public), private)
    cells = declared.hashed_cells(public)
    return HashedBatches(declared=declared, record_cells=finds, cells=cells, salt=public.salt)


def slot_batches(
    declared: DeclaredBatches, finds: FindsCells, cells: Sequence[Cell], private: PrivateInputs
) -> "SlotBatches":
    """Counts how many batches the records of each cell fill, `max_batches` in all."""
    counts = private.counted(SlotCells(record_cells=finds, cells=tuple(cells)))
    size = declared.records_per_batch
    filled = [(*cell, int(count) // size) for cell, count in zip(cells, counts, strict=True)]
    own = generating_cells(filled, declared.config.max_batches)
    return SlotBatches(declared=declared, record_cells=finds, cells=own)


@dataclass(frozen=True, kw_only=True)
class HashedBatches(RunBatches):
    """Batches of a keyed hash.

    Attributes:
        salt: Public key of the hash.
    """

    salt: str

    def places(self, private: PrivateInputs) -> pl.DataFrame:
        """Places those of N records whose batch generates, by the keyed hash of their ids.

        **Privacy** Adding, removing or nulling one record changes the contexts of one batch at
        most, by one context: with k = 1 the record is its own context; with k >= 2 it fills, or
        doubly occupies, one slot of one context (the drop rule of `filled`). A replaced record
        changes at most two.

        **Source** Amin et al. 2025, Eq. (2), with a hash for the random r. The papers' fixed-size
        chunks and `h mod n/s` move most records when one is added (errata B-000.2, B-001.2).
        """
        known = {
            (cell.label, NO_CLUSTER if cell.cluster is None else cell.cluster): (cell, first)
            for cell, first in zip(self.cells, self.first_batches, strict=True)
        }
        key = hashlib.blake2b(self.salt.encode()).digest()
        labels, clusters = self.record_cells(private)
        own = zip(labels.tolist(), clusters.tolist(), strict=True)
        named = zip(private.records["record_id"], private.records["text"], strict=True)
        rows = []
        for where, (record_id, text) in zip(own, named, strict=True):
            if where not in known or not text.strip():
                continue  # A null record takes no place: in one it would replace what it was.
            cell, first = known[where]
            batch, context, slot = self._hashed(record_id, cell.batches, key)
            if batch < cell.generating:  # [amin2024 A1:L2] [amin2025 A1:L3]
                rows.append((first + batch, context, slot, record_id, text))
        return placed_table(rows)

    def _hashed(self, record_id: str, batches: int, key: bytes) -> tuple[int, int, int]:
        """Hashes a record id to (batch < b, context < s, slot < k), independent of all else."""
        digest = hashlib.blake2b(record_id.encode(), key=key, person=_PERSON, digest_size=24)
        numbers = [int.from_bytes(digest.digest()[i : i + 8]) for i in (0, 8, 16)]
        config = self.declared.config
        bounds = (batches, config.expected_batch_size, config.examples_per_context)
        batch, context, slot = (
            number % bound for number, bound in zip(numbers, bounds, strict=True)
        )
        return batch, context, slot

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """One step: from shards into passes."""
        return (SortStep(partial(self.sorted_part, frozenset(wanted)), count),)

    def sorted_part(
        self, wanted: Collection[int], _number: int, private: PrivateInputs
    ) -> Mapping[int, pl.DataFrame]:
        """Sorts the records of a shard into the wanted passes."""
        return self.by_pass(self.places(private), wanted)


@dataclass(frozen=True, kw_only=True)
class SlotCells:
    """Counts the records of each cell, null ones included, for `PrivateInputs.counted`.

    **Privacy** Label and cluster of every record are declared public (`public_facts.slots`), hence
    these counts are.

    Attributes:
        record_cells: Finds labels and clusters.
        cells: (label, cluster) pairs.
    """

    record_cells: FindsCells
    cells: tuple[Cell, ...]

    def of(self, private: PrivateInputs) -> np.ndarray:
        """Finds the cell of each record: (N,) int64 indices into `cells`, -1 where it has none."""
        labels, clusters = self.record_cells(private)
        own = np.full(len(labels), -1, dtype=np.int64)
        for number, (label, cluster) in enumerate(self.cells):
            wanted = NO_CLUSTER if cluster is None else cluster
            own[(labels == label) & (clusters == wanted)] = number
        return own

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (cells,) int64."""
        own = self.of(private)
        return np.bincount(own[own >= 0], minlength=len(self.cells))


@dataclass(frozen=True, kw_only=True)
class SlotBatches(RunBatches):
    """Full batches that the records of each cell fill in their public order.

    What does not fill a batch is left out. A null record, one of blank text, keeps its place.

    **Privacy** For zero-out neighbours where label, cluster and place of every record are public
    (`public_facts.slots`): a null record keeps its place and its context is left out, so one record
    toggles one context, for every k; batches and their number are public.

    **Source** Amin et al. 2025, section 6.1, whose fixed-size batches are sound only for these
    neighbours (errata B-000.2, design Z).
    """

    def places(self, private: PrivateInputs) -> pl.DataFrame:
        """Places the first records of each cell, in the order in which they come."""
        cells = self._cells(private).items()
        return pl.concat([placed_table([]), *(self._slots(*each) for each in cells)])

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Two steps: from shards into cells, and from cells into passes."""
        slots = partial(self.sorted_cell, frozenset(wanted))
        return (SortStep(self.firsts, len(self.cells)), SortStep(slots, count))

    def firsts(self, _number: int, private: PrivateInputs) -> Mapping[int, pl.DataFrame]:
        """Takes the first records of each cell, in public order, out of a shard."""
        size = self.declared.records_per_batch
        return {
            cell: rows.sort(CANONICAL).head(self.cells[cell].generating * size)
            for cell, rows in self._cells(private).items()
            if rows.height
        }

    def _cells(self, private: PrivateInputs) -> Mapping[int, pl.DataFrame]:
        """Records of each cell that has batches."""
        pairs = tuple((cell.label, cell.cluster) for cell in self.cells)
        own = SlotCells(record_cells=self.record_cells, cells=pairs).of(private)
        filled = (number for number, cell in enumerate(self.cells) if cell.generating)
        return {number: private.records.filter(own == number) for number in filled}

    def sorted_cell(
        self, wanted: Collection[int], number: int, private: PrivateInputs
    ) -> Mapping[int, pl.DataFrame]:
        """Cuts the first records of the cell of this number into the wanted passes."""
        return self.by_pass(self._slots(number, private.records.sort(CANONICAL)), wanted)

    def _slots(self, cell: int, records: pl.DataFrame) -> pl.DataFrame:
        """Places the records of one cell, in their order, in full batches of s contexts."""
        size, k = self.declared.records_per_batch, self.declared.config.examples_per_context
        chosen, first = records.head(self.cells[cell].generating * size), self.first_batches[cell]
        rows = []
        for number, named in enumerate(zip(chosen["record_id"], chosen["text"], strict=True)):
            batch, place = divmod(number, size)
            slot = place % k
            rows.append((first + batch, place - slot, slot, *named))
        return placed_table(rows)
