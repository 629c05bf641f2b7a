"""Records in parts, sorted into the passes of a run: what workers do with a part, before any draw.

By the keyed hash one step does: each record of a part goes to the pass of its batch. In slots a
record's place is its rank among all records of its cell, so there are two: each part gives its
first records of a cell, as many as the cell's batches hold, and each cell cuts the first of all.

Letters: s contexts in a batch, k records in a context.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, SortStep
from dpsynth_assets.methods.private_prediction.batching import (
    Batch,
    BatchCell,
    PrivateBatch,
    first_batches,
    generating_batches,
)
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches, RecordCells
from dpsynth_assets.methods.private_prediction.passes import Part
from dpsynth_assets.methods.private_prediction.placing import (
    Cell,
    cell_numbers,
    filled_batches,
    hashed_places,
    placed_table,
    slot_batches,
    slot_places,
    slot_shares,
)
from dpsynth_assets.records.record_filters import CANONICAL

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Passes:
    """The passes that rows are sorted into.

    Attributes:
        batches_per_pass: Batches of each pass; the last may have fewer.
        wanted: Numbers of the passes that are drawn now.
    """

    batches_per_pass: int
    wanted: frozenset[int]

    def of(self, placed: "pl.DataFrame") -> dict[int, "pl.DataFrame"]:
        """Divides placed records by the pass of their batch."""
        import polars as pl

        numbered = placed.with_columns(number=pl.col("batch") // self.batches_per_pass)
        groups = numbered.partition_by("number", as_dict=True, include_key=False)
        return {int(key[0]): rows for key, rows in groups.items() if key[0] in self.wanted}


@dataclass(frozen=True, kw_only=True)
class HashedIntoPasses:
    """Sorts the records of a part into passes by the keyed hash of their ids.

    Attributes:
        record_cells: Finds labels and clusters.
        cells: Public cells, which together list every batch.
        expected_batch_size: s.
        examples_per_context: k.
        salt: Public key of the hash.
        passes: Where rows go.
    """

    record_cells: RecordCells
    cells: tuple[BatchCell, ...]
    expected_batch_size: int
    examples_per_context: int
    salt: str
    passes: Passes

    def __call__(self, number: int, private: PrivateInputs) -> Mapping[int, "pl.DataFrame"]:
        """Returns the placed records of each wanted pass."""
        del number
        labels, clusters = self.record_cells(private)
        placed = hashed_places(
            private.records,
            labels,
            clusters,
            self.cells,
            expected_batch_size=self.expected_batch_size,
            examples_per_context=self.examples_per_context,
            salt=self.salt,
        )
        return self.passes.of(placed)


@dataclass(frozen=True, kw_only=True)
class SlotCounts:
    """Counts the records of each cell, null ones included, for `PrivateInputs.counted`.

    **Privacy** Label and cluster of every record are declared public (`public_facts.slots`), hence
    these counts are.

    Attributes:
        record_cells: Finds labels and clusters.
        cells: (label, cluster) pairs.
    """

    record_cells: RecordCells
    cells: tuple[Cell, ...]

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (cells,) int64."""
        own = cell_numbers(*self.record_cells(private), self.cells)
        return np.bincount(own[own >= 0], minlength=len(self.cells))


@dataclass(frozen=True, kw_only=True)
class IntoCells:
    """Takes the first records of each cell, in public order, out of a part.

    Attributes:
        record_cells: Finds labels and clusters.
        cells: (label, cluster) pairs.
        most: For each cell, how many records its batches hold.
    """

    record_cells: RecordCells
    cells: tuple[Cell, ...]
    most: tuple[int, ...]

    def __call__(self, number: int, private: PrivateInputs) -> Mapping[int, "pl.DataFrame"]:
        """Returns them for each cell that has batches."""
        del number
        own = cell_numbers(*self.record_cells(private), self.cells)
        firsts = {
            cell: private.records.filter(own == cell).sort(CANONICAL).head(most)
            for cell, most in enumerate(self.most)
            if most
        }
        return {cell: rows for cell, rows in firsts.items() if rows.height}


@dataclass(frozen=True, kw_only=True)
class SlotsIntoPasses:
    """Cuts the first records of a cell, of whichever parts, into the slots of its batches.

    Attributes:
        shares: Batches of each cell.
        expected_batch_size: s.
        examples_per_context: k.
        passes: Where rows go.
    """

    shares: tuple[int, ...]
    expected_batch_size: int
    examples_per_context: int
    passes: Passes

    def __call__(self, number: int, private: PrivateInputs) -> Mapping[int, "pl.DataFrame"]:
        """Returns the placed records of each wanted pass, of the cell of this number."""
        placed = slot_places(
            private.records.sort(CANONICAL),
            first_batch=first_batches(self.shares)[number],
            batches=self.shares[number],
            expected_batch_size=self.expected_batch_size,
            examples_per_context=self.examples_per_context,
        )
        return self.passes.of(placed)


class SplitBatches(Protocol):
    """The batches of a run over records in parts."""

    @property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order; public."""

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Says how records are sorted into the wanted ones of so many passes."""


def split_batches(
    declared: DeclaredBatches, private: PrivateInputs, public: PublicInputs
) -> SplitBatches:
    """Decides which batches there are; only slots look at records, at public facts of them."""
    finds = declared.record_cells(public)
    if not declared.in_slots:
        return HashedBatches(
            declared=declared,
            record_cells=finds,
            cells=declared.hashed_cells(public),
            salt=public.salt,
        )
    cells = tuple(declared.slot_cells(public))
    counts = private.counted(SlotCounts(record_cells=finds, cells=cells))
    shares = slot_shares(counts, declared.records_per_batch, declared.config.max_batches)
    return SlotBatches(declared=declared, record_cells=finds, cells=cells, shares=tuple(shares))


@dataclass(frozen=True, kw_only=True)
class HashedBatches:
    """Batches of a keyed hash; see `SplitBatches`.

    Attributes:
        declared: The method's batches, as declared.
        record_cells: Finds labels and clusters.
        cells: Public cells, which together list every batch.
        salt: Public key of the hash.
    """

    declared: DeclaredBatches
    record_cells: RecordCells
    cells: tuple[BatchCell, ...]
    salt: str

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order."""
        return tuple(generating_batches(self.cells))

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """One step: from parts into passes."""
        config = self.declared.config
        sort = HashedIntoPasses(
            record_cells=self.record_cells,
            cells=self.cells,
            expected_batch_size=config.expected_batch_size,
            examples_per_context=config.examples_per_context,
            salt=self.salt,
            passes=Passes(config.batches_per_forward, frozenset(wanted)),
        )
        return (SortStep(sort, count),)


@dataclass(frozen=True, kw_only=True)
class SlotBatches:
    """Batches that records fill in their public order; see `SplitBatches`.

    Attributes:
        declared: The method's batches, as declared.
        record_cells: Finds labels and clusters.
        cells: (label, cluster) pairs that are filled.
        shares: Batches of each cell.
    """

    declared: DeclaredBatches
    record_cells: RecordCells
    cells: tuple[Cell, ...]
    shares: tuple[int, ...]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order."""
        return tuple(slot_batches(self.cells, self.shares))

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Two steps: from parts into cells, and from cells into passes."""
        config = self.declared.config
        most = tuple(share * self.declared.records_per_batch for share in self.shares)
        firsts = IntoCells(record_cells=self.record_cells, cells=self.cells, most=most)
        slots = SlotsIntoPasses(
            shares=self.shares,
            expected_batch_size=config.expected_batch_size,
            examples_per_context=config.examples_per_context,
            passes=Passes(config.batches_per_forward, frozenset(wanted)),
        )
        return (SortStep(firsts, len(self.cells)), SortStep(slots, count))


def filled_part(
    part: Part[Batch], tables: Sequence["pl.DataFrame"], declared: DeclaredBatches
) -> Part[PrivateBatch]:
    """Fills the batches of a pass with the rows that were sorted into it."""
    import polars as pl

    k = declared.config.examples_per_context
    filled = filled_batches(
        part.batches,
        pl.concat([placed_table([]), *tables]),
        examples_per_context=k,
        named_by_record=k == 1 and not declared.in_slots,
    )
    return Part(number=part.number, start=part.start, batches=filled)
