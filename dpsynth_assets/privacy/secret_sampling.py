"""Sample of records that takes part in a round of secret clustering, by public facts alone.

Sampling probabilities must not depend on private facts (errata B-004.7): editing one record would
change everybody's. Two ways: one probability for all records and a bound m on the records that
hold one secret, or a list of the records of every secret that is declared public.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dpsynth_assets.privacy.errors import check_at_least
from dpsynth_assets.privacy.secret_protection import poisson_binomial

SamplingRule = Literal["inclusion", "algorithm-1"]


def secret_weights(
    records_of_secret: Sequence[np.ndarray], capacities: Sequence[float], records: int
) -> np.ndarray:
    """Solves the linear program for (N,) weights: max Σ w_i, Σ_{i holds s_j} w_i <= η_j, w <= 1.

    Args:
        records_of_secret: For each secret, the indices of its records; declared public.
        capacities: (S,) η_j > 0, `gaussian_budget(p_j, r_j)` in the paper. A heuristic: what
            protects is the noise, calibrated afterwards from the probabilities that result.
        records: N.

    Raises:
        ValueError: If capacities do not match the secrets.

    **Source** Wang et al. 2025 (SecPE), Eq. (6).
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    if len(capacities) != len(records_of_secret) or not all(cap > 0 for cap in capacities):
        raise ValueError("Expected one positive capacity for each secret.")
    if not len(records_of_secret):
        return np.ones(records)
    columns = np.concatenate([np.asarray(rows, dtype=np.int64) for rows in records_of_secret])
    starts = np.cumsum([0, *(len(rows) for rows in records_of_secret)])
    incidence = csr_matrix(
        (np.ones(columns.size), columns, starts), shape=(len(records_of_secret), records)
    )
    solution = linprog(  # [secpe A1:L3] [secpe Eq. 6]
        -np.ones(records), A_ub=incidence, b_ub=list(capacities), bounds=(0, 1), method="highs"
    )
    if solution.x is None:
        raise ValueError(f"Expected a solution of the linear program, got: {solution.message}")
    return np.clip(solution.x, 0.0, 1.0)


def sampling_probabilities(weights: np.ndarray, rule: SamplingRule = "inclusion") -> np.ndarray:
    """Turns (N,) weights into (N,) sampling probabilities.

    Args:
        weights: (N,) w_i >= 0, not all zero.
        rule: `inclusion`: w_i / max w, so that the heaviest records always take part.
            `algorithm-1`: w_i / (max w · Σ w) as printed. These sum to 1 / max w: one to six
            records of 8000 take part in a round, and less noise only hides that the data is
            hardly used (errata B-004.5).

    **Source** SecPE, Algorithm 1, line 4; the formula in its section 3.2.1 lacks w_i.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not (weights.size and (weights >= 0).all() and weights.max() > 0):
        raise ValueError("Expected weights >= 0, not all zero.")
    shares = weights / weights.max()
    if rule == "inclusion":
        return shares
    if rule == "algorithm-1":
        return np.minimum(shares / weights.sum(), 1.0)  # [secpe A1:L4]
    raise ValueError(f"Expected rule 'inclusion' or 'algorithm-1', got {rule!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class SecretSampling:
    """Public sampling probabilities, and a distribution that bounds samples of one secret.

    Attributes:
        probabilities: One number for all records, or (N,) one for each.
        count_probabilities: (m + 1,) distribution of the number of sampled records of the most
            exposed secret; the true number of every secret is stochastically smaller.
    """

    probabilities: float | np.ndarray = field(repr=False)
    count_probabilities: np.ndarray = field(repr=False)

    @classmethod
    def capped(cls, *, probability: float, max_occurrences: int) -> "SecretSampling":
        """Samples every record alike; protects each secret held by at most `max_occurrences`.

        Nothing has to be known about secrets, detected or not. A secret with more records keeps
        the weaker bound of its own number: nothing is enforced, because dropping records of one
        secret would change which records of another are kept.
        """
        check_at_least(1, max_occurrences=max_occurrences)
        distribution = poisson_binomial(np.full(max_occurrences, float(probability)))
        return cls(probabilities=float(probability), count_probabilities=distribution)

    @classmethod
    def from_public_incidence(
        cls, probabilities: np.ndarray, records_of_secret: Sequence[np.ndarray]
    ) -> "SecretSampling":
        """Samples record i with probability (N,) ρ_i; which records hold which secret is public.

        Neighbours then differ in the content of a secret's records, which sampling ignores.
        """
        chances = np.asarray(probabilities, dtype=np.float64)
        distributions = secret_count_distributions(chances, records_of_secret)
        return cls(
            probabilities=chances, count_probabilities=dominating_distribution(distributions)
        )


def secret_count_distributions(
    probabilities: np.ndarray, records_of_secret: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Computes, for each secret, the distribution of how many of its records a round samples.

    Records that are never sampled are left out first: a vertex of the linear program has few
    others, and the distribution costs the square of their number.

    Raises:
        ValueError: If a probability is outside [0, 1].
    """
    own = (probabilities[np.asarray(rows, dtype=np.int64)] for rows in records_of_secret)
    return [poisson_binomial(chances[chances != 0]) for chances in own]


def dominating_distribution(distributions: Sequence[np.ndarray]) -> np.ndarray:
    """Computes the smallest distribution that is stochastically above each of `distributions`.

    **Privacy** Larger shifts are easier to see (`shift_event`), so one event covers all secrets.
    """
    width = max((len(distribution) for distribution in distributions), default=1)
    survival = np.zeros(width + 1)
    for distribution in distributions:
        exceeded = np.cumsum(distribution[::-1])[::-1]
        survival[: len(distribution)] = np.maximum(survival[: len(distribution)], exceeded)
    survival[0] = 1.0
    survival = np.minimum(survival, 1.0)
    return survival[:-1] - survival[1:]
