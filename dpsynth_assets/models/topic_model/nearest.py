"""The nearest topic of each document, in blocks of one shape.

Shapes: N documents, K topics, d dimensions; all rows of unit length.
"""

import numpy as np

BLOCK_ROWS = 256


def nearest_topics(
    embeddings: np.ndarray, topic_embeddings: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Finds each document's topic of largest cosine.

    Args:
        embeddings: float (N, d), unit length; may be a memory map, read a block at a time.
        topic_embeddings: float32 (K, d), unit length.

    Returns:
        int64 (N,) topics, of equally near ones the lowest, and float32 (N,) cosines.

    **Privacy** A row depends on its document and on public topics alone: every matrix product has
    the same shape, so that it rounds a document alike in whatever company.
    """
    transposed = np.ascontiguousarray(topic_embeddings.T, dtype=np.float32)
    topics = np.empty(len(embeddings), dtype=np.int64)
    cosines = np.empty(len(embeddings), dtype=np.float32)
    block = np.zeros((BLOCK_ROWS, transposed.shape[0]), dtype=np.float32)
    for start in range(0, len(embeddings), BLOCK_ROWS):
        rows = embeddings[start : start + BLOCK_ROWS]
        block[: len(rows)] = rows
        block[len(rows) :] = 0
        products = block @ transposed
        nearest = products.argmax(axis=1)[: len(rows)]
        topics[start : start + len(rows)] = nearest
        cosines[start : start + len(rows)] = products[np.arange(len(rows)), nearest]
    return topics, cosines


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Scales rows to length one, float32; a zero row stays zero."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12), dtype=np.float32)
