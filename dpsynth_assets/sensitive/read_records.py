"""The records that paid releases read, by keyed digest: whether they were replaced since.

A release is found again by its declaration, in which `source.version` stands for the records. Other
records under the same version would be answered by releases over the first ones, or add to a corpus
half of which rests on the first ones. So the digest of a cohort's source rows
(`source_digest`) is kept as soon as a release is about to be charged for them, and the
rows are compared whenever they are read again. Before, nothing rests on them: they may be replaced.

A process that replaces, reads or pays for the records of a cohort holds its lock (`alone`), so that
the digest that is kept is that of the records that the charge reads.

The digests are next to the fingerprints, under their key. Who removes the sensitive store removes
both, and the next reading is the first.

**Privacy** What is said, and to the steward alone, is that the records differ; never in what.
"""

import hashlib
import io
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import incidence_digest
from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.columns import IS_TEXT, READABLE
from dpsynth_assets.records.record_filters import in_window
from dpsynth_assets.sensitive.fingerprints import FOLDER, store_key
from dpsynth_assets.sensitive.private_files import Below, kept_key


def replaced_records(cohort: str, version: str = "", release: str = "") -> str:
    """Says in one line that records of a cohort were replaced under their version, or release."""
    which = f"release {release!r}" if release else f"version {version!r}".removesuffix(" ''")
    another = "ask for another release" if release else "raise source.version"
    return (
        f"source.version: expected the records of {which} of {cohort!r} as they were paid for, got "
        "others. Nothing was charged: restore the records and their columns or, to use these, "
        f"{another}: every release is then charged again (`dpsynth plan` shows it)."
    )


class Reading(NamedTuple):
    """One reading of a cohort's source.

    Attributes:
        state: Public name of the version and window that were read (`declared_state`).
        declared: Public digest of all that decides what becomes of the rows (`reading_digest`).
        rows: Keyed digest of the rows (`source_digest`); private.
    """

    state: str
    declared: str
    rows: str


class ReadRecords(Below):
    """Digests of the records that each cohort was read with; made of the store's own folder."""

    def alone(self, cohort: str) -> AbstractContextManager[None]:
        """Holds the lock of a cohort's records: one process replaces, reads or pays for them."""
        self._files.make_folder(self._folder / FOLDER)
        return self._files.alone(self._folder / FOLDER / f"{cohort}.lock")

    def differ(self, cohort: str, state: str, digest: str) -> bool:
        """Says whether a paid release read other records under the same state.

        Args:
            cohort: Whose records they are.
            state: Public name of their state (`declared_state`).
            digest: Of their rows, under the store's key.
        """
        paid = self._files.text(self._paid(cohort, state))
        return paid not in (None, digest)

    def begin_reading(self, cohort: str) -> None:
        """Notes that other records are about to take the place of those that are stored."""
        self._files.write(self._last(cohort), b"")

    def note_read(self, cohort: str, state: str, declared: str, rows: str) -> None:
        """Notes which records of a cohort were read last: those that the next release pays for."""
        self._files.make_folder(self._folder / FOLDER)
        self._files.write_json(self._last(cohort), Reading(state, declared, rows))

    def last(self, cohort: str) -> Reading | None:
        """The last reading; None where it was not noted.

        Raises:
            ValueError: That reading did not come to its end.
        """
        noted = self._files.json(self._last(cohort))
        return None if noted is None else Reading(*noted)

    def pay(self, cohort: str, declared: str | None = None) -> tuple[str, ...]:
        """Keeps the digest of the last reading permanently: a charge for those records follows.

        Args:
            cohort: Whose records they are; the caller holds its lock.
            declared: `reading_digest` of its declaration; None: not compared.

        Returns:
            What the records are known by, private.

        Raises:
            PrivacyError: Others were paid for, or what is stored is not what is declared, or no
                reading noted with what it was read.
        """
        again = f"Nothing was charged. Materialise {cohort}/shared/private_records again."
        try:
            last = self.last(cohort)
        except (ValueError, TypeError):  # Cut off, or of another version.
            last = None
        if last is None:
            raise PrivacyError(
                f"Expected the records of {cohort!r}, got a reading that was cut off. {again}"
            )
        if declared not in (None, last.declared):
            raise PrivacyError(
                f"Expected the records of {cohort!r} as its dataset file declares them, got some "
                f"that were read under another declaration. {again}"
            )
        if not self.note_paid(cohort, last.state, last.rows):
            raise PrivacyError(replaced_records(cohort))
        return last

    def note_paid(self, cohort: str, state: str, rows: str) -> bool:
        """Keeps the digest of rows that a release pays for; False where others were paid for."""
        self._files.write(self._paid(cohort, state), rows.encode(), only_if_absent=True)
        return self._files.read(self._paid(cohort, state)).decode() == rows

    @property
    def key(self) -> bytes:
        """The store's random key."""
        return store_key(self._files, self._folder)

    def _last(self, cohort: str) -> Folder:
        return self._folder / FOLDER / f"{cohort}.read"

    def _paid(self, cohort: str, state: str) -> Folder:
        return self._folder / FOLDER / f"{cohort}.{state}.rows"


# The contribution table: which releases read which records, for the steward's eyes only.
#
# The table holds keyed hashes of ids, never ids: a person who asks about one record or one unit has
# to know its id, and learns nothing about any other. The key is random, made for each dataset, and
# is next to the table. Both are owner-only, encrypted where the store is, and outlive a purge of
# the records: the right to ask does not end with the data.


Kind = Literal["record", "unit"]

_KEY = "key"
_READS = "reads"
_HASH_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Read:
    """One paid release that read the source split.

    Attributes:
        reservation: Its charge in the ledger.
        read_at: When it read, UTC.
        population: Version of the set of records it read.
    """

    reservation: str
    read_at: str
    population: str


class Contributions(Below):
    """The table of one dataset."""

    def note(self, reservation: str, records: pl.DataFrame) -> None:
        """Notes, before a mechanism sees them, that a release reads these records.

        Args:
            reservation: The charge in the ledger.
            records: Canonical records, with `record_id` and `unit_id`.
        """
        self._files.make_folder(self._folder, self._folder / _READS)
        table = pl.DataFrame(
            {
                kind: self._hashes(kind, records[f"{kind}_id"].to_list())
                for kind in ("record", "unit")
            },
            schema={"record": pl.Binary, "unit": pl.Binary},
        ).sort("record", "unit")
        population = _version(table)
        path = self._table(population)
        if not self._files.exists(path):
            self._files.write_table(path, table)
        now = datetime.now(UTC).isoformat()
        read = Read(reservation=reservation, read_at=now, population=population)
        place = self._folder / _READS / f"{reservation}-{secrets.token_hex(4)}.json"
        self._files.write_json(place, vars(read))

    def reads(self) -> list[Read]:
        """Every read that was noted, oldest first; a release that was resumed has several."""
        notes = self._files.matching(self._folder / _READS, "[!.]*.json")
        reads = [Read(**self._files.json(path)) for path in notes]
        return sorted(reads, key=lambda read: read.read_at)

    def reads_of(self, kind: Kind, name: str) -> list[Read]:
        """The reads that held one record or one unit; empty where none did.

        Args:
            kind: Whether `name` is a record's id or a unit's.
            name: The canonical id (`records.reading`).
        """
        reads = self.reads()
        if not reads:
            return []
        (wanted,) = self._hashes(kind, [name])
        held = {
            population: self._holds(population, kind, wanted)
            for population in {read.population for read in reads}
        }
        return [read for read in reads if held[read.population]]

    def _holds(self, population: str, kind: Kind, wanted: bytes) -> bool:
        content = self._files.read(self._table(population))
        return wanted in pl.read_parquet(io.BytesIO(content), columns=[str(kind)])[kind].to_list()

    def _table(self, population: str) -> Folder:
        return self._folder / f"{population}.parquet"

    def _hashes(self, kind: Kind, names: Sequence[str]) -> list[bytes]:
        key, person = kept_key(self._files, self._folder / _KEY), kind.encode()
        return [
            hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES, key=key, person=person).digest()
            for name in names
        ]


def _version(table: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for name in table.columns:
        digest.update(b"".join(table[name]))
    return digest.hexdigest()[:32]


_BYTES = 32
_PERSON = b"source rows"


def declared_state(spec: PrivateDatasetSpec, release: str = "") -> str:
    """Names the state of the records that a declaration reads; public.

    Two readings are comparable where this name is equal: the same version and window. Which columns
    are read is no part of it: under an edited set of columns the digests differ, so that no edit
    lets other records pass.

    Args:
        spec: The cohort.
        release: Name of the release, for a frame in memory, which has no version of its own.
    """
    window = spec.window and [spec.window.column, str(spec.window.start), str(spec.window.end)]
    return _named([spec.source.version, release, window])


def reading_digest(spec: PrivateDatasetSpec) -> str:
    """Names what decides which records come of the rows of a source; public."""
    return _named(
        [
            declared_state(spec),
            spec.columns.model_dump(mode="json"),
            spec.composite_labels[0],
            spec.privacy_unit.model_dump(mode="json"),
            spec.neighboring_relation,
            spec.public_facts.slots,
            spec.held_out_fraction,
            "" if spec.secrets is None else incidence_digest(spec.secrets),
        ]
    )


def _named(parts: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def source_digest(raw: pl.DataFrame, spec: PrivateDatasetSpec, key: bytes) -> str:
    """Digests the rows of a source as they were read, under a key.

    What it covers is every declared column (text, labels, id, unit, date) of every row of the
    cohort's window, as text, before any rule sets a record aside. Columns that are not declared
    are not covered. Neither the order of rows nor the order of files matters, nor the file format,
    so that the same rows in another file have the same digest; how often a row occurs does matter.

    The digest is the sum, modulo 2^256, of keyed BLAKE2b digests of the rows: without the key
    rows cannot be chosen whose sum is a given one.

    Args:
        raw: What `read_source` returned.
        spec: The cohort.
        key: Random key of at most 64 bytes.

    Returns:
        64 hexadecimal digits.

    **Privacy** It depends on the records without noise: it stays in the sensitive store.
    """
    rows = in_window(raw, spec)
    return _written(sum(int.from_bytes(row, "big") for row in _row_digests(rows, key)))


def joined_digest(digests: Iterable[str]) -> str:
    """The digest of rows that are in shards, from the digest of each shard."""
    return _written(sum(int(digest, 16) for digest in digests))


def _written(total: int) -> str:
    return (total % 2 ** (8 * _BYTES)).to_bytes(_BYTES, "big").hex()


def _row_digests(rows: pl.DataFrame, key: bytes) -> Iterator[bytes]:
    names = sorted(set(rows.columns) - {READABLE, IS_TEXT})
    for values in rows.select(names).iter_rows():
        digest = hashlib.blake2b(digest_size=_BYTES, key=key, person=_PERSON)
        for value in values:
            data = b"" if value is None else str(value).encode()
            length = -1 if value is None else len(data)
            digest.update(length.to_bytes(8, "big", signed=True))
            digest.update(data)
        yield digest.digest()
