"""The released histogram over labels and public clusters, and its two-step mechanism.

Letters: N records, K public centres, k' centres kept for a label.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, model_validator

from dpsynth_assets.datasets import HistogramSpec
from dpsynth_assets.methods.base import Staged, mechanism_of, planned
from dpsynth_assets.methods.inputs import PrivateInputs, counted_labels
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.privacy.events import ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram, scale_for
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows_of_labels
from dpsynth_assets.privacy.renyi import zcdp_epsilon

CLUSTER_HISTOGRAM = "cluster_histogram"
"""Name of the stage, and of its asset."""


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

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        shapes = [len(kept) for kept in self.centers], [len(part) for part in self.dp_counts]
        if len(self.labels) != len(self.centers) or shapes[0] != shapes[1]:
            raise ValueError(
                "Expected one list of centres and one of counts for each label, of equal lengths."
            )
        if len(self.dp_counts_before) not in (0, len(self.labels)):
            raise ValueError("Expected counts before rebalancing for all labels or for no label.")
        return self


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
        labels: L declared labels, in order.
        centers: (K, d) public centres.
        kept: For each label, indices into `centers`.
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


class ClusterHistogramRelease(Staged[HistogramSpec]):
    """The cluster histogram of a dataset, which clustered methods cut their batches by."""

    name = CLUSTER_HISTOGRAM

    def stages(self) -> tuple[Stage, ...]:
        """The two histograms, released together."""
        stage = Stage(
            name=CLUSTER_HISTOGRAM,
            title=(
                "Noisy counts per label and public cluster; the largest clusters of each label are "
                "kept and counted again (Amin et al. 2025, Section 4.1, rebalancing). Batch counts "
                "of every method come from here."
            ),
            kinds=("opendp",),
            needs_embeddings=True,
            in_parts=True,
            on_gpu=False,
            reads=frozenset({"public_clusters"}),
            draws=self.release,
            mechanism_name=f"two {self.config.noise} histograms over public clusters",
            identity=_named,
        )
        return (stage,)

    def plan(self, rho: float) -> MethodPlan:
        """Calibrates two equal histograms that cost ρ together."""
        noise = self.terms.histogram(self._scale(rho), self.config.noise)
        mechanism = ClusterCounting(
            histogram=noise,
            labels=self.terms.labels,
            clusters_per_label=self.config.clusters_per_label,
        )
        parameters = {
            "noise": self.config.noise,
            "scale": noise.scale,
            "clusters_per_label": self.config.clusters_per_label,
            "labels": list(self.terms.labels),
        }
        free = frozenset({"prompts"})  # Counting reads no prompt.
        return planned(self, {CLUSTER_HISTOGRAM: mechanism}, parameters, free=free)

    def _scale(self, rho: float) -> float:
        """Half of ρ each: ε²/2 of a pure release, Δ²/(2σ²) of a Gaussian one."""
        delta, gaussian = self.terms.delta, self.config.noise == "gaussian"
        epsilon = zcdp_epsilon(rho, delta) if gaussian else math.sqrt(rho)
        each = scale_for(self.terms.histogram(1.0, self.config.noise), epsilon, delta)
        return math.sqrt(2) * each if gaussian else each

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Releases both histograms; see `ClusterCounting`."""
        mechanism = mechanism_of(run.stage, ClusterCounting)
        made = mechanism.release(run.private, run.public.required("cluster_centers"))
        return Release(value=StageRelease(facts=made.value.model_dump(mode="json")), cost=made.cost)


def _named(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Names the centres in the ledger as ledgers have from the first."""
    return {"public_clusters": inputs.get("public_clusters", "")}
