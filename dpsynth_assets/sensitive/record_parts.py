"""Where the shards of a dataset are in the sensitive store, and how one shard is read and written.

Records are in n >= 1 shards, usually one. A shard is a folder. Shards are written into folders of a
new name, and become the dataset's by one small file that names them, so that a reader finds all of
the old shards or all of the new ones. Where no such file is, the dataset's own folder is the shard.

    sensitive/tickets/parts.json                         which folder, how many shards
    sensitive/tickets/parts-3f9c…/00003-of-00016/        source.parquet, held_out.parquet,
                                                         source_embeddings.npy and what made them

A shard is one file of each kind, read whole: memory follows the largest shard, not the dataset.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import polars as pl

from dpsynth_assets.files.kept import TABLE
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.record_filters import CANONICAL
from dpsynth_assets.sensitive.private_files import Below, PrivateFiles, files_below

Split = Literal["source", "held_out"]
SPLITS: Final[tuple[Split, ...]] = ("source", "held_out")

EXCHANGE: Final = "exchange"
"""Folders, in that of an unfinished release, of what driver and workers hand one another."""

PIECE: Final = "piece"
"""Beginning of the names of files with rows of a shard as the source has them."""

NAMED: Final = "parts.json"
"""File that names the shards of a dataset."""

_PLACE, _PREFIX = "__place", "parts-"


class RecordParts(Below):
    """The shards of one dataset, one or more, in its folder."""

    @property
    def places(self) -> tuple[Folder, ...]:
        """The shards, in their order."""
        named = self._files.json(self._folder / NAMED)
        if named is None:
            return (self._folder,)
        return _places(self._folder / named["folder"], named["count"])

    def begin(self, count: int) -> tuple[Folder, ...]:
        """Makes the empty folders of new shards, which are not read yet."""
        places = _places(self._folder / f"{_PREFIX}{secrets.token_hex(8)}", count)
        self._files.make_folder(places[0].parent, *places)
        return places

    def keep(self, places: Sequence[Folder]) -> None:
        """Makes finished shards those of the dataset, and removes what they replace.

        Where they hold what the present shards hold, these stay, with their embeddings.
        """
        if not self._same(places):
            named = {"folder": places[0].parent.name, "count": len(places)}
            self._files.write_json(self._folder / NAMED, named)
            for name in (*SPLITS, *(f"{split}_embeddings" for split in SPLITS)):
                for path in self._files.matching(self._folder, f"{name}.*"):
                    self._files.remove(path)
        self._remove_others()

    def drop(self, places: Sequence[Folder]) -> None:
        """Removes shards that were begun and did not become the dataset's."""
        if places and places != self.places:
            self._files.discard(places[0].parent)

    def _same(self, places: Sequence[Folder]) -> bool:
        present, made = [content_of(place) for place in self.places], [*map(content_of, places)]
        return present == made and not any(None in digests for digests in made)

    def _remove_others(self) -> None:
        kept = {place.parent for place in self.places}
        for folder in self._files.matching(self._folder, f"{_PREFIX}*"):
            if folder not in kept:
                self._files.discard(folder)


def texts_of(files: PrivateFiles, place: Folder) -> list[Folder]:
    """The texts of the shards that a folder of a dataset holds or a file of it names; else itself.

    Embeddings are no texts: made again, they do not make the records younger.
    """
    if place.name == NAMED:
        place = RecordParts(files, place.parent).places[0].parent
        if not files.is_folder(place):
            return []
    if not place.name.startswith(_PREFIX):
        return [place]
    tables = [f"{name}*.parquet" for name in (*SPLITS, PIECE)]
    parts = files.matching(place, "*")
    texts = [each for part in parts for table in tables for each in files.matching(part, table)]
    return texts or [place]


def dataset_folder(part: Folder) -> Folder:
    """The folder of the dataset of a shard, by its path: store / dataset / parts-… / shard."""
    return part.parents[1] if part.parent.name.startswith(_PREFIX) else part


def files_of(part: Folder) -> PrivateFiles:
    """The store that a shard is in."""
    return files_below(dataset_folder(part).parent)


def files_of_exchange(exchange: Folder) -> PrivateFiles:
    """The store that an exchange is in: store / dataset / passes / charge / exchange."""
    return files_below(exchange.parents[3])


def write_canonical(part: Folder, split: Split, records: pl.DataFrame) -> None:
    """Writes the canonical records of a shard, and a digest of their content beside them.

    Embeddings of other records go first: row by row they would be taken for those of these.

    Args:
        part: Folder of a shard.
        split: Which of its records.
        records: The records.
    """
    content = TABLE.write(records)
    digest = hashlib.sha256(content).hexdigest()
    files, noted = files_of(part), part / f"{split}.digest"
    if files.text(noted) != digest:
        for path in (noted, *files.matching(part, f"{split}_embeddings.*")):
            files.remove(path)
    files.write(part / f"{split}.parquet", content)
    files.write(noted, digest.encode())


def content_of(part: Folder) -> tuple[str | None, ...]:
    """Digests of the records of a shard, those held out included."""
    files = files_of(part)
    return tuple(files.text(part / f"{split}.digest") for split in SPLITS)


def embeddings_made_by(part: Folder, split: Split) -> dict[str, str] | None:
    """What made the embeddings of a shard (`TextEmbedder.made_by`), public; None: unknown."""
    stored: dict[str, str] | None = files_of(part).json(part / f"{split}_embeddings.made_by")
    return stored


def read_part(part: Folder, split: Split, *, with_embeddings: bool) -> PrivateInputs:
    """Reads one shard; embeddings are mapped from the file where the store is not encrypted.

    Raises:
        FileNotFoundError: It has no such records, or they are not embedded.
        PrivacyError: The embeddings are of other records.
    """
    files, path = files_of(part), part / f"{split}_embeddings.npy"
    records = files.read_table(part / f"{split}.parquet")
    if not with_embeddings:
        return PrivateInputs(records=records)
    if not files.exists(path):
        raise FileNotFoundError("Expected embeddings of every shard. Materialise them first.")
    embeddings = files.read_array(path)
    if len(embeddings) != records.height:
        raise PrivacyError(
            f"Expected one embedding per record of {part.name!r} in the sensitive store, got "
            "another number. Materialise private_embeddings after private_records."
        )
    return PrivateInputs(records=records, embeddings=embeddings)


def read_whole(parts: Sequence[Folder], split: Split, *, with_embeddings: bool) -> PrivateInputs:
    """Reads all shards into memory, in the order that one shard has.

    For stages that go over no shards. Rows that are equal in every column are interchangeable, and
    so are their embeddings.
    """
    each = [read_part(part, split, with_embeddings=with_embeddings) for part in parts]
    if len(each) == 1:
        return each[0]
    joined = pl.concat([part.records for part in each]).with_row_index(_PLACE)
    ordered = joined.sort(CANONICAL)
    records = ordered.drop(_PLACE)
    if not with_embeddings:
        return PrivateInputs(records=records)
    stacked = np.concatenate([np.asarray(part.embeddings) for part in each])
    return PrivateInputs(records=records, embeddings=stacked[ordered[_PLACE].to_numpy()])


def _places(folder: Folder, count: int) -> tuple[Folder, ...]:
    return tuple(folder / f"{number:05d}-of-{count:05d}" for number in range(count))
