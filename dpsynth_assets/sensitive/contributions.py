"""The contribution table: which releases read which records, for the steward's eyes only.

The table holds keyed hashes of ids, never ids: whoever asks about one record or one unit has to
know its id, and learns nothing about any other. The key is random, made for each dataset, and lies
beside the table. Both are owner-only, encrypted where the store is, and outlive a purge of the
records: the right to ask does not end with the data.
"""

import hashlib
import io
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from dpsynth_assets.paths import Folder
from dpsynth_assets.sensitive.private_files import PrivateFiles

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


class Contributions:
    """The table of one dataset."""

    def __init__(self, files: PrivateFiles, folder: Folder) -> None:
        """Names the folder; it is made at the first read."""
        self._files, self._folder = files, folder

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
            self._files.write(path, lambda file: table.write_parquet(file))
        content = json.dumps(vars(_now(reservation, population))).encode()
        place = self._folder / _READS / f"{reservation}-{secrets.token_hex(4)}.json"
        self._files.write(place, lambda file: file.write(content))

    def reads(self) -> list[Read]:
        """Every read that was noted, oldest first; a release that was resumed has several."""
        notes = self._files.matching(self._folder / _READS, "[!.]*.json")
        reads = [Read(**json.loads(self._files.read(path))) for path in notes]
        return sorted(reads, key=lambda read: read.read_at)

    def reads_of(self, kind: Kind, name: str) -> list[Read]:
        """The reads that held one record or one unit; empty where none did, whoever asks.

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
        key, person = self._key(), kind.encode()
        return [
            hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES, key=key, person=person).digest()
            for name in names
        ]

    def _key(self) -> bytes:
        path = self._folder / _KEY
        if not self._files.exists(path):
            made = secrets.token_bytes(32)
            self._files.write(path, lambda file: file.write(made), only_if_absent=True)
        return self._files.read(path)


def _version(table: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for name in table.columns:
        digest.update(b"".join(table[name]))
    return digest.hexdigest()[:32]


def _now(reservation: str, population: str) -> Read:
    return Read(
        reservation=reservation, read_at=datetime.now(UTC).isoformat(), population=population
    )
