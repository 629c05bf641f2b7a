"""Private records whose embedding is close to a row's, counted exactly."""

from collections.abc import Callable

import numpy as np

from dpsynth_assets.privacy.lattice import row_sums

CloseRecords = Callable[[np.ndarray, float], np.ndarray]
"""Counts the private records close to each row: ((N, d) features, cosine) -> int64 (N,). The counts
of records that lie in parts add up to those of the whole."""

BLOCK_ROWS = 1_024
_PAIRS_AT_A_TIME = 1 << 14


def close_among(private_features: np.ndarray) -> CloseRecords:
    """Counts among records in memory, or in a mapped file: (M, d) unit embeddings."""

    def close(features: np.ndarray, cosine: float) -> np.ndarray:
        counts = np.zeros(len(features), dtype=np.int64)
        for other in range(0, len(private_features), BLOCK_ROWS):
            private = np.asarray(private_features[other : other + BLOCK_ROWS])
            for start in range(0, len(features), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                counts[rows] += _close_pairs(features[rows], private, cosine)
        return counts

    return close


def _close_pairs(block: np.ndarray, private: np.ndarray, cosine: float) -> np.ndarray:
    """Counts for each row the records of at least that inner product, as float64 adds it up.

    A product of matrices rounds a pair by its place in the block. Where that could decide, the pair
    is multiplied by itself: so a count depends on the pairs alone, however they are divided.

    **Source** Higham 2002, eq. 3.5: the rounding of an inner product of d terms.
    """
    similarity = block @ private.T
    longest = np.linalg.norm(block, axis=1).max() * np.linalg.norm(private, axis=1).max()
    margin = (block.shape[1] + 8) * 2.0**-23 * float(longest)
    counts = (similarity > cosine + margin).sum(axis=1)
    rows, records = np.nonzero(np.abs(similarity - cosine) <= margin)
    for start in range(0, len(rows), _PAIRS_AT_A_TIME):
        some = slice(start, start + _PAIRS_AT_A_TIME)
        left, right = (
            each.astype(np.float64) for each in (block[rows[some]], private[records[some]])
        )
        close = row_sums(left * right) >= cosine
        counts += np.bincount(rows[some][close], minlength=len(block))
    return np.asarray(counts, dtype=np.int64)
