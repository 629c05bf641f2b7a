"""SecPE's Algorithm 1: who is sampled, and noise that keeps secrets of every kind at (p, r).

One release serves every secret, so one noise level and one dominating pair do: that of the secret
with the most records. Kinds of secrets differ in what is promised, never in what is charged.

Sampling probabilities must not depend on private facts (errata B-004.7): editing one record would
change everybody's. Two ways: one probability for all records and a bound m on the records that
hold one secret, or a list of the records of every secret that is declared public.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.privacy.errors import check_at_least
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_protection import (
    ROUND_UP,
    check_bounds,
    gaussian_budget,
    poisson_binomial,
    posterior_of_events,
    without_tail,
)


def joint_factor(relation: NeighboringRelation) -> float:
    """Bounds the L2 move of (count, normalised sum) by one record, rounded up.

    A record adds 1 to one count and a vector of norm <= 1 to the same cluster's sum: √2. A
    replaced record that stays moves its sum by 2; one that changes cluster moves two counts and
    two sums by 1 each: 2 either way. Several records add up by the triangle inequality.

    **Source** SecPE calibrates centres and counts apart, factor 1 (errata B-004.1 and B-004.2).
    """
    replaced = NeighboringRelation(relation) is NeighboringRelation.REPLACE_ONE
    return 2.0 if replaced else math.nextafter(math.sqrt(2.0), math.inf)


def shift_event(
    *,
    count_probabilities: np.ndarray,
    noise_std: float,
    steps: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
) -> MixtureGaussianEvent:
    """Prices `steps` joint releases of counts and normalised sums over fresh samples.

    Args:
        count_probabilities: (m + 1,) distribution of the sampled records of one secret.
        noise_std: σ, in records: of counts, and of sums divided by their norm bound.
        steps: T.
        relation: ADD_REMOVE and ZERO_OUT: the secret's records are absent from a neighbour.
            REPLACE_ONE: they are there with other content.

    **Privacy** Removal: given the sample of all other records, P is a mixture over samples S of
    N(v_S, σ²I) with ‖v_S‖ <= √2 |S|, and Q is N(0, σ²I). Under Q the densities' exponents
    ⟨v_S, x⟩ are normal with the same distributions as ‖v_S‖ z of one normal z, and a sum of
    increasing functions of given distributions is largest in convex order when they move together;
    so the scalar mixture of shifts ‖v_S‖ dominates. Its best tests cut the noisy sum, whose tail
    grows with every shift, so shifts may be raised to √2 |S| and |S| to any stochastically larger
    distribution.
    Replacement: both neighbours are mixtures over the same samples. The scalar mixture with
    factor 2 against N(0, σ²) does not dominate them (σ -> 0, q = 0.1: B(0.9) = 1, not 0.91); a
    shift of 2m, as if all were sampled, does, by convexity. The contents of a secret's records
    are protected by removal already: the reference dataset may be the one without them.

    **Source** SecPE, Algorithm 1, line 5. Choquette-Choo et al. 2024, Lemma 4.5, for the vector.
    """
    factor = joint_factor(relation)
    most = len(count_probabilities) - 1
    if NeighboringRelation(relation) is NeighboringRelation.REPLACE_ONE:
        counts, chances = np.array([most]), np.ones(1)
    else:
        counts, chances = without_tail(np.asarray(count_probabilities, dtype=np.float64))
    return MixtureGaussianEvent(  # [secpe A1:L5]
        noise_std=noise_std,
        shifts=tuple(factor * counts),
        probabilities=tuple(chances),
        steps=steps,
    )


def secret_noise_std(
    *,
    count_probabilities: np.ndarray,
    bounds: Sequence[tuple[float, float]],
    steps: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
    noise_floor: float = 1.0,
) -> float:
    """Finds the smallest σ >= `noise_floor` with B(p) <= r over `steps` rounds, rounded up.

    Args:
        count_probabilities: (m + 1,) distribution of the sampled records of one secret in a round:
            what is charged has that of the most exposed secret for all of them.
        bounds: (p, r) of each kind of secrets, at least one.
        steps: T, rounds with fresh samples.
        relation: See `shift_event`.
        noise_floor: Smallest σ. Where a secret is sampled with probability below r − p no noise
            at all meets (p, r): the release may publish it that often (errata B-004.10). At
            σ = 1 a sampled record is still √2-GDP.

    Returns:
        σ, to a relative 1e-3 (1e-6 for one round, in closed form); its event meets every bound.

    Raises:
        ValueError: Unless 0 < prior < posterior < 1 for each bound and 0 < noise_floor.

    **Privacy** Counts of every secret are stochastically smaller than those of the most exposed
    one, so its pair dominates all of theirs (`shift_event`), and B(p) of it bounds each kind at its
    own p.

    **Source** SecPE, Algorithm 1, line 6: σ = max_j σ_j, with the exact mixture: the single
    Gaussian with the mixture's mean, which the paper computes instead, gives r/p = 47.5 for 10
    (errata B-004.6).
    """
    if not bounds or not noise_floor > 0:
        raise ValueError(f"Expected a (p, r) and noise_floor > 0, got {bounds} and {noise_floor}.")

    def meets(noise_std: float, prior: float, posterior: float) -> bool:
        event = shift_event(
            count_probabilities=count_probabilities,
            noise_std=noise_std,
            steps=steps,
            relation=relation,
        )
        return posterior_of_events([event], prior) <= posterior

    surely = joint_factor(relation) * (len(count_probabilities) - 1) * math.sqrt(steps)
    precision = 1e-6 if steps == 1 else 1e-3
    high = noise_floor
    for bound in bounds:
        check_bounds(*bound)
        if meets(high, *bound):
            continue
        low, high = high, surely / gaussian_budget(*bound) * ROUND_UP
        while not meets(high, *bound):  # where convolving rounds up more than certain shifts leave
            low, high = high, 1.01 * high
        while high / low > 1.0 + precision:  # [secpe A1:L6]
            middle = math.sqrt(low * high)
            low, high = (low, middle) if meets(middle, *bound) else (middle, high)
    return high


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


def sampling_probabilities(weights: np.ndarray) -> np.ndarray:
    """Turns (N,) weights into (N,) sampling probabilities: the heaviest records always take part.

    Args:
        weights: (N,) w_i >= 0, not all zero.

    **Source** SecPE, Algorithm 1, line 4, which prints w_i / (max w · Σ w). These sum to 1 / max w:
    one to six records of 8000 take part in a round, and less noise only hides that the data is
    hardly used (errata B-004.5). The formula in its section 3.2.1 lacks w_i.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not (weights.size and (weights >= 0).all() and weights.max() > 0):
        raise ValueError("Expected weights >= 0, not all zero.")
    return weights / weights.max()  # [secpe A1:L4]


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
