"""Differentially private k-means for comparison with public centres: a noisy coreset, clustered.

Nothing that `dpsynth_assets` releases rests on it. Its records are public text, so its noise costs
nothing: on private records, the cost that the release states would have to be charged first.
Shapes: N records, D dimensions of an embedding, d of its projection, T hyperplanes, k centres.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from dp_kmeans.noisy_coreset import CoresetMechanism, coreset_noise
from dp_kmeans.noisy_tree import NoisyCoreset, NoisyTree

from dpsynth_assets.privacy.cpu import row_sums
from dpsynth_assets.privacy.guarantees import NeighboringRelation, Release

DIMENSIONS = 32
"""d: noise on a mean grows with √d, and so does what the projection keeps of the distances."""

CELLS_PER_CLUSTER = 4
BLOCK_ROWS = 4096
STEPS = 1 << 20
"""Integers of a unit-length column: inner products stay below 2^42, exact in float64."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicView:
    """How records are looked at: public, chosen before any record is read.

    Attributes:
        origin: (D,) float64, taken off an embedding.
        projection: (D, d) float64, orthonormal columns.
        hyperplanes: (T, d) float64, normals of the hash tree's levels.
    """

    origin: np.ndarray = field(repr=False)
    projection: np.ndarray = field(repr=False)
    hyperplanes: np.ndarray = field(repr=False)

    def project(self, embeddings: np.ndarray) -> np.ndarray:
        """(N, d) float64 of unit length, or zero: sums of integers, the same in any company."""
        columns = np.rint(self.projection * STEPS)
        projected = np.empty((len(embeddings), columns.shape[1]))
        for start in range(0, len(embeddings), BLOCK_ROWS):
            rows = np.asarray(embeddings[start : start + BLOCK_ROWS], dtype=np.float64)
            steps = np.rint((rows - self.origin) * STEPS)
            projected[start : start + BLOCK_ROWS] = steps @ columns
        return _unit(projected)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyCenters:
    """Released centres.

    Attributes:
        centers: (k, d) float64, unit length.
        view: The public view they lie in.
    """

    centers: np.ndarray = field(repr=False)
    view: PublicView

    def assign(self, embeddings: np.ndarray) -> np.ndarray:
        """(N,) int64 nearest centre of each of (N, D) embeddings."""
        scores = self.view.project(embeddings) @ self.centers.T
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def random_view(
    depth: int, clusters: int, *, dimensions: int = DIMENSIONS, seed: int
) -> PublicView:
    """Looks along random directions, as where nothing public is known of the records.

    Args:
        depth: D.
        clusters: k, from which T follows.
        dimensions: d; at most D.
        seed: Seed of public randomness.

    **Source** Chang and Kamath 2021: random hyperplanes. The projection first is ours, since noise
    in hundreds of dimensions drowns every mean.
    """
    draw = np.random.default_rng(seed)
    projection = np.linalg.qr(draw.normal(size=(depth, min(dimensions, depth))))[0]
    hyperplanes = draw.normal(size=(_levels(clusters), projection.shape[1]))
    return PublicView(origin=np.zeros(depth), projection=projection, hyperplanes=hyperplanes)


def principal_view(
    public_embeddings: np.ndarray, clusters: int, *, dimensions: int = DIMENSIONS
) -> PublicView:
    """Looks along the directions in which public embeddings differ most, from their mean.

    Each direction is one level of the hash tree, the first one first.

    Args:
        public_embeddings: (M, D), from public documents only.
        clusters: k, from which T follows; T is at most d.
        dimensions: d; at most D.
    """
    public = np.asarray(public_embeddings, dtype=np.float64)
    origin = public.mean(axis=0)
    _, directions = np.linalg.eigh(np.cov(public - origin, rowvar=False))
    projection = directions[:, ::-1][:, :dimensions]
    axes = np.eye(projection.shape[1])[: _levels(clusters)]
    return PublicView(origin=origin, projection=projection, hyperplanes=axes)


def fit_noisy_kmeans(
    embeddings: np.ndarray,
    view: PublicView,
    *,
    clusters: int,
    epsilon: float,
    delta: float,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
    seed: int = 0,
) -> Release[NoisyCenters]:
    """Projects, summarises with noise, and clusters the summary.

    Args:
        embeddings: (N, D), unit length, private.
        view: Public.
        clusters: k >= 1; fewer come out where noise leaves fewer cells.
        epsilon: ε > 0 of the release, at `delta`.
        delta: δ in (0, 1).
        relation: Declared neighbouring relation; a record is the unit.
        seed: Seed of the first centres.

    **Privacy** A projected record is a function of that record, in exact integers. The coreset is
    the release; clustering it is post-processing.

    **Source** Chang and Kamath 2021, in the comparison of Amin et al. 2025, section 4.1, Table 2.
    """
    mechanism = coreset_mechanism(view, epsilon=epsilon, delta=delta, relation=relation)
    return _fitted(mechanism, embeddings, view, clusters, seed)


def _fitted(
    mechanism: NoisyTree, embeddings: np.ndarray, view: PublicView, clusters: int, seed: int
) -> Release[NoisyCenters]:
    coreset = mechanism.release(view.project(np.asarray(embeddings)))
    centers = _weighted_centers(coreset.value, clusters, seed)
    return Release(value=NoisyCenters(centers=centers, view=view), cost=coreset.cost)


def coreset_mechanism(
    view: PublicView, *, epsilon: float, delta: float, relation: NeighboringRelation
) -> CoresetMechanism:
    """Calibrates the coreset of unit vectors.

    A leaf is kept from where noise moves its mean by at most about half a unit, and halved from
    twice as many records.
    """
    levels, dimensions = view.hyperplanes.shape
    counts, sums = coreset_noise(epsilon, delta, levels, relation)
    keep = _least_records(counts, sums, dimensions)
    return CoresetMechanism(
        hyperplanes=view.hyperplanes,
        count_noise_std=counts,
        sum_noise_std=sums,
        branch_count=2.0 * keep,
        keep_count=keep,
        relation=relation,
    )


def _least_records(counts: float, sums: float, dimensions: int) -> float:
    """Records from which on noise moves a leaf's mean by at most about half a unit."""
    return max(1.0, 2.0 * counts, 2.0 * sums * math.sqrt(dimensions))


def _levels(clusters: int) -> int:
    """T: cells enough for a few a cluster, were they halved evenly."""
    if clusters < 1:
        raise ValueError(f"Expected clusters >= 1, got {clusters}.")
    return math.ceil(math.log2(CELLS_PER_CLUSTER * clusters))


def _weighted_centers(coreset: NoisyCoreset, clusters: int, seed: int) -> np.ndarray:
    """(k, d) unit centres of released points; a single one where noise left no point."""
    from sklearn.cluster import KMeans

    points = _unit(coreset.points)
    if not len(points):
        return np.eye(1, points.shape[1])
    if len(points) <= clusters:
        return points
    fitted = KMeans(clusters, n_init=4, random_state=seed).fit(points, None, coreset.weights)
    return _unit(fitted.cluster_centers_)


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(row_sums(rows * rows))[:, None]
    units: np.ndarray = rows / np.where(lengths > 0, lengths, 1.0)
    return units
