"""Fits a topic model to public documents, of which there may be millions.

Dense groups of a sample (neighbour averages, principal components, HDBSCAN) become topics, whose
number is kept within its bounds, regardless of what the density clustering found.

Shapes: N documents, n sampled ones, K topics, d dimensions, p principal components. Embeddings are
read in blocks and texts one by one; beyond the sample, memory grows by some 50 bytes a document
(topic, cosine, their order).
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dpsynth_assets.models.topic_model.keywords import choose_keywords, count_words, shared_words
from dpsynth_assets.models.topic_model.model import (
    NOISE,
    TopicModel,
    TopicModelSettings,
    nearest_topics,
    unit_rows,
)
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows

DEPTH = 3
"""Times a group or a rest that is too large is clustered again by itself."""

EXACT_SEARCH_DOCUMENTS = 20_000
"""Up to this many documents neighbours are searched exactly, beyond in an inverted file."""

PROBED_LISTS = 16
BLOCK_ROWS = 4_096
KMEANS_ITERATIONS = 20


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
    waiting = [(np.arange(len(sample)), 0, False)]  # Documents; how deep; dense, or a rest.
    found = 0
    while waiting:
        left = sum(len(part) for part, *_ in waiting)
        report(1 - 0.8 * left / len(sample), f"{found} dense groups, {left} documents to cluster")
        rows, depth, is_group = waiting.pop()
        labels = _cluster(averaged[rows], settings)
        if is_group and labels.max() == NOISE:  # dense all over: cut it evenly
            labels = split(sample[rows], -(-len(rows) // largest), settings.seed)
        for label in range(NOISE, labels.max() + 1):
            members = rows[labels == label]
            if largest < len(members) < len(rows) and depth < DEPTH:
                waiting.append((members, depth + 1, label != NOISE))
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
    while pieces.sum() < settings.min_topics:
        pieces[(sizes / pieces).argmax()] += 1
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


EmbedWords = Callable[[Sequence[str]], np.ndarray]
ProgressCallback = Callable[[float, str], None]

CLUSTERING_SHARE = 0.5
"""Of the progress that is reported."""
CHUNK_ROWS = 16_384


def fit_topic_model(
    texts: Iterable[str],
    embeddings: np.ndarray,
    settings: TopicModelSettings,
    embed_words: EmbedWords,
    progress: ProgressCallback | None = None,
    *,
    embedder: str = "",
) -> TopicModel:
    """Finds topics of public documents, and ten keywords of each.

    A sample is clustered by density; then all documents are assigned to the nearest topic and the
    topics moved to the mean of their members, a few times over.

    Args:
        texts: N public documents. Read twice, one by one, so it may be lazy, but no generator.
        embeddings: float32 (N, d), unit length, rows aligned with `texts`; may be a memory map.
        settings: Sizes, bounds and seed.
        embed_words: Embeds n words as float32 (n, d), by the embedder of the documents.
        progress: Called with the share done.
        embedder: Name of the embedder, kept with the model.

    Raises:
        ValueError: Texts and embeddings do not match, are too few, or hold too few words.

    **Privacy** Reads public documents only; the topics cost nothing.

    **Source** Tan et al. 2025, section 3.2 [ctcl S3.2]; Grootendorst 2022 (class-based tf-idf);
    Sharma and Li 2019 (keywords near the embedding).
    """
    report = progress or (lambda *_: None)
    _check(embeddings, settings)
    topics = _dense_topics(embeddings, settings, lambda s, said: report(CLUSTERING_SHARE * s, said))
    for done in range(settings.refinements):
        share = CLUSTERING_SHARE + 0.1 * done / settings.refinements
        report(share, f"refining {len(topics)} topics")
        topics = _refined(topics, embeddings)
    report(0.6, f"assigning all documents to {len(topics)} topics")
    nearest, cosines = nearest_topics(embeddings, topics)
    threshold = np.percentile(cosines, settings.unclassified_percentile).astype(np.float32)
    report(0.7, "counting words of each topic")
    chosen = _nearest_members(nearest, cosines, settings.keyword_documents)
    words = count_words(texts, chosen, len(topics), settings)
    report(0.8, "choosing keywords")
    keywords = choose_keywords(words, topics, embed_words, settings)
    report(1.0, f"{len(topics)} topics")
    return TopicModel(
        embeddings=topics,
        keywords=keywords,
        fallback_keywords=shared_words(words),
        threshold=float(threshold),
        sizes=np.bincount(nearest[cosines >= threshold], minlength=len(topics)),
        settings=settings,
        embedder=embedder,
    )


def _check(embeddings: np.ndarray, settings: TopicModelSettings) -> None:
    if len(embeddings) < 2 * settings.min_topics:
        raise ValueError(
            f"Expected at least {2 * settings.min_topics} documents for {settings.min_topics} "
            f"topics, got {len(embeddings)}. Add public documents or lower min_topics."
        )


def _dense_topics(
    embeddings: np.ndarray, settings: TopicModelSettings, report: ProgressCallback
) -> np.ndarray:
    """Clusters a random sample: float32 (K, d) mean directions of between min and max topics."""
    size = min(settings.sample_documents, len(embeddings))
    random = np.random.default_rng(settings.seed)
    rows = np.sort(random.choice(len(embeddings), size, replace=False))
    sample = np.asarray(embeddings[rows], dtype=np.float32)
    groups = within_bounds(dense_groups(sample, settings, report), sample, settings)
    return mean_directions(sample[groups != NOISE], groups[groups != NOISE])


def _refined(topics: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Moves each topic to the mean direction of its members; topics without members go."""
    public = PublicRows(topics, distance=False)
    sums = np.zeros(topics.shape, dtype=np.float64)
    for start in range(0, len(embeddings), CHUNK_ROWS):
        chunk = np.asarray(embeddings[start : start + CHUNK_ROWS], dtype=np.float32)
        nearest = nearest_rows(chunk, public)
        order = np.argsort(nearest, kind="stable")
        found, first = np.unique(nearest[order], return_index=True)
        sums[found] += np.add.reduceat(chunk[order], first, axis=0)
    return unit_rows(sums[np.any(sums != 0, axis=1)])


def _nearest_members(nearest: np.ndarray, cosines: np.ndarray, most: int) -> np.ndarray:
    """Keeps each topic's nearest documents: (N,) topics, NOISE for documents left out."""
    order = np.lexsort((-cosines, nearest))
    sizes = np.bincount(nearest)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank = np.arange(len(order)) - first[nearest[order]]
    chosen = np.full(len(nearest), NOISE, dtype=np.int64)
    kept = order[rank < most]
    chosen[kept] = nearest[kept]
    return chosen
