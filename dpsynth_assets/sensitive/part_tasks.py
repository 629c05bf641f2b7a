"""What workers do with one shard: functions of its path, which hold public values only.

Each reads the records itself, from the sensitive store. None opens the ledger or adds noise.
"""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.kept import version_of, version_of_texts
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets.records.columns import empty_rows
from dpsynth_assets.records.reading import Tally, canonical_records
from dpsynth_assets.records.record_filters import column_names
from dpsynth_assets.secret_detection.finding import (
    SecretDictionary,
    find_secrets,
    merged_dictionary,
    rare_among,
    word_counts,
)
from dpsynth_assets.sensitive.fingerprints import store_key
from dpsynth_assets.sensitive.read_records import Contributions, source_digest
from dpsynth_assets.sensitive.record_parts import (
    PIECE,
    SPLITS,
    RecordParts,
    content_of,
    dataset_folder,
    embeddings_made_by,
    files_of,
    files_of_exchange,
    read_part,
    write_canonical,
)
from dpsynth_assets.workers import Here, Workers, kept

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder

LARGEST_SENT: Final = 1 << 16
"""Bytes of counts that a worker sends; more are a file of the store, which Ray moves to no disk."""


def make_canonical(spec: PrivateDatasetSpec, part: Folder) -> tuple[str, Tally]:
    """Makes the pieces of a shard its canonical records, and removes the pieces.

    Returns:
        The digest of its rows, and how many records rules set aside; private.
    """
    files = files_of(part)
    pieces = files.matching(part, f"{PIECE}-*.parquet")
    empty = empty_rows(column_names(spec))
    read = map(files.read_table, pieces)
    raw = pl.concat([empty, *(rows for rows in read if rows.height)])
    key = store_key(files, dataset_folder(part).parent)
    digest, private = source_digest(raw, spec, key), canonical_records(raw, spec)
    del raw
    write_canonical(part, "source", private.records)
    write_canonical(part, "held_out", private.held_out)
    for piece in pieces:
        files.remove(piece)
    return digest, private.tally


def embed_part(
    manifest: Mapping[str, Any],
    here: "Here[tuple[TextEmbedder | None, ProgressCallback | None]]",
    part: Folder,
) -> dict[str, str]:
    """Embeds the records of a shard, unless they are embedded already.

    The version is written last and removed first: where it is, it, the array and what made the
    array belong together.

    Args:
        manifest: The artifact `text_embedder` of the public base.
        here: The embedder, where it is open, and who is told the share of texts done.
        part: The shard.

    Returns:
        What made the embeddings of both splits, which is public.

    Raises:
        PrivacyError: The records were replaced or removed meanwhile; nothing of them stays.
    """
    opened, told = here.value or (None, None)
    embedder = opened or OpenedModels().text_embedder(manifest)
    files, content = files_of(part), content_of(part)
    for number, split in enumerate(SPLITS):
        texts = files.read_table(part / f"{split}.parquet")["text"].to_list()
        version = version_of(manifest, version_of_texts(texts), embedder.made_by)
        name = f"{split}_embeddings"
        noted = part / f"{name}.version"
        if embeddings_made_by(part, split) and files.text(noted) == version:
            continue
        embeddings = embedder.embed(texts, _share_of(told, number))
        _require_current(part, content)
        for kept_before in (noted, part / f"{name}.made_by"):
            files.remove(kept_before)
        files.write_array(part / f"{name}.npy", embeddings)
        files.write_json(part / f"{name}.made_by", embedder.made_by)
        files.write(noted, version.encode())
        try:  # Again: a worker cannot lock the records, and an object needs no folder.
            _require_current(part, content)
        except PrivacyError:
            for written in files.matching(part, f"{name}.*"):
                files.remove(written)
            raise
    return embedder.made_by


def _require_current(part: Folder, content: tuple[str | None, ...]) -> None:
    """Refuses a shard that is no more the dataset's, or has other records (`content_of`)."""
    folder = dataset_folder(part)
    if part not in RecordParts(files_of(part), folder).places or content_of(part) != content:
        raise PrivacyError(
            f"Expected the records of {folder.name!r} to stay the same while they are embedded, "
            f"got others, or none. Materialise {folder.name}/shared/private_embeddings again."
        )


def _share_of(told: ProgressCallback | None, split: int) -> ProgressCallback:
    """Tells the share of both splits, without the message, which has the number of records."""
    if told is None:
        return lambda _share, _message: None
    return lambda share, _: told((split + share) / len(SPLITS), "")


@dataclass(frozen=True)
class Count:
    """Counts the records of a shard that mechanisms read.

    Attributes:
        count: Turns private inputs into whole numbers; it holds public values only.
        with_embeddings: Whether it reads embeddings.
        exchange: Owner-only folder in the store, for counts that are too many to be sent.
        state: File in it, of arrays that `count` reads beside the records; None: it reads none.
    """

    count: Callable[[PrivateInputs], np.ndarray]
    with_embeddings: bool = True
    exchange: Folder | None = None
    state: Folder | None = None

    def __call__(self, part: Folder) -> np.ndarray | Folder:
        """Returns counts without noise, or the file in the store that holds them: private."""
        inputs = read_part(part, "source", with_embeddings=self.with_embeddings)
        counts = self.count(replace(inputs, state=self._state()))
        if self.exchange is None or counts.nbytes <= LARGEST_SENT:
            return counts
        path = self.exchange / f"{part.name}.npy"
        files = files_of_exchange(self.exchange)
        files.write_array(path, counts)
        if not files.has_begun(self.exchange):  # An object needs no folder to be written.
            files.remove(path)
            raise FileNotFoundError("Expected a folder for counts of a shard, got a removed one.")
        return path

    def _state(self) -> Sequence[np.ndarray]:
        """The arrays, which this process reads once for all shards that it works on."""
        path = self.state
        if path is None:
            return ()
        return kept("state", str(path), lambda: _arrays(files_of_exchange(path.parent).read(path)))


def _arrays(content: bytes) -> list[np.ndarray]:
    """Arrays that were saved one behind the other."""
    source, found = io.BytesIO(content), []
    while source.tell() < len(content):
        found.append(np.load(source, allow_pickle=False))
    return found


@dataclass(frozen=True)
class NoteRead:
    """Notes in the contribution table that a release reads the records of a shard.

    Attributes:
        reservation: Its charge in the ledger.
    """

    reservation: str

    def __call__(self, part: Folder) -> None:
        """Notes the source split."""
        files = files_of(part)
        table = Contributions(files, dataset_folder(part) / "contributions")
        table.note(self.reservation, files.read_table(part / "source.parquet"))


# Finds secrets shard by shard: what workers do, and the driver's dictionary of all shards.
#
# A worker writes a dictionary of what it found into its shard, and the driver adds the dictionaries
# up. Nothing of a record is sent: a task is given a path, and returns nothing.


_FOUND, _RARE = "secrets_of_part.parquet", "rare_words.parquet"
"""Notes between workers and driver, private; removed at the end."""


def find_in_part(declared: SecretsSpec, here: Here[Callable[[float], None]], part: Folder) -> None:
    """Runs every detector over the records of a shard; `here` is told the share done."""
    files = files_of(part)
    records = files.read_table(part / "source.parquet")
    told = here.value or (lambda _share: None)
    found = find_secrets(records, declared, rare=_rare_words(part), progress=told)
    files.write_table(part / _FOUND, found.secrets)


def find_in_parts(
    declared: SecretsSpec,
    places: Sequence[Folder],
    workers: Workers,
    share: Callable[[float], None],
) -> SecretDictionary:
    """Finds the secrets of all shards.

    Args:
        declared: Kinds of secrets; those of columns are passed over.
        places: The shards.
        workers: Who searches.
        share: Told the share of shards done.

    Returns:
        The dictionary, as `find_secrets` makes it of all records.

    Raises:
        WorkerError: A shard failed.
    """
    files = files_of(places[0])
    try:
        if any(kind.detector == "rare_words" for kind in declared.kinds):
            _choose_rare_words(declared, places)
        task = partial(find_in_part, declared, Here(share if len(places) == 1 else None))
        for done, _ in enumerate(workers.map_parts(task, places), 1):
            share(done / len(places))
        return merged_dictionary(files.read_table(place / _FOUND) for place in places)
    finally:
        for folder in (*places, dataset_folder(places[0])):
            for name in (_FOUND, _RARE):
                files.remove(folder / name)


def _choose_rare_words(declared: SecretsSpec, places: Sequence[Folder]) -> None:
    """Chooses them by the words of all shards, and writes them where every shard finds them."""
    vocabulary: Counter[str] = Counter()
    for place in places:
        texts = files_of(place).read_table(place / "source.parquet")["text"]
        vocabulary.update(word_counts(texts))
    chosen = [
        (kind.name, word)
        for kind in declared.kinds
        if kind.detector == "rare_words"
        for word in rare_among(vocabulary, quantile=kind.quantile, count=kind.words)
    ]
    schema = {"kind": pl.String, "word": pl.String}
    table = pl.DataFrame(chosen, schema=schema, orient="row")
    files_of(places[0]).write_table(dataset_folder(places[0]) / _RARE, table)


def _rare_words(part: Folder) -> Mapping[str, Sequence[str]]:
    """The words that were chosen, by kind; none where no kind asks for them."""
    files, place = files_of(part), dataset_folder(part) / _RARE
    if not files.exists(place):
        return {}
    table = files.read_table(place)
    return {str(kind): own["word"].to_list() for (kind,), own in table.group_by("kind")}
