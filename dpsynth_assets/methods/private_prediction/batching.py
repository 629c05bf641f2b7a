"""Batches that generate: how many there are, and of which cell each is, as public numbers say.

Batches are cells (label, public cluster) cut by a keyed hash of the record's id (`split_batches`).
Their number comes from released or declared numbers, never from private records.

Letters: s contexts in a batch, k records in a context, b batches of a cell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.capabilities import BATCHES, NUMBER, Candidate, DeclaredFacts
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram

BatchT = TypeVar("BatchT", bound="Batch")


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
class Batch:
    """One batch that generates; public.

    Attributes:
        index: Position among all generating batches.
        label: Index into the declared labels.
        cluster: Index of a public centre, or None.
    """

    index: int
    label: int
    cluster: int | None


@dataclass(frozen=True, kw_only=True)
class PrivateBatch(Batch):
    """One batch that generates, with its contexts.

    Attributes:
        contexts: Any number of contexts (private, also in number), each of k texts.
        keys: For each context what names it (`row_key`), independent of other contexts.
    """

    contexts: tuple[tuple[str, ...], ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Part(Generic[BatchT]):
    """Batches of one pass: `number`, index of the first, and the batches."""

    number: int
    start: int
    batches: Sequence[BatchT]

    @property
    def own(self) -> slice:
        """Its batches among those of the run."""
        return slice(self.start, self.start + len(self.batches))


def parts_of(batches: Sequence[BatchT], size: int) -> list[Part[BatchT]]:
    """Cuts batches into parts of `size`; the last may be smaller."""
    starts = range(0, len(batches), size)
    return [
        Part(number=number, start=start, batches=batches[start : start + size])
        for number, start in enumerate(starts)
    ]


def batch_counts(
    histogram: ClusterHistogram, *, batch_records: int, max_batches: int
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
    counted = enumerate(zip(histogram.centers, histogram.dp_counts, strict=True))
    cells = [
        (label, center, int(max(count, 0) / batch_records + 0.5))
        for label, (centers, counts) in counted
        for center, count in zip(centers, counts, strict=True)
    ]
    cells = [cell for cell in cells if cell[2] > 0]
    if not cells:
        raise ValueError(
            f"Expected a released cluster count of at least {batch_records / 2:g} records (half a "
            "batch), got none. Lower expected_batch_size or clusters_per_label."
        )
    return _with_shares(cells, max_batches)


def uniform_batch_counts(
    labels: int, batches_per_label: int, max_batches: int
) -> tuple[BatchCell, ...]:
    """Cuts every label into the same public number of batches, without clusters."""
    cells = [(label, None, batches_per_label) for label in range(labels)]
    return _with_shares(cells, max_batches)


def label_batch_counts(
    histogram: ClusterHistogram, *, batch_records: int, max_batches: int
) -> tuple[BatchCell, ...]:
    """Cuts every label into as many uniform batches as its released counts add up to.

    A label gets round(count / (s k)) batches, at least one.

    **Privacy** Post-processing of a released histogram.
    """
    cells = [
        (label, None, max(1, int(sum(counts) / batch_records + 0.5)))
        for label, counts in enumerate(histogram.dp_counts)
    ]
    return _with_shares(cells, max_batches)


def _with_shares(
    cells: Sequence[tuple[int, int | None, int]], max_batches: int
) -> tuple[BatchCell, ...]:
    shares = proportional_shares([batches for _, _, batches in cells], max_batches)
    return tuple(
        BatchCell(label=label, cluster=cluster, batches=batches, generating=share)
        for (label, cluster, batches), share in zip(cells, shares, strict=True)
    )


def proportional_shares(counts: Sequence[int], limit: int) -> list[int]:
    """Cuts counts down to a total of at most `limit`, by largest remainders."""
    total = sum(counts)
    if total <= limit:
        return list(counts)
    shares = [count * limit // total for count in counts]
    remainders = [-(count * limit % total) for count in counts]
    for index in np.argsort(remainders, kind="stable")[: limit - sum(shares)]:
        shares[index] += 1
    return shares


SIZES = (64, 128, 256)
"""Of the papers, in records."""


def batch_candidates(
    method: str,
    *,
    sizes: Sequence[int] = SIZES,
    settings: Mapping[str, Any] | None = None,
    **facts_of_all: Any,
) -> Callable[[DeclaredFacts], tuple[Candidate, ...]]:
    """A method's candidates, the smallest batch first: it reads the fewest contexts for a token.

    Args:
        method: Its name, which is its line on the leaderboard too.
        sizes: Records of a batch.
        settings: Further settings.
        facts_of_all: Further keywords of each `Candidate`.

    Returns:
        What `Advice.candidates` asks for.
    """

    def candidates(facts: DeclaredFacts) -> tuple[Candidate, ...]:
        lengths = (
            {}
            if facts.words is None
            else {"max_document_tokens": facts.text_tokens, "max_example_tokens": facts.text_tokens}
        )
        own = {**lengths, **(settings or {})}
        return tuple(
            Candidate(
                line=method,
                settings={"expected_batch_size": size, "max_batches": BATCHES, **own},
                batch=size,
                **{"asks": NUMBER, **facts_of_all},
            )
            for size in sizes
        )

    return candidates


def suited(pretrained: Mapping[str, Any]) -> Callable[[CohortTerms], Mapping[str, Any]]:
    """Defaults of a method by the language model of the cohort's base.

    Args:
        pretrained: Settings over a pretrained model, for whose vocabulary those of the fields,
            which suit a small one, are not made.

    Returns:
        What `Advice.defaults` asks for: nothing where no dataset file declares the base.
    """

    def defaults(terms: CohortTerms) -> Mapping[str, Any]:
        known = {} if terms.language_model is None else pretrained
        # Nothing is charged for rounding where logits are computed in exact integers.
        return {**known, **({"logit_slack": 0.0} if terms.decodes_exactly else {})}

    return defaults
