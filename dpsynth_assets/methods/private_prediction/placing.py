"""Places of private records in batches, contexts and slots.

By the keyed hash of its id a record's place is a function of that record alone: one record added or
removed changes exactly one batch (Assumption 1 of Amin 2024) and leaves every other record where it
was. In slots it is the record's public place among those of its cell.

A placed record is a row of `PLACED`. Whoever placed it and in whatever order rows come, the batches
they make are the same to the last bit. So records may be placed part by part, and each batch be
filled by the process that decodes it.

Letters: N records, s contexts in a batch, k records in a context, b batches of a cell.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.private_prediction.batching import (
    Batch,
    BatchCell,
    PrivateBatch,
    first_batches,
    proportional_shares,
)
from dpsynth_assets.privacy.batch_terms import row_key

if TYPE_CHECKING:
    import polars as pl

_PERSON = b"dpsynth-batches"

Cell = tuple[int, int | None]
"""Index of a label, and of a public centre or None."""

_Named = tuple[str | int, tuple[str, ...]]
"""What names a context within its batch, and its k texts."""

_PlacedRow = tuple[int, int, int, str, str]
"""Batch, context and slot of a record, its id and its text."""


def placed_table(rows: Iterable[_PlacedRow]) -> "pl.DataFrame":
    """Makes a table of placed records: `batch`, `context`, `slot`, `record_id`, `text`."""
    import polars as pl

    numbers = dict.fromkeys(("batch", "context", "slot"), pl.Int64)
    words = dict.fromkeys(("record_id", "text"), pl.String)
    schema: dict[str, Any] = {**numbers, **words}
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema)


def hashed_places(
    records: "pl.DataFrame",
    labels: np.ndarray,
    clusters: np.ndarray | None,
    cells: Sequence[BatchCell],
    *,
    expected_batch_size: int,
    examples_per_context: int,
    salt: str,
) -> "pl.DataFrame":
    """Places those of N records whose batch generates, by the keyed hash of their ids.

    Args:
        records: N rows with `record_id` and `text`.
        labels: (N,) index of each record's declared label, -1 where it has none of them.
        clusters: (N,) index of each record's public centre; None for uniform batches.
        cells: Public cells; together they list every batch, in order.
        expected_batch_size: s.
        examples_per_context: k.
        salt: Public key of the hash.

    **Privacy** Adding, removing or nulling one record changes the contexts of one batch at most, by
    one context: with k = 1 the record is its own context; with k >= 2 it fills, or doubly occupies,
    one slot of one context (the drop rule of `filled_batches`). A replaced record changes at most
    two.

    **Source** Amin et al. 2025, Eq. (2), with a hash for the random r. The papers' fixed-size
    chunks and `h mod n/s` move most records when one is added (errata B-000.2, B-001.2).
    """
    sizes = {_key(cell.label, cell.cluster): cell for cell in cells}
    first = dict(zip(sizes, first_batches([cell.generating for cell in cells]), strict=True))
    key = hashlib.blake2b(salt.encode()).digest()
    cluster_of = _clusters_or_none(labels, clusters)
    columns = zip(
        labels.tolist(), cluster_of.tolist(), records["record_id"], records["text"], strict=True
    )
    rows: list[_PlacedRow] = []
    for label, cluster, record_id, text in columns:
        cell = sizes.get((label, cluster))
        if cell is None or not text.strip():
            continue  # A null record takes no place: in one it would replace what it was.
        batch, context, slot = place_record(
            record_id, cell.batches, expected_batch_size, examples_per_context, key
        )
        if batch < cell.generating:  # [amin2024 A1:L2] [amin2025 A1:L3]
            rows.append((first[label, cluster] + batch, context, slot, record_id, text))
    return placed_table(rows)


def place_record(
    record_id: str, batches: int, expected_batch_size: int, examples_per_context: int, key: bytes
) -> tuple[int, int, int]:
    """Hashes a record id to (batch < b, context < s, slot < k), independent of all else."""
    digest = hashlib.blake2b(record_id.encode(), key=key, person=_PERSON, digest_size=24).digest()
    batch, context, slot = (int.from_bytes(digest[i : i + 8]) for i in (0, 8, 16))
    return batch % batches, context % expected_batch_size, slot % examples_per_context


def cell_numbers(
    labels: np.ndarray, clusters: np.ndarray | None, cells: Sequence[Cell]
) -> np.ndarray:
    """Finds the cell of each of N records: (N,) int64 indices into `cells`, -1 where it has none.

    Null records have one, too.
    """
    cluster_of = _clusters_or_none(labels, clusters)
    own = np.full(len(labels), -1, dtype=np.int64)
    for number, (label, cluster) in enumerate(cells):
        own[(labels == label) & (cluster_of == _key(label, cluster)[1])] = number
    return own


def slot_shares(counts: np.ndarray, size: int, max_batches: int) -> list[int]:
    """Counts the full batches of `size` records of each cell, cut down to `max_batches` in all."""
    return proportional_shares([int(count) // size for count in counts], max_batches)


def listed_batches(cells: Sequence[Cell], shares: Sequence[int]) -> list[Batch]:
    """Lists the batches of cells of which so many generate."""
    owners = [cell for cell, share in zip(cells, shares, strict=True) for _ in range(share)]
    return [
        Batch(index=index, label=label, cluster=cluster)
        for index, (label, cluster) in enumerate(owners)
    ]


def slot_places(
    records: "pl.DataFrame",
    *,
    first_batch: int,
    batches: int,
    expected_batch_size: int,
    examples_per_context: int,
) -> "pl.DataFrame":
    """Places the records of one cell, in their public order, in full batches of s contexts.

    What does not fill a batch is left out. A null record, one of blank text, keeps its place.

    **Privacy** For zero-out neighbours where label, cluster and place of every record are public
    (`public_facts.slots`): a null record keeps its place and its context is left out, so one record
    toggles one context, for every k; batches and their number are public.

    **Source** Amin et al. 2025, section 6.1, whose fixed-size batches are sound only for these
    neighbours (errata B-000.2, design Z).

    Args:
        records: All records of the cell, or as many of the first as its batches hold.
        first_batch: Index of the cell's first batch.
        batches: Batches of the cell that are filled.
        expected_batch_size: s.
        examples_per_context: k.
    """
    size = expected_batch_size * examples_per_context
    chosen = records.head(batches * size)
    rows: list[_PlacedRow] = []
    for number, named in enumerate(zip(chosen["record_id"], chosen["text"], strict=True)):
        batch, place = divmod(number, size)
        slot = place % examples_per_context
        rows.append((first_batch + batch, place - slot, slot, *named))
    return placed_table(rows)


def filled_batches(
    batches: Sequence[Batch],
    placed: "pl.DataFrame",
    *,
    examples_per_context: int,
    named_by_record: bool,
) -> list[PrivateBatch]:
    """Fills batches with the records that are placed in them.

    Args:
        batches: All batches of the run, or those of a pass.
        placed: Their records (`placed_table`), in any order.
        examples_per_context: k.
        named_by_record: Whether a context is its record's, whatever its number; else the drop rule
            holds and its number names it.

    **Privacy** A batch is a function of its own records as a set (with multiplicity): neither their
    order nor who placed them shows in it.
    """
    by_batch: dict[int, list[tuple[int, int, str, str]]] = defaultdict(list)
    for batch, *place in placed.iter_rows():
        by_batch[batch].append((place[0], place[1], place[2], place[3]))
    filled = []
    for batch in batches:
        rows = by_batch[batch.index]
        named = _by_record(rows) if named_by_record else _by_number(rows, examples_per_context)
        filled.append(_filled(batch, named))
    return filled


def _by_record(placed: Sequence[tuple[int, int, str, str]]) -> list[_Named]:
    """Makes each record a context that is named by its id.

    Records of one content share an id where none is declared: a running number tells them apart,
    so that one more of them adds the last number and renames none.
    """
    seen: Counter[str] = Counter()
    named: list[_Named] = []
    for _, _, record_id, text in sorted(placed, key=lambda row: row[2:]):
        seen[record_id] += 1
        named.append((f"{seen[record_id]} of {record_id}", (text,)))
    return named


def _by_number(
    placed: Sequence[tuple[int, int, str, str]], examples_per_context: int
) -> list[_Named]:
    """Applies the drop rule: a context counts iff each of its k slots holds exactly one record.

    A context with a null record counts for nothing. Each is named by its number in the batch.
    """
    slots: dict[int, dict[int, list[str]]] = {}
    for context, slot, _, text in placed:
        slots.setdefault(context, {}).setdefault(slot, []).append(text)
    return [
        (number, tuple(by_slot[slot][0] for slot in range(examples_per_context)))
        for number, by_slot in sorted(slots.items())
        if len(by_slot) == examples_per_context
        and all(len(texts) == 1 and texts[0].strip() for texts in by_slot.values())
    ]


def _filled(batch: Batch, named: list[_Named]) -> PrivateBatch:
    return PrivateBatch(
        index=batch.index,
        label=batch.label,
        cluster=batch.cluster,
        contexts=tuple(texts for _, texts in named),
        keys=tuple(row_key(batch.index, name) for name, _ in named),
    )


def _clusters_or_none(labels: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
    return clusters if clusters is not None else np.full(len(labels), -1)


def _key(label: int, cluster: int | None) -> tuple[int, int]:
    return label, -1 if cluster is None else cluster
