"""Centres from public embeddings, and the assignment of records to them.

Shapes: N records, K centres, d dimensions. Embeddings and centres have unit length, so the nearest
centre is the one with the largest inner product.
"""

import numpy as np

from dpsynth_assets.privacy.nearest import BLOCK_ROWS, PublicRows, nearest_rows

__all__ = ["BLOCK_ROWS", "fit_centers", "nearest_center"]

ITERATIONS = 50


def fit_centers(public_embeddings: np.ndarray, *, clusters: int, seed: int) -> np.ndarray:
    """Finds centres of public text by spherical k-means.

    Args:
        public_embeddings: float32 (N, d), unit length, from public documents only.
        clusters: Number of centres K, in [1, N].
        seed: Seed of the public initialisation.

    Returns:
        float32 (K, d), unit length; the same for the same input, seed and machine.

    Raises:
        ValueError: `clusters` is not in [1, N].

    **Privacy** Reads public documents only; the centres cost nothing.

    **Source** Amin et al. 2025, Section 4.1 (public centers).
    """
    import faiss

    embeddings = np.ascontiguousarray(public_embeddings, dtype=np.float32)
    rows, dimension = embeddings.shape
    if not 1 <= clusters <= rows:
        raise ValueError(
            f"Expected 1 <= clusters <= {rows} public documents, got clusters={clusters}. "
            "Ask for fewer clusters, or add public documents."
        )
    kmeans = faiss.Kmeans(
        dimension,
        clusters,
        niter=ITERATIONS,
        seed=seed,
        spherical=True,
        min_points_per_centroid=1,  # the default warns on the C++ side's stdout
        max_points_per_centroid=1024,
    )
    kmeans.train(embeddings)
    return _unit(np.asarray(kmeans.centroids, dtype=np.float32).reshape(clusters, dimension))


def nearest_center(embeddings: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Assigns each record to the centre with the largest inner product.

    Args:
        embeddings: float32 (N, d), unit length.
        centers: float32 (K, d), unit length.

    Returns:
        int32 (N,), indices into `centers`; of equally near centres the lowest index.

    Raises:
        ValueError: Dimensions differ.

    **Privacy** A record's assignment depends on itself and on public centres alone, bit for bit,
    on every processor (`privacy.nearest`): it is the centre of the largest inner product in
    float64.
    """
    public = PublicRows(centers, distance=False)
    return nearest_rows(np.asarray(embeddings), public, public.group(None)).astype(np.int32)


def _unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
