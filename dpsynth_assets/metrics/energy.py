"""Energy distance between two sets of embeddings: a score that does not saturate.

MAUVE compares histograms over clusters and sits at its floor once two sets share no cluster, as the
text of a very small model and real text do. The energy distance still orders such corpora.
"""

import numpy as np

_ROWS_AT_A_TIME = 1_024


def energy_distance(p_features: np.ndarray, q_features: np.ndarray) -> float:
    """Computes 2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖ for x, x' of P and y, y' of Q.

    Args:
        p_features: (N, d), N >= 2.
        q_features: (M, d), M >= 2.

    Returns:
        Unbiased estimate; 0 in expectation where the sets have one distribution, positive
        otherwise, and at most 4 for unit vectors. Small negative values are chance.

    Raises:
        ValueError: If a set has fewer than two rows.

    **Source** Székely and Rizzo 2013, "Energy statistics".
    """
    if min(len(p_features), len(q_features)) < 2:
        raise ValueError("Expected at least two rows a side for the energy distance, got fewer.")
    p, q = (np.asarray(f, dtype=np.float64) for f in (p_features, q_features))
    across = _sum_of_distances(p, q) / (len(p) * len(q))
    within_p = _sum_of_distances(p, p) / (len(p) * (len(p) - 1))
    within_q = _sum_of_distances(q, q) / (len(q) * (len(q) - 1))
    return float(2 * across - within_p - within_q)


def _sum_of_distances(first: np.ndarray, second: np.ndarray) -> float:
    """Sums ‖x − y‖ over all pairs, a block of rows at a time."""
    squares = (second**2).sum(axis=1)
    total = 0.0
    for start in range(0, len(first), _ROWS_AT_A_TIME):
        block = first[start : start + _ROWS_AT_A_TIME]
        squared = (block**2).sum(axis=1)[:, None] + squares - 2 * block @ second.T
        total += float(np.sqrt(np.maximum(squared, 0.0)).sum())
    return total
