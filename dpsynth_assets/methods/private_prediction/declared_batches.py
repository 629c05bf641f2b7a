"""Plans batches from public facts: how many there are, and how many tokens each may draw.

All of it reads settings, declared facts and released numbers, and no record. So what
may be wrong with the batches is known, and asked, before anything is charged. Batches are cells
(label, public cluster) cut by a keyed hash of the record's id (`split_batches`).

Letters: s contexts in a batch, k records in a context, b batches of a cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log, sqrt

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, label_indices
from dpsynth_assets.methods.private_prediction.config import (
    PrivatePredictionConfig,
    UniformBatchesConfig,
)
from dpsynth_assets.methods.private_prediction.decoding import require_slack
from dpsynth_assets.methods.shared_histograms import ClusterHistogram, assign_clusters
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.errors import UndeclaredPublicFactError

_RARE = log(1e9)
_ROUNDED = 1.5
"""Records of a batch, as a multiple of s, where a count is rounded down to one."""
NO_CLUSTER = -1
"""In a cluster's place, where batches do not follow clusters or a record has none."""


Cut = tuple[int, int | None, int]
"""Label, cluster or None, and batches of a cell."""


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


def batch_counts(histogram: ClusterHistogram, batch_records: int) -> list[Cut]:
    """Decides from released counts how many batches each (label, cluster) is cut into.

    A cell gets round(count / (s k)) batches, so a cell below half a batch gets none.

    Returns:
        Label, cluster and batches of cells with at least one batch, in the histogram's order.

    Raises:
        ValueError: If no released count reaches half a batch.

    **Privacy** Post-processing of a released histogram.
    """
    counted = enumerate(zip(histogram.centers, histogram.dp_counts, strict=True))
    cells: list[Cut] = [
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
    return cells


def generating_cells(cells: Sequence[Cut], max_batches: int) -> tuple[BatchCell, ...]:
    """Chooses the batches that generate: of more than `max_batches`, that many, in proportion."""
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


@dataclass(frozen=True, kw_only=True)
class RecordCells:
    """Finds labels and clusters of records. Holds public values only.

    Attributes:
        labels: Declared labels, in order.
        centers: (K, d) public centres; None where batches do not follow clusters.
        kept: For each label, indices into `centers`.
    """

    labels: tuple[str, ...]
    centers: np.ndarray | None = field(default=None, repr=False)
    kept: tuple[tuple[int, ...], ...] = ()

    def __call__(self, private: PrivateInputs) -> tuple[np.ndarray, np.ndarray]:
        """Finds (N,) indices of labels, and of centres; -1 where a record has none.

        Raises:
            ValueError: If there are centres and no embeddings.
        """
        labels = label_indices(private.records["label"], self.labels)
        if self.centers is None:
            return labels, np.full(len(labels), NO_CLUSTER)
        return labels, assign_clusters(private.vectors, labels, self.centers, self.kept)


@dataclass(frozen=True, kw_only=True)
class DeclaredBatches:
    """The batches of one method under one cohort's terms.

    Attributes:
        config: The method's settings.
        terms: The cohort's declared terms.
        clustered: Whether a batch holds records of one public cluster of a label; else of a label.
    """

    config: PrivatePredictionConfig
    terms: CohortTerms
    clustered: bool

    @property
    def in_slots(self) -> bool:
        """Whether records fill batches in their public order."""
        return self.config.batching == "slots"

    @property
    def records_per_batch(self) -> int:
        """Records from which a batch is cut: s k."""
        return self.config.expected_batch_size * self.config.examples_per_context

    @property
    def per_label(self) -> int | None:
        """Number of batches of one label; None if clustered or if nothing public gives it."""
        if not isinstance(self.config, UniformBatchesConfig):
            return None
        if self.config.batches_per_label is not None:
            return self.config.batches_per_label
        if self.terms.public_records is None:
            return None
        records = self.terms.public_records / len(self.terms.labels)
        return max(1, round(records / self.records_per_batch))

    @property
    def uses_histogram(self) -> bool:
        """Whether the number of batches comes from the released cluster histogram.

        Uniform batches need it only where neither a constant nor a declared number of records
        gives their number.
        """
        return self.clustered or (not self.in_slots and self.per_label is None)

    @cached_property
    def facts(self) -> BatchTerms:
        """Facts on which the price of a draw depends; one record toggles one context.

        **Privacy** With k >= 2 the drop rule lets one record toggle one context, so a record's
        contribution is one logit vector for every k. A replaced record may leave one batch and
        enter another, at η each; the price is 2η in one batch, which covers both.
        """
        return BatchTerms(
            expected_batch_size=self.config.expected_batch_size,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            logit_slack=self.config.logit_slack,
            batches_per_pass=self.config.batches_per_forward,
            load=self._load,
        )

    @property
    def rows_per_pass(self) -> int | None:
        """Most rows of a forward pass: those that slack is charged for; None where none can move.

        **Privacy** The exact decoder's logits follow no other row, however many share a pass.
        """
        return None if self.terms.decodes_exactly else self.facts.rows_per_pass

    @property
    def rows_at_hand(self) -> int:
        """Most contexts of one pass in all but one of 10^9: what memory and self-tests count.

        Public places fill batches exactly. Hashed ones are of Poisson size where they are full: of
        m expected contexts there are more than m + t with a chance of e^(-t²/2(m + t/3)) at most.
        Released counts are rounded to batches: of 3s/2 records one is cut. Where only the number of
        batches is public, they hold what a pass has room for.
        """
        expected = self._load * self.config.expected_batch_size * self.config.batches_per_forward
        if self.in_slots:
            return ceil(expected)
        if self.config.examples_per_context == 1 and self.uses_histogram:
            expected *= _ROUNDED
        elif self.config.examples_per_context == 1 and self.terms.public_records is None:
            return self.facts.rows_per_pass
        third = _RARE / 3
        more = third + sqrt(third**2 + 2 * _RARE * expected)
        return min(self.facts.rows_per_pass, ceil(expected + more))

    @property
    def passes(self) -> int | None:
        """Passes of a run; None where a released histogram decides."""
        batches = self._generating
        return None if batches is None else ceil(batches / self.config.batches_per_forward)

    @property
    def _load(self) -> float:
        """Records of a full batch, estimated from public facts, as a multiple of s.

        Forward passes get room for this many, and are cut where it does not do (`pass_rows`): the
        price holds for any batches, and a good estimate spares passes.

        Clustered batches, and uniform ones cut by a histogram, follow released counts: s each. Cut
        by the declared number of records, a batch holds more than s where its label has more than
        an equal part; at most all records have it. With k >= 2 it has s contexts at most. Without
        either number nothing public says more than that s are expected.
        """
        if self.in_slots or self.config.examples_per_context > 1:
            return 1.0
        if self.per_label is None or self.terms.public_records is None:
            return 1.0
        return max(1.0, self.terms.public_records / (self.per_label * self.records_per_batch))

    def rows_estimate(self, tokens: int) -> int | None:
        """Counts rows if every document ran to its greatest length: a floor, from public facts.

        Args:
            tokens: Private tokens of a batch.
        """
        if (batches := self._generating) is None:
            return None
        whole, left = divmod(tokens, self.config.max_document_tokens)
        kept = self.config.on_exhaustion == "finish_publicly"
        return batches * (whole + (kept and left >= self.config.min_tokens_for_new_document))

    @property
    def _generating(self) -> int | None:
        if self.per_label is not None:
            return min(self.config.max_batches, self.per_label * len(self.terms.labels))
        uniform = isinstance(self.config, UniformBatchesConfig)
        if uniform or self.terms.public_records is None:
            return None
        return min(self.config.max_batches, self.terms.public_records // self.records_per_batch)

    def expected_batches(self, records: int) -> int:
        """Batches that generate, as declared facts and this many records let one expect."""
        if (known := self._generating) is not None:
            return known
        return max(1, min(self.config.max_batches, records // self.records_per_batch))

    def most_batches(self, public: PublicInputs) -> int:
        """Bounds the batches that generate, from declared or released numbers."""
        if self.in_slots:
            declared = self._generating
            return self.config.max_batches if declared is None else declared
        return sum(cell.generating for cell in self.hashed_cells(public))

    def require(self, tokens: int, epsilon: float) -> None:
        """Checks that batches of this many private tokens can run.

        Raises:
            ValueError: They cannot, for a reason in public facts.
        """
        require_slack(self.terms, self.config.logit_slack)
        if tokens < self.config.min_tokens_for_new_document:
            raise ValueError(
                f"Expected at least {self.config.min_tokens_for_new_document} private tokens a "
                f"batch (min_tokens_for_new_document), got {tokens} at ε={rounded_up(epsilon)}, "
                f"δ={declared(self.terms.delta)}. "
                "Raise target_epsilon, expected_batch_size or temperature, or lower clip_bound, "
                "logit_slack or batches_per_forward."
            )
        if self.in_slots and not self.terms.public_slots:
            raise ValueError(
                "Expected public_facts.slots (label, cluster and place of every record are public) "
                "for batching: slots, got none. Declare it, or use batching: hashed."
            )
        config = self.config
        uniform = isinstance(config, UniformBatchesConfig) and config.batches_per_label is not None
        if self.in_slots and uniform:
            raise ValueError(
                "Expected no batches_per_label with batching: slots, got one: the records' places "
                "say how many batches there are. Leave it out, or use batching: hashed."
            )
        if self.uses_histogram and not self.terms.has_cluster_histogram:
            raise ValueError(
                "Expected cluster_histogram in the dataset file, which says how many batches a "
                "cluster or label has, got none. Declare it; a declared number of records will do "
                "for batches without clusters."
            )

    def check(self, public: PublicInputs) -> None:
        """Refuses declared or released numbers from which no batch can be cut.

        Raises:
            UndeclaredPublicFactError: If the places of records are not declared public.
            ValueError: If the released histogram or the centres are missing, of other labels, or
                too small for a batch.
        """
        if self.clustered:
            self._centers(public)
        if self.in_slots:
            self.slot_cells(public)
        else:
            self.hashed_cells(public)

    def record_cells(self, public: PublicInputs) -> RecordCells:
        """What finds each record's label, and its cluster where batches follow clusters."""
        if not self.clustered:
            return RecordCells(labels=self.terms.labels)
        centers, kept = self._centers(public)
        return RecordCells(labels=self.terms.labels, centers=centers, kept=kept)

    def hashed_cells(self, public: PublicInputs) -> tuple[BatchCell, ...]:
        """Decides how many batches each label, or each (label, cluster), is cut into.

        Without clusters every label gets the declared number, or as many as its released counts
        add up to, at least one. Reads public and released values only.
        """
        cells: list[Cut]
        if self.clustered:
            cells = batch_counts(self._histogram(public), self.records_per_batch)
        elif self.per_label is not None:
            cells = [(label, None, self.per_label) for label in range(len(self.terms.labels))]
        else:
            cells = [
                (label, None, max(1, int(sum(counts) / self.records_per_batch + 0.5)))
                for label, counts in enumerate(self._histogram(public).dp_counts)
            ]
        return generating_cells(cells, self.config.max_batches)

    def slot_cells(self, public: PublicInputs) -> list[tuple[int, int | None]]:
        """Lists the (label, cluster) pairs whose records fill batches in their public order."""
        if not self.terms.public_slots:
            raise UndeclaredPublicFactError(
                "Expected public_facts.slots in the dataset file for batching: slots, got none. "
                "Declare it, or use batching: hashed."
            )
        if not self.clustered:
            return [(label, None) for label in range(len(self.terms.labels))]
        _, kept = self._centers(public)
        return [(label, center) for label, own in enumerate(kept) for center in own]

    def _centers(self, public: PublicInputs) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
        """Reads the public centres (K, d), and which of them each label keeps."""
        histogram, centers = self._histogram(public), public.required("cluster_centers")
        highest = max((center for own in histogram.centers for center in own), default=-1)
        if highest >= len(centers):
            raise ValueError(
                f"Expected a histogram over the {len(centers)} public centres, got one that keeps "
                f"centre {highest}. Materialise the cluster histogram again."
            )
        return centers, histogram.centers

    def _histogram(self, public: PublicInputs) -> ClusterHistogram:
        """Reads the released histogram of this cohort."""
        histogram: ClusterHistogram = public.required("cluster_histogram")
        if histogram.labels != self.terms.labels:
            raise ValueError(
                f"Expected a histogram over the declared labels {list(self.terms.labels)}, got one "
                f"over {list(histogram.labels)}. Materialise the cluster histogram again."
            )
        return histogram
