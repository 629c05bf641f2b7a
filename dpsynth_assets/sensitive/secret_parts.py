"""Finds secrets part by part: what workers do, and the driver's dictionary of all parts.

A worker writes what it found into its part: a table `record`, `secret` with numbers of its own, and
a dictionary of them. The driver adds the dictionaries up, one part after the other, and gives the
secrets the numbers that they have where records lie whole. Nothing of a record is sent: a task is
given a path, and returns nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.redaction import keep_out_of_core_dumps
from dpsynth_assets.paths import Folder
from dpsynth_assets.secret_detection import (
    SecretIncidence,
    find_secrets,
    merged_dictionary,
    renumbered,
)
from dpsynth_assets.secret_detection.words import rare_among, word_counts
from dpsynth_assets.sensitive.record_parts import files_of, read_table
from dpsynth_assets.workers import Workers

TABLE: Final = "secrets.parquet"
"""Which record holds which secret: rows of the part, numbers of the dictionary."""

_FOUND, _WORDS, _RARE = "secrets_of_part.parquet", "words.parquet", "rare_words.parquet"
"""Notes between workers and driver, private; removed at the end."""


@dataclass(frozen=True)
class CountWords:
    """Counts the words of a part, whose rare ones are secrets of some kind."""

    def __call__(self, part: Folder) -> None:
        """Writes the counts into the part."""
        keep_out_of_core_dumps()
        counts = word_counts(read_table(part, "source.parquet")["text"].to_list())
        words = pl.Series("word", list(counts), dtype=pl.String)
        _write(part, _WORDS, pl.DataFrame({"word": words, "records": list(counts.values())}))


@dataclass(frozen=True)
class FindSecrets:
    """Runs every detector over the records of a part.

    Attributes:
        declared: Kinds of secrets, none of which comes from a column.
    """

    declared: SecretsSpec

    def __call__(self, part: Folder) -> None:
        """Writes what was found into the part."""
        keep_out_of_core_dumps()
        records = read_table(part, "source.parquet")
        found = find_secrets(records, self.declared, rare=_rare_words(part))
        _write(part, TABLE, found.table)
        _write(part, _FOUND, found.secrets)


def find_in_parts(
    declared: SecretsSpec,
    places: Sequence[Folder],
    workers: Workers,
    share: Callable[[float], None],
) -> SecretIncidence:
    """Finds the secrets of all parts, and leaves in each which of its records holds which.

    Args:
        declared: Kinds of secrets, none of which comes from a column.
        places: The parts.
        workers: Who searches.
        share: Told the share of parts done.

    Returns:
        The dictionary, as `find_secrets` makes it of all records; its table is empty.

    Raises:
        WorkerError: A part failed.
    """
    try:
        if any(kind.detector == "rare_words" for kind in declared.kinds):
            _choose_rare_words(declared, places, workers)
        for done, _ in enumerate(workers.map_parts(FindSecrets(declared), places), 1):
            share(done / len(places))
        dictionary = merged_dictionary(read_table(place, _FOUND) for place in places)
        for place in places:
            own, table = read_table(place, _FOUND), read_table(place, TABLE)
            _write(place, TABLE, renumbered(table, own, dictionary))
    except BaseException:  # No table with numbers that no dictionary has.
        forget_tables(places)
        raise
    finally:
        files = files_of(places[0])
        for folder in (*places, places[0].parent):
            for name in (_FOUND, _WORDS, _RARE):
                files.remove(folder / name)
    nothing = pl.DataFrame(schema={"record": pl.UInt32, "secret": pl.UInt32})
    return SecretIncidence(table=nothing, secrets=dictionary)


def forget_tables(places: Sequence[Folder]) -> None:
    """Removes what an earlier search left in the parts."""
    for place in places:
        files_of(place).remove(place / TABLE)


def _choose_rare_words(declared: SecretsSpec, places: Sequence[Folder], workers: Workers) -> None:
    """Chooses them by the words of all parts, and writes them where every part finds them."""
    for _ in workers.map_parts(CountWords(), places):
        pass
    vocabulary: Counter[str] = Counter()
    for place in places:
        vocabulary.update(dict(read_table(place, _WORDS).iter_rows()))
    chosen = [
        (kind.name, word)
        for kind in declared.kinds
        if kind.detector == "rare_words"
        for word in rare_among(vocabulary, quantile=kind.quantile, count=kind.words)
    ]
    schema = {"kind": pl.String, "word": pl.String}
    table = pl.DataFrame(chosen, schema=schema, orient="row")
    files_of(places[0]).write(places[0].parent / _RARE, table.write_parquet)


def _rare_words(part: Folder) -> Mapping[str, Sequence[str]]:
    """The words that were chosen, by kind; none where no kind asks for them."""
    if not files_of(part).exists(part.parent / _RARE):
        return {}
    table = read_table(part.parent, _RARE, files_of(part))
    return {str(kind): own["word"].to_list() for (kind,), own in table.group_by("kind")}


def _write(part: Folder, name: str, table: pl.DataFrame) -> None:
    files_of(part).write(part / name, table.write_parquet)
