"""Fits a topic model to public documents, of which there may be millions.

The number of topics is kept within its bounds, whatever the density clustering found.

Shapes: N documents, K topics, d dimensions. Embeddings are read in blocks and texts one by one;
beyond the sample, memory grows by some 50 bytes a document (topic, cosine, their order).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

import numpy as np

from dpsynth_assets.models.topic_model.density import NOISE, dense_groups, split
from dpsynth_assets.models.topic_model.keywords import choose_keywords, shared_words
from dpsynth_assets.models.topic_model.model import TopicModel
from dpsynth_assets.models.topic_model.nearest import nearest_topics, unit_rows
from dpsynth_assets.models.topic_model.settings import TopicModelSettings
from dpsynth_assets.models.topic_model.words import count_words
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows


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


EmbedWords = Callable[[Sequence[str]], np.ndarray]
ProgressCallback = Callable[[float, str], None]

CLUSTERING_SHARE = 0.5
"""Of the progress that is reported."""
CHUNK_ROWS = 16_384
UNIT_TOLERANCE = 0.01


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
        TypeError: `texts` is an iterator.
        ValueError: Texts and embeddings do not match, are too few, or hold too few words.

    **Privacy** Reads public documents only; the topics cost nothing.

    **Source** Tan et al. 2025, section 3.2; Grootendorst 2022 (class-based tf-idf); Sharma and Li
    2019 (keywords near the embedding).
    """
    report = progress or _no_report
    _check(texts, embeddings, settings)
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


def _no_report(share: float, message: str) -> None:
    del share, message


def _check(texts: Iterable[str], embeddings: np.ndarray, settings: TopicModelSettings) -> None:
    if embeddings.ndim != 2:
        raise ValueError(f"Expected embeddings of shape (N, d), got {embeddings.shape}.")
    if isinstance(texts, Iterator):
        raise TypeError(
            "Expected texts that can be read twice, got an iterator. Pass a sequence, or an object "
            "whose __iter__ starts anew."
        )
    if isinstance(texts, Sized) and len(texts) != len(embeddings):
        raise ValueError(
            f"Expected one embedding for each text, got {len(embeddings)} for {len(texts)} texts."
        )
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
    if not np.allclose(np.linalg.norm(sample, axis=1), 1.0, atol=UNIT_TOLERANCE):
        raise ValueError(
            "Expected embeddings of unit length, got other lengths. Scale each row to length 1."
        )
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
