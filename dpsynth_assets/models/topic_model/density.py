"""Dense groups in a sample of documents: neighbour averages, principal components, HDBSCAN.

Shapes: n sampled documents, d dimensions, p principal components.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.models.topic_model.nearest import unit_rows
from dpsynth_assets.models.topic_model.settings import TopicModelSettings

NOISE = -1
"""Group of a document that belongs to no dense group."""

DEPTH = 3
"""Times a group or a rest that is too large is clustered again by itself."""

EXACT_SEARCH_DOCUMENTS = 20_000
"""Up to so many documents neighbours are searched exactly, beyond in an inverted file."""

PROBED_LISTS = 16
BLOCK_ROWS = 4_096
KMEANS_ITERATIONS = 20


@dataclass(frozen=True, eq=False)
class _Part:
    """Documents still to be clustered: a group that is too large, or a rest."""

    rows: np.ndarray
    depth: int
    is_group: bool


def dense_groups(
    sample: np.ndarray,
    settings: TopicModelSettings,
    report: Callable[[float, str], None] = lambda *_: None,
) -> np.ndarray:
    """Groups documents by density; large groups and a large rest are clustered within themselves.

    Args:
        sample: float32 (n, d), unit length, public.
        settings: Neighbours, components, cluster sizes.
        report: Called with the share done and how many groups there are.

    Returns:
        int64 (n,) groups 0, 1, ..., or NOISE.

    **Source** Tan et al. 2025, section 3.2: reduction and HDBSCAN, as in BERTopic. Two departures.
    A document is first moved to the mean of its nearest neighbours, one step of mean shift: without
    it half of the documents are noise. And HDBSCAN is applied again inside a group that holds too
    much (all films, say), in that group's own principal components.
    """
    report(0.0, f"averaging neighbours of {len(sample)} documents")
    averaged = average_neighbors(sample, settings.neighbors)
    largest = max(int(settings.max_topic_share * len(sample)), 2 * settings.min_cluster_size)
    groups = np.full(len(sample), NOISE, dtype=np.int64)
    waiting = [_Part(np.arange(len(sample)), depth=0, is_group=False)]
    found = 0
    while waiting:
        left = sum(len(part.rows) for part in waiting)
        report(1 - 0.8 * left / len(sample), f"{found} dense groups, {left} documents to cluster")
        part = waiting.pop()
        labels = _cluster(averaged[part.rows], settings)
        if part.is_group and labels.max() == NOISE:  # dense all over: cut it evenly
            pieces = -(-len(part.rows) // largest)
            labels = split(sample[part.rows], pieces, settings.seed)
        for label in range(NOISE, labels.max() + 1):
            members = part.rows[labels == label]
            if largest < len(members) < len(part.rows) and part.depth < DEPTH:
                waiting.append(_Part(members, part.depth + 1, is_group=label != NOISE))
            elif label != NOISE and len(members):
                groups[members] = found
                found += 1
    return groups


def average_neighbors(sample: np.ndarray, neighbors: int) -> np.ndarray:
    """Moves each document to the mean direction of its nearest documents, itself included.

    Args:
        sample: float32 (n, d), unit length.
        neighbors: Documents averaged; 1 returns the sample.

    Returns:
        float32 (n, d), unit length.
    """
    if neighbors == 1:
        return sample
    index = _neighbor_index(sample)
    averaged = np.empty_like(sample)
    for start in range(0, len(sample), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        _, nearest = index.search(sample[block], min(neighbors, len(sample)))
        found = nearest >= 0  # an inverted file may find fewer
        means = (sample[nearest] * found[:, :, None]).sum(axis=1)
        averaged[block] = unit_rows(means)
    return averaged


def _neighbor_index(sample: np.ndarray):  # noqa: ANN202 (faiss has no types)
    import faiss

    flat = faiss.IndexFlatIP(sample.shape[1])
    if len(sample) <= EXACT_SEARCH_DOCUMENTS:
        flat.add(sample)
        return flat
    lists = int(4 * np.sqrt(len(sample)))
    index = faiss.IndexIVFFlat(flat, sample.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # the default warns on the C++ side's stdout
    index.train(sample)
    index.add(sample)
    index.nprobe = PROBED_LISTS
    return index


def _cluster(points: np.ndarray, settings: TopicModelSettings) -> np.ndarray:
    """Clusters points by HDBSCAN in their own principal components: (n,) labels or NOISE."""
    if len(points) < 2 * settings.min_cluster_size:
        return np.full(len(points), NOISE, dtype=np.int64)
    import hdbscan

    clusterer = hdbscan.HDBSCAN(
        min_cluster_size=settings.min_cluster_size,
        min_samples=min(settings.min_samples, len(points) - 1),
        core_dist_n_jobs=1,
    )
    return np.asarray(
        clusterer.fit_predict(principal_components(points, settings.dimensions)), dtype=np.int64
    )


def principal_components(points: np.ndarray, dimensions: int) -> np.ndarray:
    """Projects centred points onto their leading directions: float64 (n, min(dimensions, d))."""
    centered = points - points.mean(axis=0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    leading = directions[:, ::-1][:, :dimensions]
    return np.asarray(centered @ leading, dtype=np.float64)


def split(members: np.ndarray, pieces: int, seed: int) -> np.ndarray:
    """Splits documents by spherical k-means: (n, d) -> (n,) pieces in [0, `pieces`)."""
    import faiss

    kmeans = faiss.Kmeans(
        members.shape[1],
        pieces,
        niter=KMEANS_ITERATIONS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,  # the default warns on the C++ side's stdout
    )
    kmeans.train(np.ascontiguousarray(members, dtype=np.float32))
    return np.asarray(kmeans.index.search(members, 1)[1][:, 0], dtype=np.int64)
