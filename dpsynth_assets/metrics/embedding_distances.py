"""Distances between two sets of embeddings: Fréchet (FID on text embeddings) and energy distance.

MAUVE compares histograms over clusters and sits at its floor once two sets share no cluster, as the
text of a very small model and real text do. The energy distance still orders such corpora.

Letters: N rows, d dimensions.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dpsynth_assets.datasets import TextEmbedderSpec
from dpsynth_assets.datasets.evaluation_section import MauveSpec
from dpsynth_assets.metrics.metric import LEAST_ROWS, Estimate, Metric, Sides, Tables
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.models.text_embedder import TextEmbedder


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


# MAUVE: how much of two text distributions overlaps, in [0, 1], on sentence embeddings.
#
# The absolute value depends on the constants and on the number of rows, so both travel with every
# score. The constants are those of Amin et al. 2025, Appendix E.1; the embedding differs (theirs is
# 768-dimensional Gecko), so scores compare within a report and not with the paper's tables.
#
# Shapes: n rows a side, d dimensions.


MINIMUM_ROWS = 100
"""With fewer rows a side the score orders nothing: its ± is as large as what it should tell."""

NOT_COMPUTED = "not computed; pip install 'dpsynth_assets[mauve]'"
"""Stands where the score would, where mauve-text (GPL-3.0) is not installed."""


def mauve_is_installed() -> bool:
    """Says whether the package mauve-text is installed: an extra, as its licence is GPL-3.0."""
    return find_spec("mauve") is not None


class MauveSettings(MauveSpec):
    """Constants of the score, printed beside it: those that a dataset file has, and the others.

    Attributes:
        kmeans_initializations: Starts of k-means; the best objective is kept.
        kmeans_iterations: Iterations of one start.
        explained_variance: Share of variance that PCA keeps, in (0, 1).
        divergence_points: Mixture weights on the divergence curve.
        max_rows: Most rows a side.
        seed: Seed of subsamples and k-means; the score is no privacy mechanism.

    **Source** Amin et al. 2025, Appendix E.1: n = 1000, n/10 clusters, 5 initializations, 500
    iterations, explained variance .9, scaling 5, 32 points; Table 3: five seeds.
    """

    kmeans_initializations: int = 5
    kmeans_iterations: int = 500
    explained_variance: float = 0.9
    divergence_points: int = 32
    max_rows: int = 1_000
    seed: int = 25


def mauve_score(
    p_features: np.ndarray,
    q_features: np.ndarray,
    settings: MauveSettings | None = None,
    p_counts: np.ndarray | None = None,
    q_counts: np.ndarray | None = None,
) -> Estimate:
    """Scores two sets of embeddings against each other.

    Resamples keep the clusters of the rows at hand, since clustering again takes nearly all of the
    time, and draw the repeats again too: what the start of k-means changes counts in the spread.

    Args:
        p_features: (n_p, d) embeddings of real text.
        q_features: (n_q, d) embeddings of synthetic text.
        settings: Constants; None is the paper's.
        p_counts: (B, n_p), how often each real row stands in each resample; None: no resamples.
        q_counts: (B, n_q), the same of synthetic rows.

    Returns:
        Mean over repeats, each with `min(n_p, n_q, max_rows)` rows a side, in [0, 1]: 1 is the same
        distribution; with its resamples, or no draw where none were asked for.

    Raises:
        ModuleNotFoundError: The extra is not installed.
        ValueError: Either side has fewer than `MINIMUM_ROWS` rows, or dimensions differ.

    **Source** Pillutla et al. 2021, through the package mauve-text.
    """
    if not mauve_is_installed():
        raise ModuleNotFoundError(f"MAUVE: {NOT_COMPUTED}")
    settings = settings or MauveSettings()
    rows = min(len(p_features), len(q_features), settings.max_rows)
    if rows < MINIMUM_ROWS or p_features.shape[1] != q_features.shape[1]:
        raise ValueError(
            f"Expected two matrices of one width and at least {MINIMUM_ROWS} rows, got shapes "
            f"{p_features.shape} and {q_features.shape}. Score more rows."
        )
    clustered = [
        _clustered(p_features, q_features, rows, settings, settings.seed + repeat)
        for repeat in range(settings.repeats)
    ]
    mean = float(np.mean([score for score, _ in clustered]))
    if p_counts is None or q_counts is None:
        return Estimate(mean, np.zeros(0))
    draws = np.stack(
        [
            histogram_scores(p_side.histograms(p_counts), q_side.histograms(q_counts), settings)
            for _, (p_side, q_side) in clustered
        ]
    )
    generator = np.random.default_rng(settings.seed)
    parts = np.full(settings.repeats, 1.0 / settings.repeats)
    shares = generator.multinomial(settings.repeats, parts, size=len(p_counts)) / settings.repeats
    return Estimate.around(mean, (shares.T * draws).sum(axis=0))


class _Clustered(NamedTuple):
    """The rows of one side that a repeat took, and the cluster of each."""

    rows: np.ndarray
    clusters: np.ndarray
    number: int

    def histograms(self, counts: np.ndarray) -> np.ndarray:
        """Shares of the clusters in each resample: float64 (B, number)."""
        counts = counts[:, self.rows]
        held = (counts @ np.eye(self.number, dtype=counts.dtype)[self.clusters]).astype(np.float64)
        return np.asarray(held / np.maximum(held.sum(axis=1, keepdims=True), 1.0))


def _clustered(
    p_features: np.ndarray, q_features: np.ndarray, rows: int, settings: MauveSettings, seed: int
) -> tuple[float, tuple[_Clustered, _Clustered]]:
    """One repeat: its score, and the clusters of real and of synthetic rows."""
    generator = np.random.default_rng(seed)
    p_rows = generator.permutation(len(p_features))[:rows]
    q_rows = generator.permutation(len(q_features))[:rows]
    clusters = max(2, round(rows / settings.rows_per_cluster))
    compute_mauve, found = _compute_mauve()
    result = compute_mauve(
        p_features=p_features[p_rows],
        q_features=q_features[q_rows],
        num_buckets=clusters,
        kmeans_explained_var=settings.explained_variance,
        kmeans_num_redo=settings.kmeans_initializations,
        kmeans_max_iter=settings.kmeans_iterations,
        divergence_curve_discretization_size=settings.divergence_points,
        mauve_scaling_factor=settings.scaling_factor,
        seed=seed,
        verbose=False,
    )
    assigned = found.pop()  # The package stacks synthetic rows above real ones.
    sides = (
        _Clustered(p_rows, assigned[rows:], clusters),
        _Clustered(q_rows, assigned[:rows], clusters),
    )
    return float(result.mauve), sides


def histogram_scores(p: np.ndarray, q: np.ndarray, settings: MauveSettings) -> np.ndarray:
    """Computes MAUVE of pairs of histograms: the area under each pair's divergence curve.

    Args:
        p: (B, k) shares of real rows in k clusters; every line sums to 1.
        q: (B, k) shares of synthetic rows.
        settings: `divergence_points` and `scaling_factor` are used.

    Returns:
        float64 (B,), each in [0, 1].

    **Source** Pillutla et al. 2021, equations 1 and 2; the area is that of the package mauve-text,
    the mean of the trapezoids along either axis.
    """
    from scipy.special import rel_entr

    weights = np.linspace(1e-6, 1 - 1e-6, settings.divergence_points)
    first, second = np.zeros((2, len(p), len(weights) + 2))
    first[:, -1] = second[:, 0] = 1.0  # Where all weight lies on one side.
    for point, weight in enumerate(weights, start=1):
        mixture = weight * p + (1 - weight) * q
        for side, curve in ((p, second), (q, first)):
            divergence = rel_entr(side, mixture).sum(axis=1)  # Kullback-Leibler, in nats.
            curve[:, point] = np.exp(-settings.scaling_factor * divergence)
    return 0.5 * (_area(first, second) + _area(second, first))


def _area(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    order = np.argsort(x, axis=1, kind="stable")
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    return np.asarray((np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1])).sum(axis=1) / 2.0)


@cache
def _compute_mauve() -> tuple[Callable[..., Any], list[np.ndarray]]:
    """Loads mauve-text with a k-means that keeps the rows' clusters, and where it keeps them.

    It does not warn about few rows a centroid either: the warning is written by C++ at every start,
    and ten rows a cluster are what the metric asks for.
    """
    import importlib

    import faiss

    found: list[np.ndarray] = []

    class Kmeans:
        """The calls of `faiss.Kmeans` that the package makes."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._kmeans = faiss.Kmeans(*arguments, min_points_per_centroid=1, **named)
            self.index = self

        def train(self, rows: np.ndarray) -> None:
            self._kmeans.train(rows)

        def search(self, rows: np.ndarray, neighbours: int) -> tuple[np.ndarray, np.ndarray]:
            distances, clusters = self._kmeans.index.search(rows, neighbours)
            found[:] = [clusters.reshape(-1)]
            return distances, clusters

    module: Any = importlib.import_module("mauve.compute_mauve")
    module.faiss = SimpleNamespace(Kmeans=Kmeans)
    return module.compute_mauve, found


def _estimate(sides: Sides) -> Estimate | None:
    if not mauve_is_installed():
        return None
    held_out, corpus, settings = sides.held_out, sides.corpus, sides.settings.effective_mauve()
    features = held_out.features, corpus.features
    if settings.embedder is not None:  # Held-out records are the same for all corpora of a table.
        kept = opened_once(_embedded, settings.embedder, tuple(held_out.texts))
        features = kept, _embedded(settings.embedder, corpus.texts)
    return mauve_score(*features, settings, held_out.counts, corpus.counts)


def _embedded(declared: TextEmbedderSpec, texts: Sequence[str]) -> np.ndarray:
    """Embeds texts many a pass: no mechanism reads what it gives."""
    embedder = opened_once(TextEmbedder, declared.model, declared.max_tokens)
    return embedder.embed(texts, public=True)


MAUVE = Metric(
    "mauve",
    "MAUVE",
    _estimate,
    least_rows=MINIMUM_ROWS,
    compared=True,
    picture="MAUVE against held-out records",
)
