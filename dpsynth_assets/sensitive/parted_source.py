"""Reads a source into parts, embeds them, counts and draws over them: the driver's side of workers.

The driver sorts rows into parts in one pass, holds the keys and the ledger, adds up what the
workers return and collects what they keep. It never holds the records of more than a few batches.
"""

import io
import json
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, SortStep
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.reading import PIECE_BYTES, Tally, pieces_of_source
from dpsynth_assets.records.source_digest import joined_digest
from dpsynth_assets.sensitive.fingerprints import Prints, single_prints
from dpsynth_assets.sensitive.part_tasks import (
    IDS,
    PIECE,
    PRINTS,
    ROWS,
    TALLY,
    Canonical,
    Count,
    Embed,
)
from dpsynth_assets.sensitive.pass_tasks import (
    DrawKept,
    SortRecords,
    numbered_places,
    pass_inputs,
)
from dpsynth_assets.sensitive.record_parts import (
    files_of,
    files_of_exchange,
    read_text,
    write_arrays,
)
from dpsynth_assets.workers import Workers


def write_parts(
    spec: PrivateDatasetSpec,
    places: Sequence[Folder],
    workers: Workers,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Reads a cohort's source once and leaves canonical records in the folders of new parts.

    Args:
        spec: The declaration; as many parts as there are folders.
        places: Empty folders (`RecordParts.begin`).
        workers: Who makes the parts canonical.
        piece_bytes: Memory that rows may take before they are written.

    Raises:
        SourceError: The source is missing, broken, or lacks a declared column.
        WorkerError: A part failed.
    """
    nothing = pl.DataFrame()
    for number, pieces in enumerate(pieces_of_source(spec, piece_bytes)):
        for part, place in enumerate(places):  # Which get rows must not show in names of files.
            path = place / f"{PIECE}-{number:05d}.parquet"
            files_of(place).write(path, pieces.get(part, nothing).write_parquet)
    for _ in workers.map_parts(Canonical(spec), places):
        pass


def digest_of_parts(places: Iterable[Folder]) -> str:
    """The digest of all rows, as `source_digest` makes it of a source that is read whole."""
    return joined_digest(read_text(place, ROWS) or "0" for place in places)


def tally_of_parts(places: Iterable[Folder]) -> Tally:
    """Numbers of records, and of those set aside, of the whole source."""
    return Tally.of_all(Tally(**json.loads(read_text(place, TALLY) or "")) for place in places)


def prints_of_parts(places: Sequence[Folder]) -> Prints:
    """Fingerprints of the records of a cohort, as `part_tasks.prints_of` makes them of a whole."""
    texts = single_prints(_notes(places, PRINTS))
    ids = [*_notes(places, IDS)]
    return Prints(texts, np.unique(np.concatenate(ids)) if ids else None)


def _notes(places: Sequence[Folder], name: str) -> Iterator[np.ndarray]:
    for place in places:
        if files_of(place).exists(place / name):
            content = io.BytesIO(files_of(place).read(place / name))
            yield np.load(content, allow_pickle=False)


def remove_notes(places: Iterable[Folder]) -> None:
    """Removes what the workers left for the driver alone."""
    for place in places:
        for name in (PRINTS, IDS, ROWS, TALLY):
            files_of(place).remove(place / name)


def embed_parts(
    manifest: Mapping[str, Any],
    places: Sequence[Folder],
    workers: Workers,
    report: ProgressCallback,
    *,
    gpus: float = 0,
) -> dict[str, str]:
    """Embeds every part that is not embedded yet; returns what made the embeddings (public).

    A run that was killed goes on with the parts that it had not finished.

    Raises:
        PrivacyError: Workers embed in different ways, so that who worked on a part could be seen
            in the results.
    """
    made_by: dict[str, str] | None = None
    for done, made in enumerate(workers.map_parts(Embed(dict(manifest)), places, gpus=gpus), 1):
        if made_by is not None and made != made_by:
            raise PrivacyError(
                "Expected workers that embed in one way, got "
                f"{sorted(made_by.items())} and {sorted(made.items())}. Use nodes of one kind."
            )
        made_by = made
        report(done / len(places), "")
    return made_by or {}


@dataclass(frozen=True)
class StoredParts:
    """The records of a release in parts, counted by workers; see `methods.inputs.PartedRecords`.

    Attributes:
        places: The parts.
        workers: Who counts.
        with_embeddings: Whether what is counted, or sorted, reads embeddings.
        exchange: Owner-only folder in the store for what is too large to be sent, one charge's own;
            None: everything is sent.
        release: Folder of the paid release, for one that draws passes.
        gpus: GPUs that a worker needs to draw a pass.
        require_charged: Refuses embeddings that another run made anew while workers read them.
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
        """Adds up what `count` returns for each part; exact, in whatever order."""
        total: np.ndarray | None = None
        with self._stored(state) as path:
            task = Count(count, self.with_embeddings, self.exchange, path)
            made = self.workers.map_parts(task, self.places, gpus=gpus)
            done = 0
            with closing(made):  # Workers end before what they left is removed.
                for done, outcome in enumerate(made, 1):
                    counts = self._taken(outcome)
                    if not np.issubdtype(counts.dtype, np.integer):
                        raise TypeError(f"Expected whole counts of a part, got {counts.dtype}.")
                    total = counts.astype(np.int64) if total is None else total + counts
                    if progress is not None:
                        progress(done / len(self.places))
        if total is None or done != len(self.places):
            raise ValueError(f"Expected counts of {len(self.places)} parts, got of {done}.")
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
                write_arrays(files_of_exchange(self.exchange), path, state)
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
        content = files.read(outcome)
        files.remove(outcome)
        counts: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
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
        with pass_inputs(self.release) as folder:
            places = self._sorted(steps, folder, wanted)
            drawn = self.workers.map_parts(
                DrawKept(draw),
                [places[number] for number in wanted],
                gpus=self.gpus,
                memory=memory,
            )
            with closing(drawn):  # Workers end before their records are removed.
                for number, _ in zip(wanted, drawn, strict=True):
                    yield number

    def _sorted(
        self, steps: Sequence[SortStep], folder: Folder, wanted: Sequence[int]
    ) -> tuple[Folder, ...]:
        """Sorts step by step; the last one's places are named after passes."""
        sources = self.places
        for step_number, (sort, count) in enumerate(steps):
            last = step_number == len(steps) - 1
            places = numbered_places(folder, "pass" if last else f"step{step_number}", count)
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
