"""Passes of a paid release over records in shards: what workers sort, and what they draw.

    sensitive/tickets/passes/<reservation>/3.json                     the pass of number 3, drawn
    sensitive/tickets/passes/<reservation>/inputs-3f9c…/pass-00003/   its records, one table a shard

Records of passes are there while a run draws: it removes them when it ends, well or not. What a
killed run left is removed by the next run, with the release, or by `dpsynth purge`, and is made
again where passes are missing; passes that are drawn are not.
"""

import re
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.files.kept import ARRAY
from dpsynth_assets.methods.inputs import PrivateInputs, SortStep
from dpsynth_assets.paths import Folder
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.sensitive.part_tasks import Count
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.record_parts import EXCHANGE, files_of_exchange, read_part
from dpsynth_assets.sensitive.unfinished import StoredPasses
from dpsynth_assets.workers import Workers

INPUTS = "inputs-"
"""How folders with the records of passes are named."""

Sort = Callable[[int, PrivateInputs], Mapping[int, pl.DataFrame]]
Draw = Callable[[int, Sequence[pl.DataFrame]], dict[str, Any]]


@dataclass(frozen=True)
class SortRecords:
    """Sorts the records of one shard, or of one place of the step before, into numbered places.

    Attributes:
        sort: Says which rows go where; it holds public values only.
        places: The folders.
        written: Numbers of those that get a table.
        from_parts: Whether shards of the dataset are sorted.
        with_embeddings: Whether `sort` reads their embeddings.
    """

    sort: Sort
    places: tuple[Folder, ...]
    written: tuple[int, ...]
    from_parts: bool
    with_embeddings: bool

    def __call__(self, part: Folder) -> None:
        """Leaves a table in each such place: which get rows must not show in names of files."""
        rows, nothing = self.sort(_number(part), self._records(part)), pl.DataFrame()
        files, name = _files(self.places[0]), f"{part.name}.parquet"
        for number in self.written:
            files.write_table(self.places[number] / name, rows.get(number, nothing))
        if not files.has_begun(self.places[0].parent):  # An object needs no folder to be written.
            for number in self.written:
                files.remove(self.places[number] / name)
            raise FileNotFoundError("Expected a folder for records of passes, got a removed one.")

    def _records(self, part: Folder) -> PrivateInputs:
        if self.from_parts:
            return read_part(part, "source", with_embeddings=self.with_embeddings)
        nothing = pl.DataFrame(schema=dict.fromkeys(CANONICAL, pl.String))
        return PrivateInputs(records=pl.concat([nothing, *_tables(part)]))


@dataclass(frozen=True)
class DrawKept:
    """Draws one pass and keeps it, unless it is kept already.

    Attributes:
        draw: Draws it from the rows that were sorted into it; it holds public values only.
    """

    draw: Draw

    def __call__(self, place: Folder) -> None:
        """Returns nothing: what was drawn is read back by the driver."""
        number, kept = _number(place), StoredPasses(_files(place), place.parents[1])
        if kept.load(number) is None:
            kept.save(number, self.draw(number, _tables(place)))


def new_folder(files: PrivateFiles, release: Folder, kind: str) -> Folder:
    """An empty folder for what driver and workers of this run hand one another.

    A killed run may have left something of the kind: sums without noise, sorted records, weights of
    a step that no checkpoint holds. It is removed before anything is drawn again, and with the rest
    of the unfinished release. The name is new: a task of another run that still runs somewhere
    finds its own folder gone.

    Args:
        files: The store.
        release: Folder of a paid release that is not finished.
        kind: INPUTS or EXCHANGE.
    """
    for left in files.matching(release, f"*{kind}*"):
        files.withdraw(left)
    folder = release / f"{kind}{secrets.token_hex(8)}"
    files.begin_folder(folder)
    return folder


def left_for_workers(files: PrivateFiles, release: Folder) -> list[Folder]:
    """All that driver and workers handed one another for a release and a killed run left."""
    return [left for kind in (INPUTS, EXCHANGE) for left in files.matching(release, f"*{kind}*")]


def _tables(place: Folder) -> list[pl.DataFrame]:
    """Reads the tables that were sorted into a place.

    Raises:
        FileNotFoundError: The place was removed, as by a purge: it is not taken for an empty one.
    """
    files = _files(place)
    tables = [files.read_table(path) for path in files.matching(place, "[!.]*.parquet")]
    if not files.has_begun(place.parent):  # Asked last: it is withdrawn before its files.
        raise FileNotFoundError("Expected the records of a pass, got a folder that was removed.")
    return [table for table in tables if table.height]


def _files(place: Folder) -> PrivateFiles:
    """The store that a place is in: store / dataset / passes / reservation / inputs-… / place."""
    return files_below(place.parents[4])


def _number(part: Folder) -> int:
    """The number in the name of a shard or a place: `00003-of-00016`, `step0-00003`."""
    return int(next(iter(re.findall(r"\d{5,}", part.name)), 0))


@dataclass(frozen=True)
class StoredParts:
    """The records of a release in shards, counted by workers; see `methods.inputs.Shards`.

    Attributes:
        places: The shards.
        workers: Who counts.
        with_embeddings: Whether what is counted, or sorted, reads embeddings.
        exchange: Owner-only folder in the store for what is too large to be sent, one charge's own;
            None: everything is sent.
        release: Folder of the paid release, for one that draws passes.
        gpus: GPUs that a worker needs to draw a pass.
        require_charged: Refuses embeddings that another run made again while workers read them.
    """

    places: tuple[Folder, ...]
    workers: Workers
    with_embeddings: bool = True
    exchange: Folder | None = None
    release: Folder | None = None
    gpus: float = 0
    require_charged: Callable[[], None] = lambda: None

    def summed(
        self,
        count: Callable[[PrivateInputs], np.ndarray],
        state: Sequence[np.ndarray] = (),
        *,
        gpus: float = 0,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Adds up what `count` returns for each shard; exact, in any order."""
        total = np.zeros((), dtype=np.int64)
        with self._stored(state) as path:
            task = Count(count, self.with_embeddings, self.exchange, path)
            made = self.workers.map_parts(task, self.places, gpus=gpus)
            with closing(made):  # Workers end before what they left is removed.
                for done, outcome in enumerate(made, 1):
                    counts = self._taken(outcome)
                    if not np.issubdtype(counts.dtype, np.integer):
                        raise TypeError(f"Expected whole counts of a shard, got {counts.dtype}.")
                    total = total + counts.astype(np.int64)
                    if progress is not None:
                        progress(done / len(self.places))
        if self.with_embeddings:
            self.require_charged()
        return total

    @contextmanager
    def _stored(self, state: Sequence[np.ndarray]) -> Iterator[Folder | None]:
        """Puts arrays into the store under a name of their own for as long as workers count.

        Nothing stays there afterwards: counts of a map that failed neither.
        """
        if self.exchange is None:
            if state:
                raise ValueError("Expected a folder in the store for arrays of workers, got none.")
            yield None
            return
        path = self.exchange / f"state-{secrets.token_hex(8)}" if state else None
        try:
            if path is not None:
                files_of_exchange(self.exchange).write(path, b"".join(map(ARRAY.write, state)))
            yield path
        finally:
            files = files_of_exchange(self.exchange)
            for left in files.matching(self.exchange, "*"):
                files.remove(left)

    def _taken(self, outcome: np.ndarray | Folder) -> np.ndarray:
        """Counts as they were sent, or out of the file, which is removed."""
        if isinstance(outcome, np.ndarray):
            return outcome
        files = files_of_exchange(outcome.parent)
        counts = files.read_array(outcome)
        files.remove(outcome)
        return counts

    def draw_passes(
        self,
        steps: Sequence[SortStep],
        draw: Callable[[int, Sequence[pl.DataFrame]], dict[str, Any]],
        wanted: Sequence[int],
        *,
        memory: int,
    ) -> Generator[int]:
        """Has workers sort records into passes and draw these, a task each.

        Raises:
            WorkerError: A worker failed; passes that are kept stay.
            ValueError: The release keeps no passes.
        """
        if not wanted:
            return
        if self.release is None:
            raise ValueError("Expected the folder of a release that keeps passes, got none.")
        files = files_below(self.release.parents[2])
        folder = new_folder(files, self.release, INPUTS)
        try:
            places = self._sorted(steps, folder, wanted)
            sorted_in = [places[number] for number in wanted]
            task = DrawKept(draw)
            drawn = self.workers.map_parts(task, sorted_in, gpus=self.gpus, memory=memory)
            with closing(drawn):  # Workers end before their records are removed.
                for number, _ in zip(wanted, drawn, strict=True):
                    yield number
        finally:
            files.withdraw(folder)

    def _sorted(
        self, steps: Sequence[SortStep], folder: Folder, wanted: Sequence[int]
    ) -> tuple[Folder, ...]:
        """Sorts step by step; the last one's places are named after passes."""
        sources = self.places
        for step_number, (sort, count) in enumerate(steps):
            last = step_number == len(steps) - 1
            name = "pass" if last else f"step{step_number}"
            places = tuple(folder / f"{name}-{number:05d}" for number in range(count))
            files_below(folder.parents[3]).make_folder(*places)
            from_parts = step_number == 0
            embedded = from_parts and self.with_embeddings
            written = tuple(wanted) if last else tuple(range(count))
            task = SortRecords(sort, places, written, from_parts, embedded)
            with closing(self.workers.map_parts(task, sources)) as sorting:
                for _ in sorting:
                    pass
            sources = places
        if self.with_embeddings:
            self.require_charged()
        return sources
