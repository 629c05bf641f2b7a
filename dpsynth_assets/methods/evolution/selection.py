"""Survivors of a generation: the best of each label, or a draw in proportion to votes.

Everything here is post-processing of released votes. Noise makes votes negative: a negative vote is
a weight of zero, never a probability, and never a reason to stop.

Letters: C candidates, L labels.
"""

from typing import Literal

import numpy as np

from dpsynth_assets.privacy.voting import threshold_votes

Selection = Literal["rank", "sample"]


def clipped_weights(dp_votes: np.ndarray, threshold: float = 0.0) -> np.ndarray:
    """Computes max(votes − H, 0): float64 (C,), never negative.

    Args:
        dp_votes: (C,) released votes, whole or not, negative ones included.
        threshold: H >= 0, votes.
    """
    return threshold_votes(np.asarray(dp_votes, dtype=np.float64), threshold)


def vote_entropy(dp_votes: np.ndarray) -> float:
    """Entropy of the positive votes' shares, in bits: 0 where one candidate has them all."""
    weights = clipped_weights(dp_votes)
    shares = weights[weights > 0] / max(weights.sum(), 1e-300)
    return float(max(0.0, -(shares * np.log2(shares)).sum()))


def select(
    dp_votes: np.ndarray,
    candidate_labels: np.ndarray,
    sizes: np.ndarray,
    *,
    how: Selection,
    threshold: float = 0.0,
    seed: int = 0,
) -> np.ndarray:
    """Chooses the survivors of each label.

    Args:
        dp_votes: (C,) released votes.
        candidate_labels: (C,) labels in [0, L).
        sizes: (L,) survivors of each label, from public or released numbers.
        how: `rank`: the candidates with most votes, each once, the earlier one where votes are
            equal. `sample`: drawn with replacement in proportion to `clipped_weights`; where
            nothing exceeds the threshold, evenly.
        threshold: H >= 0, for `sample`.
        seed: Public seed of the draw.

    Returns:
        int64 places of survivors, label by label; `rank` gives fewer than asked where a label has
        fewer candidates.

    Raises:
        ValueError: `how` is unknown, or a label that is to survive has no candidate.

    **Source** Xie et al. 2024, Algorithm 1: sampling for L = 1, ranking for L > 1.
    """
    if how not in ("rank", "sample"):
        raise ValueError(f"Expected selection rank or sample, got {how!r}.")
    chosen = [
        _of_label(dp_votes, np.flatnonzero(candidate_labels == label), size, how, threshold, stream)
        for label, (size, stream) in enumerate(
            zip(
                np.asarray(sizes).tolist(),
                np.random.SeedSequence(seed).spawn(len(sizes)),
                strict=True,
            )
        )
    ]
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)


def _of_label(
    dp_votes: np.ndarray,
    places: np.ndarray,
    size: int,
    how: Selection,
    threshold: float,
    stream: np.random.SeedSequence,
) -> np.ndarray:
    if size > 0 and not len(places):
        raise ValueError(f"Expected candidates of every label, got none where {size} are to stay.")
    votes = np.asarray(dp_votes, dtype=np.float64)[places]
    if how == "rank":
        return places[np.argsort(-votes, kind="stable")[:size]]
    weights = clipped_weights(votes, threshold)
    total = weights.sum()
    shares = weights / total if total > 0 else np.full(len(places), 1.0 / max(1, len(places)))
    drawn = np.random.default_rng(stream).choice(places, size, p=shares) if size else places[:0]
    return np.sort(drawn)
