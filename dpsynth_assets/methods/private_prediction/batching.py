"""Places of private records in batches, contexts and slots: each a function of that record alone.

Batches are cells (label, public cluster) cut by a keyed hash of the record's id. Their number
comes from released or declared numbers, never from private records, so one record added or removed
changes exactly one batch (Assumption 1 of Amin 2024) and leaves every other record where it was.

Letters: N records, s contexts in a batch, k records in a context, b batches of a cell.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.methods.cluster_histogram import ClusterHistogram
from dpsynth_assets.privacy.forward_passes import row_key

if TYPE_CHECKING:
    import polars as pl

_PERSON = b"dpsynth-batches"

_Named = tuple[str | int, tuple[str, ...]]
"""What names a context within its batch, and its k texts."""


@dataclass(frozen=True, kw_only=True)
class BatchCell:
    """The batches of one (label, cluster).

    Attributes:
        label: Index into the declared labels.
        cluster: Index of a public centre; None where batches are uniform within the label.
        batches: b, the modulus of the hash.
        generating: How many of them generate, the first ones; at most b.
    """

    label: int
    cluster: int | None
    batches: int
    generating: int


@dataclass(frozen=True, kw_only=True)
class PrivateBatch:
    """One batch that generates, with the contexts the hash put there.

    Attributes:
        index: Position among all generating batches.
        label: Index into the declared labels.
        cluster: Index of a public centre, or None.
        contexts: Any number of contexts (private, also in number), each of k texts.
        keys: For each context what names it (`row_key`), whatever other contexts there are.
    """

    index: int
    label: int
    cluster: int | None
    contexts: tuple[tuple[str, ...], ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)


def batch_counts(
    histogram: ClusterHistogram,
    *,
    expected_batch_size: int,
    examples_per_context: int,
    max_batches: int,
) -> tuple[BatchCell, ...]:
    """Decides from released counts how many batches each (label, cluster) is cut into.

    A cell gets round(count / (s k)) batches, so a cell below half a batch gets none; when there
    are more than `max_batches`, that many generate, in proportion.

    Returns:
        Cells with at least one batch, in the histogram's order.

    Raises:
        ValueError: If no released count reaches half a batch.

    **Privacy** Post-processing of a released histogram.
    """
    size = expected_batch_size * examples_per_context
    cells = [
        (label, center, int(count / size + 0.5))
        for label, (centers, counts) in enumerate(
            zip(histogram.centers, histogram.dp_counts, strict=True)
        )
        for center, count in zip(centers, counts, strict=True)
        if count > 0 and int(count / size + 0.5) > 0
    ]
    if not cells:
        raise ValueError(
            f"Expected a released cluster count of at least {size / 2:g} records (half a batch), "
            "got none. Lower expected_batch_size or clusters_per_label."
        )
    return _with_shares(cells, max_batches)


def uniform_batch_counts(
    labels: int, batches_per_label: int, max_batches: int
) -> tuple[BatchCell, ...]:
    """Cuts every label into the same public number of batches, without clusters."""
    cells = [(label, None, batches_per_label) for label in range(labels)]
    return _with_shares(cells, max_batches)


def label_batch_counts(
    histogram: ClusterHistogram,
    *,
    expected_batch_size: int,
    examples_per_context: int,
    max_batches: int,
) -> tuple[BatchCell, ...]:
    """Cuts every label into as many uniform batches as its released counts add up to.

    A label gets round(count / (s k)) batches, at least one.

    **Privacy** Post-processing of a released histogram.
    """
    size = expected_batch_size * examples_per_context
    cells = [
        (label, None, max(1, int(sum(counts) / size + 0.5)))
        for label, counts in enumerate(histogram.dp_counts)
    ]
    return _with_shares(cells, max_batches)


def assign_records(
    records: "pl.DataFrame",
    labels: np.ndarray,
    clusters: np.ndarray | None,
    cells: Sequence[BatchCell],
    *,
    expected_batch_size: int,
    examples_per_context: int,
    salt: str,
) -> list[PrivateBatch]:
    """Puts records into the generating batches.

    Args:
        records: N rows with `record_id` and `text`.
        labels: (N,) index of each record's declared label, -1 where it has none of them.
        clusters: (N,) index of each record's public centre; None for uniform batches.
        cells: Public cells; together they list every batch.
        expected_batch_size: s.
        examples_per_context: k.
        salt: Public key of the hash.

    Returns:
        One batch for each generating (cell, hash), empty ones included, in the cells' order.

    **Privacy** Adding, removing or nulling one record changes the contexts of one batch at most, by
    one context: with k = 1 the record is its own context; with k >= 2 it fills, or doubly occupies,
    one slot of one context (the drop rule). A replaced record changes at most two.

    **Source** Amin et al. 2025, Eq. (2), with a hash for the random r. The papers' fixed-size
    chunks and `h mod n/s` move most records when one is added (errata B-000.2, B-001.2).
    """
    first = dict(zip(_keys(cells), _first_indices(cells), strict=True))
    sizes = {_key(cell): cell for cell in cells}
    key = hashlib.blake2b(salt.encode()).digest()
    placed: list[list[tuple[int, int, str, str]]] = [[] for _ in range(_total(cells))]
    cluster_of = clusters if clusters is not None else np.full(len(records), -1)
    columns = zip(
        labels.tolist(), cluster_of.tolist(), records["record_id"], records["text"], strict=True
    )
    for label, cluster, record_id, text in columns:
        cell = sizes.get((label, cluster))
        if cell is None or not text.strip():
            continue  # A null record takes no place: in one it would replace what it was.
        batch, context, slot = place_record(
            record_id, cell.batches, expected_batch_size, examples_per_context, key
        )
        if batch < cell.generating:  # [amin2024 A1:L2] [amin2025 A1:L3]
            placed[first[label, cluster] + batch].append((context, slot, record_id, text))
    return _batches(cells, [_contexts(part, examples_per_context) for part in placed])


def fill_slots(
    records: "pl.DataFrame",
    labels: np.ndarray,
    clusters: np.ndarray | None,
    cells: Sequence[tuple[int, int | None]],
    *,
    expected_batch_size: int,
    examples_per_context: int,
    max_batches: int,
) -> list[PrivateBatch]:
    """Puts the records of each cell, in their public order, into full batches of s contexts.

    What does not fill a batch is left out. When there are more than `max_batches`, that many are
    kept, in proportion to the cells. A null record, one of blank text, keeps its place.

    Args:
        records: N rows with `text`, in public order.
        labels: (N,) index of each record's declared label, -1 where it has none of them.
        clusters: (N,) index of each record's public centre; None for uniform batches.
        cells: (label, cluster) pairs to fill, in order.
        expected_batch_size: s.
        examples_per_context: k.
        max_batches: Most batches.

    **Privacy** For zero-out neighbours where label, cluster and place of every record are public
    (`public_facts.slots`): a null record keeps its place and its context is left out, so one record
    toggles one context, for every k; batches and their number are public.

    **Source** Amin et al. 2025, section 6.1, whose fixed-size batches are sound only for these
    neighbours (errata B-000.2, design Z).
    """
    size = expected_batch_size * examples_per_context
    cluster_of = clusters if clusters is not None else np.full(len(records), -1)
    members = [
        np.flatnonzero((labels == label) & (cluster_of == (-1 if cluster is None else cluster)))
        for label, cluster in cells
    ]
    shares = _proportional([len(rows) // size for rows in members], max_batches)
    texts = records["text"]
    filled: list[PrivateBatch] = []
    for (label, cluster), rows, share in zip(cells, members, shares, strict=True):
        for start in range(0, share * size, size):
            chunk = [texts[int(row)] for row in rows[start : start + size]]
            named = _contexts_in_order(chunk, examples_per_context)
            filled.append(_batch(len(filled), label, cluster, named))
    return filled


def place_record(
    record_id: str, batches: int, expected_batch_size: int, examples_per_context: int, key: bytes
) -> tuple[int, int, int]:
    """Hashes a record id to (batch < b, context < s, slot < k), independent of all else."""
    digest = hashlib.blake2b(record_id.encode(), key=key, person=_PERSON, digest_size=24).digest()
    batch, context, slot = (int.from_bytes(digest[i : i + 8]) for i in (0, 8, 16))
    return batch % batches, context % expected_batch_size, slot % examples_per_context


def _contexts(placed: list[tuple[int, int, str, str]], examples_per_context: int) -> list[_Named]:
    """Applies the drop rule: a context counts iff each of its k slots holds exactly one record.

    With k = 1 a context is named by its record's id, else by its number in the batch. Records of
    one content share an id where none is declared: a running number tells them apart, so that one
    more of them adds the last number and renames none.
    """
    if examples_per_context == 1:
        seen: Counter[str] = Counter()
        named: list[_Named] = []
        for _, _, record_id, text in sorted(placed, key=lambda p: p[2:]):
            seen[record_id] += 1
            named.append((f"{seen[record_id]} of {record_id}", (text,)))
        return named
    slots: dict[int, dict[int, list[str]]] = {}
    for context, slot, _, text in placed:
        slots.setdefault(context, {}).setdefault(slot, []).append(text)
    full = [
        (number, [by_slot[slot] for slot in range(examples_per_context)])
        for number, by_slot in sorted(slots.items())
        if len(by_slot) == examples_per_context
    ]
    return [
        (number, tuple(texts[0] for texts in context))
        for number, context in full
        if all(len(texts) == 1 for texts in context)
    ]


def _contexts_in_order(texts: Sequence[str], examples_per_context: int) -> list[_Named]:
    """Cuts texts into contexts of k; a context with a null record counts for nothing."""
    starts = range(0, len(texts), examples_per_context)
    contexts = ((i, tuple(texts[i : i + examples_per_context])) for i in starts)
    return [(i, context) for i, context in contexts if all(text.strip() for text in context)]


def _batches(cells: Sequence[BatchCell], contexts: list[list[_Named]]) -> list[PrivateBatch]:
    owners = [cell for cell in cells for _ in range(cell.generating)]
    return [
        _batch(index, cell.label, cell.cluster, held)
        for index, (cell, held) in enumerate(zip(owners, contexts, strict=True))
    ]


def _batch(index: int, label: int, cluster: int | None, named: list[_Named]) -> PrivateBatch:
    return PrivateBatch(
        index=index,
        label=label,
        cluster=cluster,
        contexts=tuple(texts for _, texts in named),
        keys=tuple(row_key(index, name) for name, _ in named),
    )


def _with_shares(
    cells: Sequence[tuple[int, int | None, int]], max_batches: int
) -> tuple[BatchCell, ...]:
    shares = _proportional([batches for _, _, batches in cells], max_batches)
    return tuple(
        BatchCell(label=label, cluster=cluster, batches=batches, generating=share)
        for (label, cluster, batches), share in zip(cells, shares, strict=True)
    )


def _proportional(counts: Sequence[int], limit: int) -> list[int]:
    """Cuts counts down to a total of at most `limit`, by largest remainders."""
    total = sum(counts)
    if total <= limit:
        return list(counts)
    shares = [count * limit // total for count in counts]
    remainders = [-(count * limit % total) for count in counts]
    for index in np.argsort(remainders, kind="stable")[: limit - sum(shares)]:
        shares[index] += 1
    return shares


def _total(cells: Sequence[BatchCell]) -> int:
    return sum(cell.generating for cell in cells)


def _first_indices(cells: Sequence[BatchCell]) -> list[int]:
    return [_total(cells[:i]) for i in range(len(cells))]


def _key(cell: BatchCell) -> tuple[int, int]:
    return cell.label, -1 if cell.cluster is None else cell.cluster


def _keys(cells: Sequence[BatchCell]) -> list[tuple[int, int]]:
    return [_key(cell) for cell in cells]
