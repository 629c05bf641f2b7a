"""Clusterings: how even they are, and what they say of labels and of neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.clustering import nearest_center

MOST_FITTED_ROWS = 5_000
"""Records that k-means learns its centres from; all records are then assigned to them."""

USABLE_SIZE = 100
"""Records from which the paper calls a cluster usable (Amin et al. 2025, Table 2)."""

ITERATIONS = 50


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of two partitions of the same records, each number in [0, 1].

    Attributes:
        homogeneity: 1 if each cluster holds records of one class.
        completeness: 1 if each class lies in one cluster.
        v_measure: Harmonic mean of both; the same when the partitions change places.
    """

    homogeneity: float
    completeness: float
    v_measure: float


@dataclass(frozen=True, kw_only=True)
class ClusteringScores:
    """One row of Amin et al. 2025, Table 2, and one panel of its Figure 2.

    Attributes:
        name: Which clustering.
        clusters: Clusters of at least two records.
        usable_clusters: Clusters of at least `USABLE_SIZE` records.
        largest_share: Share of the records in the largest cluster.
        sizes: Records in each cluster that holds any, largest first.
        with_labels: Agreement with the records' labels; None without labels that differ.
        with_reference: Agreement with the reference clustering; None without one.
    """

    name: str
    clusters: int
    usable_clusters: int
    largest_share: float
    sizes: np.ndarray = field(repr=False)
    with_labels: Agreement | None = field(repr=False)
    with_reference: Agreement | None = field(repr=False)


def agreement(classes: np.ndarray, clusters: np.ndarray) -> Agreement | None:
    """Scores clusters against classes by conditional entropies.

    Args:
        classes: (N,) integers, or -1 where a record has no class.
        clusters: (N,) integers, or -1 where a record is in no cluster.

    Returns:
        Scores over the records that have both; None where they show fewer than two classes, which
        any clustering would agree with.

    Raises:
        ValueError: If lengths differ.

    **Source** Rosenberg and Hirschberg 2007, β = 1.
    """
    from sklearn.metrics import homogeneity_completeness_v_measure

    if len(classes) != len(clusters):
        raise ValueError("Expected a class and a cluster for each record, got different lengths.")
    both = (np.asarray(classes) >= 0) & (np.asarray(clusters) >= 0)
    if len(np.unique(classes[both])) < 2:
        return None
    # Rounding takes the library a few units in the last place beyond 1.
    scores = homogeneity_completeness_v_measure(classes[both], clusters[both])
    homogeneity, completeness, v_measure = np.clip(scores, 0.0, 1.0).tolist()
    return Agreement(homogeneity=homogeneity, completeness=completeness, v_measure=v_measure)


def cluster_sizes(clusters: np.ndarray) -> np.ndarray:
    """Counts the records of each cluster that holds any, largest first; -1 is no cluster."""
    _, counts = np.unique(clusters[clusters >= 0], return_counts=True)
    return np.sort(counts)[::-1]


def private_kmeans(embeddings: np.ndarray, *, clusters: int, seed: int) -> np.ndarray | None:
    """Assigns records to centres learnt from the records themselves: the reference of Table 2.

    Args:
        embeddings: float32 (N, d), unit length, private.
        clusters: k >= 1; lowered to half the records that are fitted.
        seed: Seed of the sample and of the first centres.

    Returns:
        (N,) int64 clusters; None for fewer than two records.

    **Privacy** None: centres and assignment depend on every record. They must not leave.
    """
    from sklearn.cluster import KMeans

    if len(embeddings) < 2:
        return None
    draw = np.random.default_rng(seed)
    rows = draw.permutation(len(embeddings))[:MOST_FITTED_ROWS]
    fitted = KMeans(
        min(clusters, len(rows) // 2), n_init=1, max_iter=ITERATIONS, random_state=seed
    ).fit(embeddings[np.sort(rows)])
    lengths = np.linalg.norm(fitted.cluster_centers_, axis=1, keepdims=True)
    centers = fitted.cluster_centers_ / np.maximum(lengths, 1e-12)
    return nearest_center(embeddings, centers).astype(np.int64)


def score_clusterings(
    clusterings: Mapping[str, np.ndarray], labels: Sequence[str], *, reference: str
) -> list[ClusteringScores]:
    """Sizes of every clustering, and its agreement with labels and with the one named `reference`.

    Args:
        clusterings: (N,) integers by name, -1 where a record is in no cluster.
        labels: N labels; all equal where there are none.
        reference: Name of the clustering that stands for the truth, if it is there.
    """
    classes = np.unique(np.asarray(labels, dtype=str), return_inverse=True)[1]
    truth = clusterings.get(reference)
    scores = []
    for name, clusters in clusterings.items():
        sizes = cluster_sizes(clusters)
        scores.append(
            ClusteringScores(
                name=name,
                clusters=int((sizes >= 2).sum()),
                usable_clusters=int((sizes >= USABLE_SIZE).sum()),
                largest_share=float(sizes[0] / sizes.sum()) if len(sizes) else 0.0,
                sizes=sizes,
                with_labels=agreement(classes, clusters),
                with_reference=None if truth is None else agreement(truth, clusters),
            )
        )
    return scores
