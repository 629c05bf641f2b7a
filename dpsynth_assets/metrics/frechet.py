"""Fréchet distance between two sets of embeddings (FID on text embeddings).

Letters: N rows, d dimensions.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of a set of embeddings, to be compared with many others.

    Attributes:
        mean: float64 (d,).
        covariance: float64 (d, d), divided by N - 1.
        rows: N.
    """

    mean: np.ndarray = field(repr=False)
    covariance: np.ndarray = field(repr=False)
    rows: int

    @classmethod
    def of(cls, features: np.ndarray) -> "Moments":
        """Computes them.

        Args:
            features: (N, d), N >= 2.

        Raises:
            ValueError: There are fewer than two rows.
        """
        if np.ndim(features) != 2 or len(features) < 2:
            raise ValueError(
                "Expected at least two rows of embeddings for the Fréchet distance, got fewer."
            )
        rows = np.asarray(features, dtype=np.float64)
        mean = rows.mean(axis=0)
        centred = rows - mean
        return cls(mean, centred.T @ centred / (len(rows) - 1), len(rows))


def frechet_distance(first: Moments, second: Moments) -> float:
    """Computes ‖μ − ν‖² + tr(Σ + Θ − 2 (ΣΘ)^½), the squared 2-Wasserstein distance of Gaussians.

    Returns:
        0 for equal moments; at most 4 for unit vectors. Few rows raise it: compare sets of one
        size, d rows or more.

    Raises:
        ValueError: The dimensions differ.

    **Source** Heusel et al. 2018, equation 6; on text embeddings as in Xie et al. 2024 and SecPE,
    Figure 2. tr (ΣΘ)^½ is taken from the eigenvalues of Σ^½ Θ Σ^½, which is symmetric: no matrix
    square root of a product that may fail to have a real one.
    """
    if first.mean.shape != second.mean.shape:
        raise ValueError(
            f"Expected embeddings of one dimension, got {first.mean.size} and {second.mean.size}."
        )
    values, vectors = np.linalg.eigh(first.covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    shared = np.linalg.eigvalsh(root @ second.covariance @ root)
    overlap = 2.0 * float(np.sqrt(np.maximum(shared, 0.0)).sum())
    apart = float(np.square(first.mean - second.mean).sum())
    spread = float(np.trace(first.covariance) + np.trace(second.covariance))
    return max(0.0, apart + spread - overlap)
