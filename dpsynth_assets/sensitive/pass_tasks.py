"""Passes of a paid release over records in parts: what workers sort, and what they draw.

    sensitive/tickets/passes/<reservation>/3.json                     the pass of number 3, drawn
    sensitive/tickets/passes/<reservation>/inputs-3f9c…/pass-00003/   its records, one table a part

Records of passes lie there while a run draws: it removes them when it ends, well or not. What a
killed run left is removed by the next run, with the release, or by `dpsynth purge`, and is made
anew where passes are missing; passes that are drawn are not.
"""

import io
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from dpsynth_assets.files.redaction import keep_out_of_core_dumps
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below
from dpsynth_assets.sensitive.record_parts import EXCHANGE, read_part
from dpsynth_assets.sensitive.unfinished import StoredPasses

INPUTS = "inputs-"
"""How folders with the records of passes are named."""

Sort = Callable[[int, PrivateInputs], Mapping[int, pl.DataFrame]]
Draw = Callable[[int, Sequence[pl.DataFrame]], dict[str, Any]]


@dataclass(frozen=True)
class SortRecords:
    """Sorts the records of one part, or of one place of the step before, into numbered places.

    Attributes:
        sort: Says which rows go where; it holds public values only.
        places: The folders.
        written: Numbers of those that get a table.
        from_parts: Whether parts of the dataset are sorted.
        with_embeddings: Whether `sort` reads their embeddings.
    """

    sort: Sort
    places: tuple[Folder, ...]
    written: tuple[int, ...]
    from_parts: bool
    with_embeddings: bool

    def __call__(self, part: Folder) -> None:
        """Leaves a table in each such place: which get rows must not show in names of files."""
        keep_out_of_core_dumps()
        rows, nothing = self.sort(_number(part), self._records(part)), pl.DataFrame()
        files, name = _files(self.places[0]), f"{part.name}.parquet"
        for number in self.written:
            table = self.places[number] / name
            files.write(table, rows.get(number, nothing).write_parquet)
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
        keep_out_of_core_dumps()
        number, kept = _number(place), StoredPasses(_files(place), place.parents[1])
        if kept.load(number) is None:
            kept.save(number, self.draw(number, _tables(place)))


@contextmanager
def pass_inputs(release: Folder) -> Iterator[Folder]:
    """An empty folder for the records of passes, removed at the end; earlier ones are removed, too.

    Its name is new: a task of a killed run that still runs somewhere finds its own folder gone.

    Args:
        release: Folder of a paid release that is not finished.
    """
    files = files_below(release.parents[2])
    for left in inputs_left(files, release):
        files.withdraw(left)
    folder = release / f"{INPUTS}{secrets.token_hex(8)}"
    files.begin_folder(folder)
    try:
        yield folder
    finally:
        files.withdraw(folder)


def numbered_places(folder: Folder, name: str, count: int) -> tuple[Folder, ...]:
    """Makes empty folders of such a name and of numbers from 0 on, in one of `pass_inputs`."""
    places = tuple(folder / f"{name}-{number:05d}" for number in range(count))
    if places:
        _files(places[0]).make_folder(*places)
    return places


def inputs_left(files: PrivateFiles, release: Folder) -> list[Folder]:
    """Folders with records of passes in the folder of a release that is not finished."""
    return files.matching(release, f"*{INPUTS}*")


def left_for_workers(files: PrivateFiles, release: Folder) -> list[Folder]:
    """All that driver and workers handed one another for a release and a killed run left."""
    return [*inputs_left(files, release), *files.matching(release, f"*{EXCHANGE}*")]


def _tables(place: Folder) -> list[pl.DataFrame]:
    """Reads the tables that were sorted into a place.

    Raises:
        FileNotFoundError: The place was removed, as by a purge: it is not taken for an empty one.
    """
    files = _files(place)
    named = files.matching(place, "[!.]*.parquet")
    tables = [pl.read_parquet(io.BytesIO(files.read(path))) for path in named]
    if not files.has_begun(place.parent):  # Asked last: what is withdrawn is gone before its files.
        raise FileNotFoundError("Expected the records of a pass, got a folder that was removed.")
    return [table for table in tables if table.height]


def _files(place: Folder) -> PrivateFiles:
    """The store that a place lies in: store / dataset / passes / reservation / inputs-… / place."""
    return files_below(place.parents[4])


def _number(part: Folder) -> int:
    """The number in the name of a part or a place: `00003-of-00016`, `step0-00003`."""
    return int(re.findall(r"\d{5,}", part.name)[0])
