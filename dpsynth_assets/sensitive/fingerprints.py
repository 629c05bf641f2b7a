"""Keyed fingerprints of private texts: whether two cohorts with own budgets read the same records.

A budget is kept for each account of the ledger. Two dataset files over one source, or one that was
renamed, would have two, and what a record loses would be their sum. So the texts of every cohort
leave fingerprints when its records are read, and a cohort of another account is compared with them.
So is another cohort of the same dataset, whose records are its own only as long as their dates or
files stay what they are: there ids are declared, and one common id is a record that moved.

A fingerprint is 8 bytes of BLAKE2b of a text (letters in lower case, blanks as one), under a random
key that never leaves the sensitive store. All of them are kept, sorted, 8 bytes a text:
with fewer than 10^7 texts on either side two different texts meet with probability below 10^-5.
Texts of less than SHORTEST characters say nothing of a common source ("thank you") and have none,
nor have texts that occur more than once in a cohort (automatic replies): they identify no unit.

Two cohorts share records where MANY such texts, and one in a hundred of the smaller one, are in
both; or at least FEW, where they are half of it. Less is taken for coincidence, and an edited text
is another text: this finds an oversight. It does not stop a person who edits all texts for two
budgets.

**Privacy** What is said, and to the steward alone, is the name of the other cohort. Whether it is
said follows from private records; it is no release, and no file that is shared holds it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.paths import Folder, home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive.private_files import PrivateFiles, files_below, kept_key

FOLDER = ".fingerprints"
"""Name of the folder below the sensitive store; no dataset is called so."""

SHORTEST = 20
MANY, SHARE = 10, 0.01
FEW, HALF = 3, 0.5
MANY_PUBLIC, PUBLIC_SHARE = 100, 0.05
"""Texts of a public table, and share of it, that a cohort has read before the table is refused."""

NONE = np.empty(0, dtype=np.uint64)
"""No fingerprint at all."""

_KEY, _LOCK = "key", "lock"
_TEXTS, _IDS, _DESCRIBED, _PAID = ".npy", ".ids.npy", ".json", ".paid"
"""Ends of the names of a cohort's files."""

_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A cohort whose records were read.

    Attributes:
        cohort: Its name.
        account: The account of the ledger that pays for it.
        dataset: The dataset that it is a part of.
        places: Where its source lies, by real paths.
    """

    cohort: str
    account: str
    dataset: str
    places: tuple[str, ...] = ()


class Prints(NamedTuple):
    """Fingerprints of a cohort's records: sorted, distinct, uint64.

    Attributes:
        texts: Of the long texts that occur once.
        ids: Of the declared ids; None where none tell records apart by themselves.
    """

    texts: np.ndarray
    ids: np.ndarray | None = None

    def joined(self, other: "Prints") -> "Prints":
        """Those of both."""
        ids = [each for each in (self.ids, other.ids) if each is not None]
        texts = np.union1d(self.texts, other.texts)
        return Prints(texts, np.unique(np.concatenate(ids)) if ids else None)


class Fingerprints:
    """The fingerprints of all cohorts of one store."""

    def __init__(self, files: PrivateFiles, base: Folder) -> None:
        """Names the store's folder; their own is made when the first cohort is read."""
        self._files, self._folder = files, base / FOLDER

    def holds_most_of(self, texts: Iterable[str]) -> bool:
        """Says whether some cohort has read a large part of a public table. Keeps nothing.

        **Privacy** The answer follows from private records without noise. So it is given for whole
        tables alone: MANY_PUBLIC texts, and the share PUBLIC_SHARE of the table, must be shared, so
        that it says nothing of a record to who does not know that many others already.
        """
        if not self._files.is_folder(self._folder):
            return False
        with self._files.alone(self._folder / _LOCK):
            readers = self._readers()
            key = store_key(self._files, self._folder.parent)
            mine = text_prints(texts, key) if readers else NONE
            if len(mine) < MANY_PUBLIC:
                return False
            common = [np.intersect1d(mine, self._read(each.cohort).texts) for each in readers]
        return any(len(each) >= max(MANY_PUBLIC, PUBLIC_SHARE * len(mine)) for each in common)

    def admit(self, reader: Reader, prints: Prints) -> str | None:
        """Keeps the fingerprints of a cohort, unless another account's cohort shares its records.

        Texts of an earlier reading are kept as well once a release was paid for: it rests on them.

        Args:
            reader: Whose records they are.
            prints: Of its texts, those held out included, under the store's key.

        Returns:
            Name of a cohort that shares records with it, in which case nothing was kept; or None.
        """
        self._files.make_folder(self._folder)
        # One cohort at a time is compared and kept: two that share records never both are.
        with self._files.alone(self._folder / _LOCK):
            for other in self._readers():
                if reader.account != other.account and self._meet(reader, prints, other):
                    return other.cohort
            kept = [self._of(reader.cohort, kind) for kind in (_PAID, _TEXTS)]
            if all(map(self._files.exists, kept)):
                prints = prints.joined(self._read(reader.cohort))
            self._write(reader, prints)
        return None

    def _meet(self, reader: Reader, mine: Prints, other: Reader) -> bool:
        """Says whether two cohorts have records in common."""
        theirs = self._read(other.cohort)
        if reader.dataset != other.dataset:
            same_place = bool(set(reader.places) & set(other.places))
            return same_place or shares_records(mine.texts, theirs.texts)
        if mine.ids is None or theirs.ids is None:
            return shares_records(mine.texts, theirs.texts)
        return len(np.intersect1d(mine.ids, theirs.ids, assume_unique=True)) > 0

    def note_paid(self, cohort: str) -> None:
        """Notes that a paid release read the records of a cohort: its fingerprints then stay."""
        if self._files.exists(self._of(cohort, _TEXTS)):
            self._files.write(self._of(cohort, _PAID), b"")

    def removable(self, cohort: str | None) -> list[Folder]:
        """Files of one cohort, or of all, on whose records no paid release rests."""
        names = [reader.cohort for reader in self._readers()] if cohort is None else [cohort]
        return [
            self._of(name, kind)
            for name in names
            if not self._files.exists(self._of(name, _PAID))
            for kind in (_TEXTS, _IDS, _DESCRIBED, ".read")
            if self._files.exists(self._of(name, kind))
        ]

    def _write(self, reader: Reader, prints: Prints) -> None:
        for kind, values in zip((_TEXTS, _IDS), prints, strict=True):
            if values is None:
                self._files.remove(self._of(reader.cohort, kind))
            else:
                self._files.write_array(self._of(reader.cohort, kind), values)
        self._files.write_json(self._of(reader.cohort, _DESCRIBED), asdict(reader))

    def _read(self, cohort: str) -> Prints:
        texts, ids = self._of(cohort, _TEXTS), self._of(cohort, _IDS)
        known = self._files.read_array(ids) if self._files.exists(ids) else None
        return Prints(self._files.read_array(texts), known)

    def _readers(self) -> list[Reader]:
        described = self._files.matching(self._folder, f"[!.]*{_DESCRIBED}")
        return [Reader(**self._files.json(path)) for path in described]

    def _of(self, cohort: str, kind: str) -> Folder:
        return self._folder / f"{cohort}{kind}"


def all_prints(texts: Iterable[str], key: bytes) -> np.ndarray:
    """Fingerprints of long texts, uint64 (n,), as often as they occur."""
    plain = (" ".join(text.lower().split()) for text in texts)
    return _digests((text for text in plain if len(text) >= SHORTEST), key)


def prints_of(frames: Iterable[pl.DataFrame], spec: PrivateDatasetSpec, key: bytes) -> Prints:
    """Fingerprints of the texts of a cohort that occur once, and of ids where these name records.

    Args:
        frames: Its canonical records, those held out included; one is held at a time.
        spec: Its declaration.
        key: The store's key.
    """
    named = spec.columns.id is not None and spec.privacy_unit.column is None
    texts, ids = [NONE], [NONE]
    for frame in frames:
        texts.append(all_prints(frame["text"], key))
        if named:
            ids.append(id_prints(frame["record_id"], key))
    return Prints(single_prints(texts), np.unique(np.concatenate(ids)) if named else None)


def single_prints(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Sorted fingerprints of the texts that occur once in all shards together, uint64 (n,)."""
    values, times = np.unique(np.concatenate([NONE, *parts]), return_counts=True)
    return values[times == 1]


def text_prints(texts: Iterable[str], key: bytes) -> np.ndarray:
    """Sorted fingerprints of the long texts that occur once, uint64 (n,)."""
    return single_prints([all_prints(texts, key)])


def id_prints(ids: Iterable[str], key: bytes) -> np.ndarray:
    """Sorted distinct fingerprints of ids, uint64 (n,); that of no text is among them."""
    return np.unique(_digests(ids, key, b"id"))


def _digests(values: Iterable[str], key: bytes, person: bytes = b"") -> np.ndarray:
    made = (
        hashlib.blake2b(value.encode(), digest_size=_BYTES, key=key, person=person).digest()
        for value in values
    )
    return np.frombuffer(b"".join(made), dtype=">u8").astype(np.uint64)


def refuse_private_table(texts: Iterable[str], field: str) -> None:
    """Refuses a table of public texts that a cohort of this installation has read as records.

    Args:
        texts: All its texts.
        field: What names the table, for the message.

    Raises:
        PrivacyError: A large part of it was read; the message names no cohort.
    """
    private = home().sensitive
    if Fingerprints(files_below(private), private).holds_most_of(texts):
        raise PrivacyError(
            f"{field}: expected text that anyone may read, got a table of which a cohort of this "
            "installation has read a large part. Results from this text are shown without noise: "
            "name public text."
        )


def store_key(files: PrivateFiles, base: Folder) -> bytes:
    """Reads the random key, 32 bytes, of the store below `base`; makes it where there is none."""
    return kept_key(files, base / FOLDER / _KEY)


def refuse_unmatched(spec: PrivateDatasetSpec, prints: Prints, key: bytes) -> None:
    """Refuses listed ids that no record has: a record under another spelling would be certain."""
    if spec.secrets is None or not spec.secrets.public_incidence:
        return
    from dpsynth_assets.methods.evolution.secret_incidence import read_public_incidence

    listed = id_prints(read_public_incidence(spec.secrets).record_ids, key)
    if not np.isin(listed, NONE if prints.ids is None else prints.ids).all():
        raise PrivacyError(
            "secrets.public_incidence: expected ids of records of the dataset, got ids of no "
            "record, or of no record that is used. Nothing was charged: list the ids of "
            f"columns.id ({spec.columns.id!r}) as the source has them, and no others."
        )


def shared_records(reader: Reader, other: str) -> str:
    """Says in one line that another cohort has read records of a cohort."""
    return (
        "source.path: expected records that no other account pays for, got some that cohort "
        f"{other!r} has read: {reader.cohort!r} would spend a second budget on them. Which cohort "
        "a record is in may never change: restore its date or file; of two datasets, write "
        "`shares_records_with` in the second's file. If nothing was released from "
        f"{other!r}, run `dpsynth purge {other}`."
    )


def shares_records(first: np.ndarray, second: np.ndarray) -> bool:
    """Says whether sorted distinct fingerprints have enough in common to be of the same records."""
    smaller = min(len(first), len(second))
    common = len(np.intersect1d(first, second, assume_unique=True))
    return (common >= MANY and common >= SHARE * smaller) or (
        common >= FEW and common >= HALF * smaller
    )
