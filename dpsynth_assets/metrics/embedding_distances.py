"""Distances between two sets of embeddings: Fréchet (FID on text embeddings) and energy distance.

MAUVE compares histograms over clusters and sits at its floor once two sets share no cluster, as the
text of a very small model and real text do. The energy distance still orders such corpora.

Letters: N rows, d dimensions.
"""

import numpy as np

from dpsynth_assets.metrics.metric import LEAST_ROWS, Estimate, Metric, Sides, Tables


def frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Computes ‖μ − ν‖² + tr(Σ + Θ − 2 (ΣΘ)^½), the squared 2-Wasserstein distance of Gaussians.

    Args:
        first: (N, d), N >= 2, whose mean is μ and covariance Σ, divided by N - 1.
        second: (M, d), M >= 2, likewise of ν and Θ.

    Returns:
        0 for equal moments; at most 4 for unit vectors. Few rows raise it: compare sets of one
        size, d rows or more.

    **Source** Heusel et al. 2018, equation 6; on text embeddings as in Xie et al. 2024 and SecPE,
    Figure 2. tr (ΣΘ)^½ is taken from the eigenvalues of Σ^½ Θ Σ^½, which is symmetric: no matrix
    square root of a product that may fail to have a real one.
    """
    means = [rows.mean(axis=0, dtype=np.float64) for rows in (first, second)]
    own, other = (
        np.atleast_2d(np.cov(rows, rowvar=False, dtype=np.float64)) for rows in (first, second)
    )
    values, vectors = np.linalg.eigh(own)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shared = np.linalg.eigvalsh(root @ other @ root)
    overlap = 2.0 * float(np.sqrt(np.maximum(shared, 0.0)).sum())
    apart = float(np.square(means[0] - means[1]).sum())
    return max(0.0, apart + float(np.trace(own) + np.trace(other)) - overlap)


_ROWS_AT_A_TIME = 1_024


def energy_distance(p_features: np.ndarray, q_features: np.ndarray) -> float:
    """Computes 2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖ for x, x' of P and y, y' of Q.

    Args:
        p_features: (N, d), N >= 2.
        q_features: (M, d), M >= 2.

    Returns:
        Unbiased estimate; 0 in expectation where the sets have one distribution, positive
        otherwise, and at most 4 for unit vectors. Small negative values are chance.

    **Source** Székely and Rizzo 2013, "Energy statistics".
    """
    once = (np.ones((1, len(features))) for features in (p_features, q_features))
    return float(resampled_energy_distances(p_features, q_features, *once)[0])


def resampled_energy_distances(
    p_features: np.ndarray, q_features: np.ndarray, p_counts: np.ndarray, q_counts: np.ndarray
) -> np.ndarray:
    """Computes the energy distance of B resamples of the rows of both sides.

    A pair of one row with itself says nothing of the spread of P or Q, so pairs within a side count
    only where they are of different rows.

    Args:
        p_features: (N, d), N >= 2.
        q_features: (M, d), M >= 2.
        p_counts: (B, N), how often each row of P stands in each resample.
        q_counts: (B, M), the same of Q.

    Returns:
        float64 (B,).
    """
    p, q = (np.asarray(f, dtype=np.float64) for f in (p_features, q_features))
    p_shares, q_shares = (
        counts / counts.sum(axis=1, keepdims=True, dtype=np.float64)
        for counts in (p_counts, q_counts)
    )
    across = _mean_distances(p, q, p_shares, q_shares)
    within = [
        _mean_distances(side, side, shares, shares)
        / np.maximum(1.0 - np.square(shares).sum(axis=1), np.finfo(np.float64).tiny)
        for side, shares in ((p, p_shares), (q, q_shares))
    ]
    return 2 * across - within[0] - within[1]


def _mean_distances(
    first: np.ndarray, second: np.ndarray, first_shares: np.ndarray, second_shares: np.ndarray
) -> np.ndarray:
    """Weighted means of ‖x − y‖ over all pairs, (B,), a block of rows at a time."""
    means = np.zeros(len(first_shares))
    squares = (second**2).sum(axis=1)
    for start in range(0, len(first), _ROWS_AT_A_TIME):
        block = first[start : start + _ROWS_AT_A_TIME]
        squared = (block**2).sum(axis=1)[:, None] + squares - 2 * block @ second.T
        distances = np.sqrt(np.maximum(squared, 0.0))
        shares = first_shares[:, start : start + len(distances)]
        means += ((shares @ distances) * second_shares).sum(axis=1)
    return means


def _energy(sides: Sides) -> Estimate:
    features = sides.held_out.features, sides.corpus.features
    draws = resampled_energy_distances(*features, sides.held_out.counts, sides.corpus.counts)
    return Estimate.around(energy_distance(*features), draws)


def _frechet(sides: Sides) -> float:
    return frechet_distance(sides.corpus.features, sides.held_out.features)


ENERGY_DISTANCE = Metric(
    "energy_distance",
    "energy distance",
    _energy,
    less_is_better=True,
    decimals=4,
    least_rows=LEAST_ROWS,
    compared=True,
    gap_title="energy",
)

FRECHET_DISTANCE = Metric(
    "frechet_distance",
    "FID",
    _frechet,
    less_is_better=True,
    least_rows=2,
    tables=Tables("scores", "file"),
)
