"""The two histograms that methods of a dataset share: over public clusters, and over public topics.

Batches are cut by the one, and corpora are written in the proportions of the other.

Letters: N records, L labels; K public centres, k' of them kept for a label; or K topics, and bin K
for records that no topic fits.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from dpsynth_assets.datasets import HistogramSpec, TopicHistogramSpec
from dpsynth_assets.methods.base import ConfigT, Staged, mechanism_of, planned
from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, counted_labels
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.privacy.events import ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram, scale_for
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows_of_labels
from dpsynth_assets.privacy.renyi import zcdp_epsilon

if TYPE_CHECKING:
    from dpsynth_assets.models.topic_model.model import TopicModel

CLUSTER_HISTOGRAM, TOPIC_HISTOGRAM = "cluster_histogram", "topic_histogram"
"""Names of the stages, and of their assets."""


class ClusterHistogram(BaseModel, frozen=True):
    """Noisy record counts by label and kept centre. Released; safe to store and to print.

    Attributes:
        labels: Declared labels, in order.
        centers: For each label the kept centres, as indices into the K public centres.
        dp_counts: Noisy counts aligned with `centers`, after records were assigned to kept centres
            only; may be negative.
        dp_counts_before: For each label the noisy counts of all K public centres, from which the
            kept ones were chosen; empty unless asked for.
    """

    labels: tuple[str, ...]
    centers: tuple[tuple[int, ...], ...]
    dp_counts: tuple[tuple[int, ...], ...]
    dp_counts_before: tuple[tuple[int, ...], ...] = ()


def assign_clusters(
    embeddings: np.ndarray, labels: np.ndarray, centers: np.ndarray, kept: Sequence[Sequence[int]]
) -> np.ndarray:
    """Assigns each record to the nearest of its label's kept centres.

    Args:
        embeddings: (N, d), unit length.
        labels: (N,) label indices; records at -1 are assigned nothing.
        centers: (K, d), unit length, public.
        kept: For each label, indices into `centers`.

    Returns:
        (N,) indices into `centers`, -1 where the label is none or keeps no centre.

    **Privacy** Reads one record and public centres: other records do not matter.
    """
    public = PublicRows(centers, distance=False)
    groups = {label: public.group(np.asarray(chosen, int)) for label, chosen in enumerate(kept)}
    return nearest_rows_of_labels(np.asanyarray(embeddings), labels, public, groups)


def count_by_label_and_center(
    labels: np.ndarray, clusters: np.ndarray, n_labels: int, n_centers: int
) -> np.ndarray:
    """Counts records: (n_labels, n_centers) int64; records at -1 are not counted. Private."""
    counted = (labels >= 0) & (clusters >= 0)
    cells = labels[counted] * n_centers + clusters[counted]
    return np.bincount(cells, minlength=n_labels * n_centers).reshape(n_labels, n_centers)


def select_top_centers(dp_counts: np.ndarray, clusters_per_label: int) -> list[list[int]]:
    """Keeps each label's k' largest noisy counts: (labels, K) -> ascending centre indices.

    **Source** Amin et al. 2025, section 4.1, "public centers with rebalancing", within each label.
    **Privacy** Post-processing of the whole noisy histogram.
    """
    order = np.argsort(-np.asarray(dp_counts), axis=1, kind="stable")
    return [sorted(row[:clusters_per_label].tolist()) for row in order]


@dataclass(frozen=True, kw_only=True)
class CellCounts:
    """Counts records by label and nearest kept centre, for `PrivateInputs.counted`.

    Attributes:
        kept: For each label, indices into the (K, d) public centres.
    """

    labels: tuple[str, ...]
    centers: np.ndarray
    kept: Sequence[Sequence[int]]

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (L, K) int64; private.

        Raises:
            ValueError: If there are no embeddings.
        """
        own = counted_labels(private.records, self.labels)
        clusters = assign_clusters(private.vectors, own, self.centers, self.kept)
        return count_by_label_and_center(own, clusters, len(self.kept), len(self.centers))


@dataclass(frozen=True, kw_only=True)
class ClusterCounting:
    """Two noisy histograms over labels and public centres: of all centres, then of the kept ones.

    Attributes:
        histogram: Noise and price of each of the two.
        labels: Declared labels, in order.
        clusters_per_label: k', public.

    **Privacy** Two histograms of one (label, centre) cell a record, hence of L1 and L2
    sensitivity 1 under add/remove and zero-out: a null record counts nowhere. Their events are
    composed, so both may be kept and shown. The second is needed because re-assignment changes
    every count, and batch numbers must come from released numbers.

    **Source** Amin et al. 2025, section 4.1, "public centers with rebalancing", whose batches are
    then cut by private counts (errata B-000.2); ours are cut by the second histogram.
    """

    histogram: NoisyHistogram
    labels: tuple[str, ...]
    clusters_per_label: int

    def event(self) -> Event:
        """Prices both histograms, composed."""
        return ComposedEvent(events=(self.histogram.event(), self.histogram.event()))

    def release(self, private: PrivateInputs, centers: np.ndarray) -> Release[ClusterHistogram]:
        """Counts with noise, keeps the k' fullest centres of each label, counts again with noise.

        Args:
            private: Records with `label`, and their embeddings.
            centers: (K, d) public centres.

        Raises:
            ValueError: If there are no embeddings.
        """

        def noisy_counts(kept: Sequence[Sequence[int]]) -> Release[np.ndarray]:
            counts = private.counted(CellCounts(labels=self.labels, centers=centers, kept=kept))
            return self.histogram.release(
                [int(row[i]) for row, chosen in zip(counts, kept, strict=True) for i in chosen]
            )

        first = noisy_counts([list(range(len(centers)))] * len(self.labels))
        dp_counts = first.value.reshape(len(self.labels), len(centers))
        kept = select_top_centers(dp_counts, self.clusters_per_label)
        second, ends = noisy_counts(kept), np.cumsum([len(chosen) for chosen in kept])[:-1]
        histogram = ClusterHistogram(
            labels=self.labels,
            centers=kept,
            dp_counts=[each.tolist() for each in np.split(second.value, ends)],
            dp_counts_before=dp_counts.tolist(),
        )
        return Release(value=histogram, cost=Cost(guarantee=GuaranteeType.DP, event=self.event()))


class TopicHistogram(BaseModel, frozen=True):
    """Noisy record counts by label and topic. Released; safe to store and to print.

    Attributes:
        labels: Declared labels, in order; ("",) where there are none.
        dp_counts: L rows of K + 1 noisy counts, the last of each row unclassified; may be negative.
        noise_std: Public standard deviation of the noise on each count (records).
    """

    labels: tuple[str, ...]
    dp_counts: tuple[tuple[int, ...], ...]
    noise_std: float

    @property
    def bins(self) -> int:
        """K + 1: topics and the unclassified bin."""
        return len(self.dp_counts[0])

    def proportions(self) -> np.ndarray:
        """Estimates each cell's share of the records.

        Returns:
            float64 (L, K + 1), non-negative, summing to 1 over all labels and topics: the nearest
            counts of the same total (`project_to_total`). Uniform if nothing is left.

        **Privacy** Post-processing of noisy counts and public numbers.

        Counts clamped at 0 would bring .4 standard deviations of records that do not exist to each
        empty cell. One amount is subtracted from all instead, so that the total stays: no multiple
        of the noise did as well (`benchmarks/topic_model.py --denoising`).
        """
        dp_counts = np.asarray(self.dp_counts, dtype=np.float64)
        kept = project_to_total(dp_counts.ravel(), dp_counts.sum()).reshape(dp_counts.shape)
        total = kept.sum()
        return kept / total if total > 0 else np.full(kept.shape, 1.0 / kept.size)

    def allocate(self, rows: int, seed: int) -> np.ndarray:
        """Shares out rows over cells in proportion: int64 (L, K + 1) summing to `rows`.

        Each cell gets its quota rows x share rounded down or up, and so does each label; over seeds
        the expectation is the quota. (Largest remainders would never give cells of small quotas
        any row.)
        """
        ends = np.cumsum(self.proportions().ravel())
        # One point in each unit of the quotas' line: points start + 0, start + 1, ...
        start = np.random.default_rng(seed).random()
        before = np.ceil(np.append(ends[:-1] / ends[-1] * rows, rows) - start)
        counts = np.diff(np.clip(before, 0, rows), prepend=0.0)
        return counts.astype(np.int64).reshape(len(self.labels), self.bins)

    def sample_cells(self, rows: int, seed: int) -> np.ndarray:
        """Names the cell of each row to be written, in an order that mixes cells.

        Returns:
            int64 (rows, 2): label index in [0, L) and topic in [0, K]. Equal arguments give equal
            cells: the seed, of rounding and order, is public.

        **Source** Tan et al. 2025, section 3.4 [ctcl S3.4].
        """
        counts = self.allocate(rows, seed)
        cells = np.repeat(np.arange(counts.size), counts.ravel())
        np.random.default_rng([seed, rows]).shuffle(cells)
        return np.stack(np.divmod(cells, self.bins), axis=1)


def project_to_total(dp_counts: np.ndarray, total: float) -> np.ndarray:
    """Finds the nearest non-negative counts of a given sum, in Euclidean distance.

    Returns:
        (M,) max(dp_counts - t, 0), with t such that they sum to `total`; without a positive total,
        the counts clamped at 0.

    **Source** Duchi, Shalev-Shwartz, Singer, Chandra 2008 (projection onto the simplex).
    """
    if total <= 0:
        return np.maximum(dp_counts, 0.0)
    descending = np.sort(dp_counts)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(descending) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.maximum(dp_counts - excess[last], 0.0)


@dataclass(frozen=True, kw_only=True)
class TopicCounts:
    """Counts records by label and topic of a public model, for `PrivateInputs.counted`."""

    labels: tuple[str, ...]
    topic_model: "TopicModel"

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (L * bins,) int64, label by label; private.

        Raises:
            ValueError: There are no embeddings, or they do not match the records or the topics.
        """
        topics, bins = self.topic_model.assign(private.vectors), self.topic_model.bins
        label_of = counted_labels(private.records, self.labels)
        cells = (label_of * bins + topics)[label_of != UNCOUNTED]
        return np.bincount(cells, minlength=len(self.labels) * bins)


@dataclass(frozen=True, kw_only=True)
class TopicCounting:
    """One noisy histogram over labels and public topics, unclassified records included.

    Attributes:
        histogram: Noise and price.
        labels: Declared labels, in order.

    **Privacy** The cells are public: declared labels times the bins of a public model. A record's
    cell depends on that record alone, so a record that enters or leaves moves one cell by one: L2
    sensitivity 1 under add/remove and zero-out, √2 under replace-one, times the records of a unit
    (`privacy.histogram.l2_sensitivity`). The label is inside the histogram, so that it costs no
    release of its own. Records under an undeclared label and null records are counted nowhere.

    **Source** Tan et al. 2025, section 3.3 [ctcl S3.3] and appendix F; appendix E for the
    noise. The paper draws floating-point noise under a fixed seed (errata B-002.2); ours is
    integer, from the operating system.
    """

    histogram: NoisyHistogram
    labels: tuple[str, ...]

    def event(self) -> Event:
        """Prices the histogram: one Gaussian event."""
        return self.histogram.event()

    def release(self, private: PrivateInputs, topic_model: "TopicModel") -> Release[TopicHistogram]:
        """Counts records by label and topic and adds noise to each cell.

        Raises:
            ValueError: There are no embeddings, or they do not match the records or the topics.
        """
        counts = private.counted(TopicCounts(labels=self.labels, topic_model=topic_model))
        made = self.histogram.release(counts)
        rows = made.value.reshape(len(self.labels), topic_model.bins).tolist()
        histogram = TopicHistogram(
            labels=self.labels,
            dp_counts=rows,
            noise_std=float(self.histogram.scale),
        )
        return Release(value=histogram, cost=made.cost)


class SharedHistogram(Staged[ConfigT]):
    """One paid stage that counts records in cells of labels and of something public."""

    title: ClassVar[str]
    counting: ClassVar[type[Any]]
    """Its mechanism, whose `release` takes records and what the cells are made of."""
    reads: ClassVar[str]
    """Asset of what the cells are made of, and beside it its place in `PublicInputs`."""
    cells: ClassVar[str]
    free_settings = frozenset({"prompts"})  # Counting reads no prompt.

    @property
    @abstractmethod
    def mechanism_name(self) -> str:
        """Name of the mechanism in the ledger."""

    @abstractmethod
    def named(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Names what the cells are made of as ledgers have from the first."""

    def stages(self) -> tuple[Stage, ...]:
        """The histogram."""
        stage = Stage(
            name=self.name,
            title=self.title,
            kinds=("opendp",),
            needs_embeddings=True,
            in_parts=True,
            on_gpu=False,
            reads=frozenset({self.reads}),
            draws=self.release,
            mechanism_name=self.mechanism_name,
            identity=self.named,
        )
        return (stage,)

    def priced(self, mechanism: Any, parameters: Mapping[str, Any]) -> MethodPlan:
        """Plans it with its mechanism."""
        labelled = {**parameters, "labels": list(self.terms.labels)}
        return planned(self, {self.name: mechanism}, labelled)

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Counts with noise; see the mechanism."""
        mechanism = mechanism_of(run.stage, self.counting)
        made = mechanism.release(run.private, run.public.required(self.cells))
        return Release(value=StageRelease(facts=made.value.model_dump(mode="json")), cost=made.cost)


class ClusterHistogramRelease(SharedHistogram[HistogramSpec]):
    """The cluster histogram of a dataset, which clustered methods cut their batches by."""

    name = CLUSTER_HISTOGRAM
    title = (
        "Noisy counts per label and public cluster; the largest clusters of each label are "
        "kept and counted again (Amin et al. 2025, Section 4.1, rebalancing). Batch counts "
        "of every method come from here."
    )
    counting, reads, cells = ClusterCounting, "public_clusters", "cluster_centers"

    @property
    def mechanism_name(self) -> str:
        """Says which noise."""
        return f"two {self.config.noise} histograms over public clusters"

    def named(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Names the centres."""
        return {"public_clusters": inputs.get("public_clusters", "")}

    def plan(self, rho: float) -> MethodPlan:
        """Calibrates two equal histograms that cost ρ together."""
        noise = self.terms.histogram(self._scale(rho), self.config.noise)
        kept = self.config.clusters_per_label
        mechanism = ClusterCounting(
            histogram=noise, labels=self.terms.labels, clusters_per_label=kept
        )
        parameters = {"noise": self.config.noise, "scale": noise.scale, "clusters_per_label": kept}
        return self.priced(mechanism, parameters)

    def _scale(self, rho: float) -> float:
        """Half of ρ each: ε²/2 of a pure release, Δ²/(2σ²) of a Gaussian one."""
        delta, gaussian = self.terms.delta, self.config.noise == "gaussian"
        epsilon = zcdp_epsilon(rho, delta) if gaussian else math.sqrt(rho)
        each = scale_for(self.terms.histogram(1.0, self.config.noise), epsilon, delta)
        return math.sqrt(2) * each if gaussian else each


class TopicHistogramRelease(SharedHistogram[TopicHistogramSpec]):
    """The topic histogram of a dataset, in whose proportions corpora are written."""

    name = TOPIC_HISTOGRAM
    title = (
        "Noisy counts per label and public topic, unclassified records included "
        "(Tan et al. 2025, Section 3.3). Corpora are written in its proportions."
    )
    counting, reads, cells = TopicCounting, "topic_model", "topic_model"
    mechanism_name = "gaussian histogram over public topics"

    def named(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Names the topics."""
        return {"inputs": dict(inputs)}

    def plan(self) -> MethodPlan:
        """Prices the declared noise."""
        noise_std = self.config.noise_std
        mechanism = TopicCounting(
            histogram=self.terms.histogram(noise_std), labels=self.terms.labels
        )
        return self.priced(mechanism, {"noise_std": noise_std})
