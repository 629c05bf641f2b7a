"""MAUVE: how much of two text distributions overlaps, in [0, 1], on sentence embeddings.

The absolute value depends on the constants and on the number of rows, so both travel with every
score. The constants are those of Amin et al. 2025, Appendix E.1; the embedding differs (theirs is
768-dimensional Gecko), so scores compare within a report and not with the paper's tables.

Shapes: n rows a side, d dimensions.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

MINIMUM_ROWS = 20
"""Fewer rows a side give fewer than two clusters of ten."""

NOT_COMPUTED = "not computed; pip install 'dpsynth_assets[mauve]'"
"""Stands where the score would, where mauve-text (GPL-3.0) is not installed."""


def mauve_is_installed() -> bool:
    """Says whether the package mauve-text is installed: an extra, as its licence is GPL-3.0."""
    return find_spec("mauve") is not None


@dataclass(frozen=True, kw_only=True)
class MauveSettings:
    """Constants of the score, printed beside it.

    Attributes:
        rows_per_cluster: Rows a side for each k-means cluster.
        kmeans_initializations: Starts of k-means; the best objective is kept.
        kmeans_iterations: Iterations of one start.
        explained_variance: Share of variance that PCA keeps, in (0, 1).
        scaling_factor: Constant c in exp(-c KL).
        divergence_points: Mixture weights on the divergence curve.
        max_rows: Most rows a side.
        repeats: Scores from different subsamples and k-means seeds; at least 1.
        seed: Seed of subsamples and k-means; the score is no privacy mechanism.

    **Source** Amin et al. 2025, Appendix E.1: n = 1000, n/10 clusters, 5 initializations, 500
    iterations, explained variance .9, scaling 5, 32 points; Table 3: five seeds.
    """

    rows_per_cluster: int = 10
    kmeans_initializations: int = 5
    kmeans_iterations: int = 500
    explained_variance: float = 0.9
    scaling_factor: float = 5.0
    divergence_points: int = 32
    max_rows: int = 1_000
    repeats: int = 5
    seed: int = 25

    def to_json(self) -> dict[str, float]:
        """Plain numbers by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class MauveResult:
    """A score with its spread.

    Attributes:
        mean: Mean over the repeats, in [0, 1]; 1 is the same distribution.
        std: Standard deviation over the repeats; 0 for one repeat.
        repeats: Number of repeats.
        rows: Rows used a side.
    """

    mean: float
    std: float
    repeats: int
    rows: int


def mauve_score(
    p_features: np.ndarray, q_features: np.ndarray, settings: MauveSettings | None = None
) -> MauveResult:
    """Scores two sets of embeddings against each other.

    Args:
        p_features: (n_p, d) embeddings of real text.
        q_features: (n_q, d) embeddings of synthetic text.
        settings: Constants; None is the paper's.

    Returns:
        Mean and spread over repeats, each with `min(n_p, n_q, max_rows)` rows a side.

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
    scores = [
        _one_score(p_features, q_features, rows, settings, settings.seed + repeat)
        for repeat in range(settings.repeats)
    ]
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return MauveResult(float(np.mean(scores)), std, settings.repeats, rows)


def _one_score(
    p_features: np.ndarray, q_features: np.ndarray, rows: int, settings: MauveSettings, seed: int
) -> float:
    generator = np.random.default_rng(seed)
    p = p_features[generator.permutation(len(p_features))[:rows]]
    q = q_features[generator.permutation(len(q_features))[:rows]]
    result = _compute_mauve()(
        p_features=p,
        q_features=q,
        num_buckets=max(2, round(rows / settings.rows_per_cluster)),
        kmeans_explained_var=settings.explained_variance,
        kmeans_num_redo=settings.kmeans_initializations,
        kmeans_max_iter=settings.kmeans_iterations,
        divergence_curve_discretization_size=settings.divergence_points,
        mauve_scaling_factor=settings.scaling_factor,
        seed=seed,
        verbose=False,
    )
    return float(result.mauve)


@cache
def _compute_mauve() -> Callable[..., Any]:
    """Loads mauve-text, with a k-means that does not warn about few rows a centroid.

    The warning is written by C++ at every start. Ten rows a cluster are what the metric asks for.
    """
    import importlib

    import faiss

    module: Any = importlib.import_module("mauve.compute_mauve")
    module.faiss = SimpleNamespace(Kmeans=partial(faiss.Kmeans, min_points_per_centroid=1))
    return module.compute_mauve
