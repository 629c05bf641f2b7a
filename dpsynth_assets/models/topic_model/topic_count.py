"""Keeps the number of topics within its bounds, whatever the density clustering found.

Shapes: n sampled documents, K groups, d dimensions.
"""

import heapq

import numpy as np

from dpsynth_assets.models.topic_model.density import NOISE, split
from dpsynth_assets.models.topic_model.nearest import unit_rows
from dpsynth_assets.models.topic_model.settings import TopicModelSettings


def within_bounds(
    groups: np.ndarray, sample: np.ndarray, settings: TopicModelSettings
) -> np.ndarray:
    """Splits groups where there are too few, merges them where there are too many.

    Args:
        groups: int64 (n,), groups 0, 1, ..., K - 1, or NOISE.
        sample: float32 (n, d), unit length.
        settings: `min_topics`, `max_topics` and seed.

    Returns:
        int64 (n,), between `min_topics` and `max_topics` groups, or NOISE. Without any dense group
        all documents count as one, and none as noise.
    """
    if groups.max() == NOISE:
        groups = np.zeros(len(groups), dtype=np.int64)
    found = int(groups.max()) + 1
    if found > settings.max_topics:
        return _merged(groups, sample, settings.max_topics)
    if found < settings.min_topics:
        return _split(groups, sample, settings)
    return groups


def mean_directions(members: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Averages each group's rows: (n, d), int64 (n,) groups, none empty -> (K, d), unit length."""
    order = np.argsort(groups, kind="stable")
    first = np.searchsorted(groups[order], np.arange(groups.max() + 1))
    return unit_rows(np.add.reduceat(members[order].astype(np.float64), first, axis=0))


def _split(groups: np.ndarray, sample: np.ndarray, settings: TopicModelSettings) -> np.ndarray:
    """Splits the groups with most documents a piece until there are `min_topics` pieces."""
    sizes = np.bincount(groups[groups != NOISE])
    pieces = np.ones(len(sizes), dtype=np.int64)
    heap = [(-float(size), group) for group, size in enumerate(sizes)]
    heapq.heapify(heap)
    while pieces.sum() < settings.min_topics:
        _, group = heapq.heappop(heap)
        pieces[group] += 1
        heapq.heappush(heap, (-sizes[group] / pieces[group], group))
    parts = np.full(len(groups), NOISE, dtype=np.int64)
    for group in range(len(sizes)):
        members = groups == group
        parts[members] = pieces[:group].sum()
        if pieces[group] > 1:
            parts[members] += split(sample[members], int(pieces[group]), settings.seed)
    return _renumbered(parts)


def _merged(groups: np.ndarray, sample: np.ndarray, most: int) -> np.ndarray:
    """Merges groups by average linkage of their mean directions into at most `most`."""
    from scipy.cluster.hierarchy import fcluster, linkage

    kept = groups != NOISE
    directions = mean_directions(sample[kept], groups[kept])
    merged_into = fcluster(linkage(directions, "average"), most, criterion="maxclust")
    merged = np.full(len(groups), NOISE, dtype=np.int64)
    merged[kept] = merged_into[groups[kept]]
    return _renumbered(merged)


def _renumbered(groups: np.ndarray) -> np.ndarray:
    """Numbers the groups that have members 0, 1, ... in their order; NOISE stays."""
    kept = groups != NOISE
    renumbered = np.full(len(groups), NOISE, dtype=np.int64)
    renumbered[kept] = np.unique(groups[kept], return_inverse=True)[1]
    return renumbered
