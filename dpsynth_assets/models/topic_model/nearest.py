"""The nearest topic of each document.

Shapes: N documents, K topics, d dimensions; all rows of unit length.
"""

import numpy as np

from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows, pair_scores, windows


def nearest_topics(
    embeddings: np.ndarray, topic_embeddings: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Finds each document's topic of largest cosine.

    Args:
        embeddings: float (N, d), unit length; may be a memory map, read a window at a time.
        topic_embeddings: float32 (K, d), unit length.

    Returns:
        int64 (N,) topics, of equally near ones the lowest, and float32 (N,) cosines.

    **Privacy** A row depends on its document and on public topics alone, bit for bit: the topic is
    found exactly (`privacy.nearest`), and the cosine is a float64 sum in one order, rounded once.
    """
    public = PublicRows(topic_embeddings, distance=False)
    topics = nearest_rows(embeddings, public)
    cosines = np.empty(len(embeddings), dtype=np.float32)
    for window, rows in windows(embeddings):
        cosines[window] = pair_scores(rows, public, np.arange(len(rows)), topics[window])
    return topics, cosines


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Scales rows to length one, float32; a zero row stays zero."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12), dtype=np.float32)
