"""Votes of released representatives: post-processing, however often they are counted.

Letters: C clusters, N candidates, L labels.
"""

import numpy as np

from dpsynth_assets.methods.evolution.population import Population
from dpsynth_assets.methods.evolution.secret_clusters import Representatives
from dpsynth_assets.methods.evolution.votes import nearest_candidates
from dpsynth_assets.privacy.voting import NO_VOTE


class RepresentativeVotes:
    """Lets the representatives of each label vote for candidates of that label.

    **Privacy** Reads released clusters and public candidates only; any number of rounds is free.

    **Source** SecPE, Algorithm 3, lines 8 to 11. A representative whose noisy count is negative
    gives no votes, where the printed line would take some away from its nearest candidate.
    """

    def __init__(self, representatives: Representatives, *, voting: str, sizes: np.ndarray) -> None:
        """Takes released clusters.

        Args:
            representatives: R releases; round t is voted on by release t mod R.
            voting: `nearest` or `quota`, as in `SecPeConfig`.
            sizes: (L,) survivors of each label, for quotas.
        """
        self._representatives, self._voting, self._sizes = representatives, voting, sizes

    def __call__(self, rounds: int, population: Population, embeddings: np.ndarray) -> np.ndarray:
        """Counts the votes of one round.

        Args:
            rounds: Rounds before.
            population: N candidates.
            embeddings: float32 (N, d).

        Returns:
            float64 (N,) votes, not negative.
        """
        chosen = self._representatives
        release = rounds % len(chosen.counts)
        centres, weights = chosen.centres[release], np.maximum(chosen.counts[release], 0.0)
        if self._voting == "nearest":
            return nearest_votes(centres, weights, chosen.labels, embeddings, population.labels)
        votes = np.zeros(population.size)
        for label, size in enumerate(self._sizes.tolist()):
            own, candidates = chosen.labels == label, np.flatnonzero(population.labels == label)
            votes[candidates] = quota_votes(
                centres[own], weights[own], embeddings[candidates], size
            )
        return votes


def nearest_votes(
    centres: np.ndarray,
    weights: np.ndarray,
    labels: np.ndarray,
    candidates: np.ndarray,
    candidate_labels: np.ndarray,
) -> np.ndarray:
    """Gives each representative's whole weight to its nearest candidate: float64 (N,)."""
    choices = nearest_candidates(centres.astype(np.float32), labels, candidates, candidate_labels)
    voted = choices != NO_VOTE
    return np.bincount(choices[voted], weights=weights[voted], minlength=len(candidates))


def quota_votes(
    centres: np.ndarray, weights: np.ndarray, candidates: np.ndarray, size: int
) -> np.ndarray:
    """Divides each representative's weight over its share of the survivors: float64 (N,).

    A representative of a tenth of the weight votes for the tenth of `size` candidates that are
    nearest to it, in equal parts. With one candidate each this is `nearest_votes`.

    Args:
        centres: (C, d).
        weights: (C,) not negative.
        candidates: (N, d).
        size: Candidates that are to survive.
    """
    votes = np.zeros(len(candidates))
    total = weights.sum()
    if not len(candidates) or total <= 0:
        return votes
    quotas = np.clip(np.rint(size * weights / total), 1, len(candidates)).astype(np.int64)
    half_norms = np.einsum("nd,nd->n", candidates, candidates) / 2.0
    for centre, weight, quota in zip(centres, weights, quotas.tolist(), strict=True):
        scores = candidates @ centre - half_norms  # As −‖x − c‖² orders them.
        nearest = np.argpartition(-scores, quota - 1)[:quota]
        votes[nearest] += weight / quota
    return votes
