"""Noise that keeps a secret at (p, r): SecPE's Algorithm 1 with the exact mixture."""

import math

import numpy as np

from dpsynth_assets.privacy.blow_up import ROUND_UP, without_tail
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.secret_protection import (
    check_bounds,
    gaussian_budget,
    posterior_of_events,
)
from dpsynth_assets.privacy.units import NeighboringRelation


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
    prior: float,
    posterior: float,
    steps: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
    noise_floor: float = 1.0,
) -> float:
    """Finds the smallest σ >= `noise_floor` with B(p) <= r over `steps` rounds, rounded up.

    Args:
        count_probabilities: (m + 1,) distribution of the sampled records of one secret in a round.
        prior: p of (p, r).
        posterior: r of (p, r).
        steps: T, rounds with fresh samples.
        relation: See `shift_event`.
        noise_floor: Smallest σ. Where a secret is sampled with probability below r − p no noise
            at all meets (p, r): the release may publish it that often (errata B-004.10). At
            σ = 1 a sampled record is still √2-GDP.

    Returns:
        σ, to a relative 1e-3 (1e-6 for one round, in closed form); its event meets the bound.

    Raises:
        ValueError: Unless 0 < prior < posterior < 1 and 0 < noise_floor.

    **Source** SecPE, Algorithm 1, line 6, with the exact mixture: the single Gaussian with the
    mixture's mean, which the paper computes instead, gives r/p = 47.5 for 10 (errata B-004.6).
    """
    check_bounds(prior, posterior)
    if not noise_floor > 0:
        raise ValueError(f"Expected noise_floor > 0, got {noise_floor}.")

    def meets(noise_std: float) -> bool:
        event = shift_event(
            count_probabilities=count_probabilities,
            noise_std=noise_std,
            steps=steps,
            relation=relation,
        )
        return posterior_of_events([event], prior) <= posterior

    if meets(noise_floor):
        return noise_floor
    surely = joint_factor(relation) * (len(count_probabilities) - 1) * math.sqrt(steps)
    low, high = noise_floor, surely / gaussian_budget(prior, posterior) * ROUND_UP
    while not meets(high):  # where convolving rounds up more than certain shifts leave
        low, high = high, 1.01 * high
    precision = 1e-6 if steps == 1 else 1e-3
    while high / low > 1.0 + precision:  # [secpe A1:L6]
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
