"""The batches of a run, and how records are placed in them: all together, or part by part.

By the keyed hash one step does: each record of a part goes to the pass of its batch. In slots a
record's place is its rank among all records of its cell, so there are two: each part gives its
first records of a cell, as many as the cell's batches hold, and each cell cuts the first of all.

Letters: s contexts in a batch, k records in a context.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

import numpy as np

from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, SortStep
from dpsynth_assets.methods.private_prediction.batching import (
    Batch,
    BatchCell,
    Part,
    PrivateBatch,
    first_batches,
)
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.placing import (
    Cell,
    cell_numbers,
    filled_batches,
    hashed_places,
    listed_batches,
    placed_table,
    slot_places,
    slot_shares,
)
from dpsynth_assets.records.record_filters import CANONICAL

if TYPE_CHECKING:
    import polars as pl

FindsCells = Callable[[PrivateInputs], tuple[np.ndarray, np.ndarray | None]]
"""(N,) indices of labels, and of centres or None, of some records (`RecordCells`)."""


@dataclass(frozen=True, kw_only=True)
class RunBatches(ABC):
    """The batches of a run, and how records are placed in them, wherever they lie; public values.

    Attributes:
        declared: The method's batches, as declared.
        record_cells: Finds labels and clusters.
    """

    declared: DeclaredBatches
    record_cells: FindsCells

    @property
    @abstractmethod
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order; public."""

    @abstractmethod
    def places(self, private: PrivateInputs) -> "pl.DataFrame":
        """Places all records, which lie here together."""

    @abstractmethod
    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Says how records in parts are sorted into the wanted ones of so many passes."""

    def filled(self, batches: Sequence[Batch], placed: "pl.DataFrame") -> list[PrivateBatch]:
        """Fills batches with the records that are placed in them."""
        k = self.declared.config.examples_per_context
        by_record = k == 1 and not self.declared.in_slots
        return filled_batches(batches, placed, examples_per_context=k, named_by_record=by_record)

    def placed(self, private: PrivateInputs) -> list[PrivateBatch]:
        """Puts each record, by itself, into its batch; empty batches are listed, too."""
        return self.filled(self.batches, self.places(private))

    def filled_part(
        self, part: Part[Batch], tables: Sequence["pl.DataFrame"]
    ) -> Part[PrivateBatch]:
        """Fills the batches of a pass with the rows that were sorted into it."""
        import polars as pl

        filled = self.filled(part.batches, pl.concat([placed_table([]), *tables]))
        return Part(number=part.number, start=part.start, batches=filled)

    def by_pass(
        self, placed: "pl.DataFrame", wanted: Collection[int]
    ) -> Mapping[int, "pl.DataFrame"]:
        """Divides placed records by the pass of their batch, as far as it is wanted."""
        import polars as pl

        size = self.declared.config.batches_per_forward
        numbered = placed.with_columns(number=pl.col("batch") // size)
        groups = numbered.partition_by("number", as_dict=True, include_key=False)
        return {int(key[0]): rows for key, rows in groups.items() if key[0] in wanted}


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
        cells = tuple(declared.slot_cells(public))
        return SlotBatches.counted(declared, finds, cells, private)
    return HashedBatches(
        declared=declared,
        record_cells=finds,
        cells=declared.hashed_cells(public),
        salt=public.salt,
    )


@dataclass(frozen=True, kw_only=True)
class HashedBatches(RunBatches):
    """Batches of a keyed hash.

    Attributes:
        cells: Public cells, which together list every batch.
        salt: Public key of the hash.
    """

    cells: tuple[BatchCell, ...]
    salt: str

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order."""
        cells = [(cell.label, cell.cluster) for cell in self.cells]
        return tuple(listed_batches(cells, [cell.generating for cell in self.cells]))

    def places(self, private: PrivateInputs) -> "pl.DataFrame":
        """Places records by the keyed hash of their ids."""
        return hashed_places(
            private.records,
            *self.record_cells(private),
            self.cells,
            expected_batch_size=self.declared.config.expected_batch_size,
            examples_per_context=self.declared.config.examples_per_context,
            salt=self.salt,
        )

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """One step: from parts into passes."""
        return (SortStep(partial(self.sorted_part, frozenset(wanted)), count),)

    def sorted_part(
        self, wanted: Collection[int], number: int, private: PrivateInputs
    ) -> Mapping[int, "pl.DataFrame"]:
        """Sorts the records of a part into the wanted passes."""
        del number
        return self.by_pass(self.places(private), wanted)


@dataclass(frozen=True, kw_only=True)
class SlotCounts:
    """Counts the records of each cell, null ones included, for `PrivateInputs.counted`.

    **Privacy** Label and cluster of every record are declared public (`public_facts.slots`), hence
    these counts are.

    Attributes:
        record_cells: Finds labels and clusters.
        cells: (label, cluster) pairs.
    """

    record_cells: FindsCells
    cells: tuple[Cell, ...]

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (cells,) int64."""
        own = cell_numbers(*self.record_cells(private), self.cells)
        return np.bincount(own[own >= 0], minlength=len(self.cells))


@dataclass(frozen=True, kw_only=True)
class SlotBatches(RunBatches):
    """Batches that the records of each cell fill in their public order.

    Attributes:
        cells: (label, cluster) pairs that are filled.
        shares: Batches of each cell.
    """

    cells: tuple[Cell, ...]
    shares: tuple[int, ...]

    @classmethod
    def counted(
        cls,
        declared: DeclaredBatches,
        record_cells: FindsCells,
        cells: tuple[Cell, ...],
        private: PrivateInputs,
    ) -> Self:
        """Counts how many batches the records of each cell fill, `max_batches` in all."""
        counts = private.counted(SlotCounts(record_cells=record_cells, cells=cells))
        most = declared.config.max_batches
        shares = tuple(slot_shares(counts, declared.records_per_batch, most))
        return cls(declared=declared, record_cells=record_cells, cells=cells, shares=shares)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Those that generate, in order."""
        return tuple(listed_batches(self.cells, self.shares))

    def places(self, private: PrivateInputs) -> "pl.DataFrame":
        """Places the first records of each cell, in the order in which they come."""
        import polars as pl

        cells = self._cells(private).items()
        return pl.concat([placed_table([]), *(self._slots(*each) for each in cells)])

    def steps(self, wanted: Collection[int], count: int) -> tuple[SortStep, ...]:
        """Two steps: from parts into cells, and from cells into passes."""
        slots = partial(self.sorted_cell, frozenset(wanted))
        return (SortStep(self.firsts, len(self.cells)), SortStep(slots, count))

    def firsts(self, number: int, private: PrivateInputs) -> Mapping[int, "pl.DataFrame"]:
        """Takes the first records of each cell, in public order, out of a part."""
        del number
        size = self.declared.records_per_batch
        return {
            cell: rows.sort(CANONICAL).head(self.shares[cell] * size)
            for cell, rows in self._cells(private).items()
            if rows.height
        }

    def _cells(self, private: PrivateInputs) -> Mapping[int, "pl.DataFrame"]:
        """Records of each cell that has batches."""
        own = cell_numbers(*self.record_cells(private), self.cells)
        cells = (cell for cell, share in enumerate(self.shares) if share)
        return {cell: private.records.filter(own == cell) for cell in cells}

    def sorted_cell(
        self, wanted: Collection[int], number: int, private: PrivateInputs
    ) -> Mapping[int, "pl.DataFrame"]:
        """Cuts the first records of the cell of this number into the wanted passes."""
        return self.by_pass(self._slots(number, private.records.sort(CANONICAL)), wanted)

    def _slots(self, cell: int, records: "pl.DataFrame") -> "pl.DataFrame":
        return slot_places(
            records,
            first_batch=first_batches(self.shares)[cell],
            batches=self.shares[cell],
            expected_batch_size=self.declared.config.expected_batch_size,
            examples_per_context=self.declared.config.examples_per_context,
        )
