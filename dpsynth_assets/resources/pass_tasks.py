"""Passes of a paid release over records in parts: what workers sort, and what they draw.

    sensitive/tickets/passes/<reservation>/3.json                     the pass of number 3, drawn
    sensitive/tickets/passes/<reservation>/inputs-3f9c…/pass-00003/   its records, one table a part

Records of passes lie there while a run draws: it removes them when it ends, well or not. What a
killed run left is removed by the next run, with the release, or by `dpsynth purge`, and is made
anew where passes are missing; passes that are drawn are not.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.records.memory import keep_out_of_core_dumps
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.resources.owner_only import OwnerOnlyFiles
from dpsynth_assets.resources.record_parts import read_part
from dpsynth_assets.resources.unfinished import StoredPasses

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
        from_parts: Whether parts of the dataset are sorted.
        with_embeddings: Whether `sort` reads their embeddings.
    """

    sort: Sort
    places: tuple[Path, ...]
    from_parts: bool
    with_embeddings: bool

    def __call__(self, part: Path) -> None:
        """Leaves a table for each place that gets rows."""
        keep_out_of_core_dumps()
        for number, rows in self.sort(_number(part), self._records(part)).items():
            table = self.places[number] / f"{part.name}.parquet"
            _files(self.places[number]).write(table, rows.write_parquet)

    def _records(self, part: Path) -> PrivateInputs:
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

    def __call__(self, place: Path) -> None:
        """Returns nothing: what was drawn is read back by the driver."""
        keep_out_of_core_dumps()
        number, kept = _number(place), StoredPasses(_files(place), place.parents[1])
        if kept.load(number) is None:
            kept.save(number, self.draw(number, _tables(place)))


@contextmanager
def pass_inputs(release: Path) -> Iterator[Path]:
    """An empty folder for the records of passes, removed at the end; earlier ones are removed, too.

    Its name is new: a task of a killed run that still runs somewhere finds its own folder gone.

    Args:
        release: Folder of a paid release that is not finished.
    """
    for left in inputs_left(release):
        remove_inputs(left)
    folder = release / f"{INPUTS}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_inputs(folder)


def numbered_places(folder: Path, name: str, count: int) -> tuple[Path, ...]:
    """Makes empty folders of such a name and of numbers from 0 on."""
    places = tuple(folder / f"{name}-{number:05d}" for number in range(count))
    for place in places:
        place.mkdir(mode=0o700)
    return places


def inputs_left(release: Path) -> list[Path]:
    """Folders with records of passes in the folder of a release that is not finished."""
    return sorted(release.glob(f"*{INPUTS}*"))


def remove_inputs(folder: Path) -> None:
    """Removes the records of passes at once: no worker finds a folder that lacks some of them."""
    aside = folder.with_name(f".{folder.name.lstrip('.')}")
    with suppress(FileNotFoundError):  # Purged by somebody else.
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _tables(place: Path) -> list[pl.DataFrame]:
    """Reads the tables that were sorted into a place.

    Raises:
        FileNotFoundError: The place was removed, as by a purge: it is not taken for an empty one.
    """
    named = sorted(path for path in place.iterdir() if path.suffix == ".parquet")
    return [pl.read_parquet(_files(place).read(path)) for path in named]


def _files(place: Path) -> OwnerOnlyFiles:
    """The store that a place lies in: store / dataset / passes / reservation / inputs-… / place."""
    return OwnerOnlyFiles(place.parents[4])


def _number(part: Path) -> int:
    """The number in the name of a part or a place: `00003-of-00016`, `step0-00003`."""
    return int(re.findall(r"\d{5,}", part.name)[0])
