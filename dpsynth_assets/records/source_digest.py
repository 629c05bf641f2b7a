"""A keyed digest of the rows of a source: whether it holds what it held before."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import incidence_digest
from dpsynth_assets.records.columns import IS_TEXT, READABLE
from dpsynth_assets.records.record_filters import in_window

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
            "" if spec.secrets is None else incidence_digest(spec.secrets.promise),
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
