"""Noise of few-shot generation: the least that a target buys."""

import math
from collections.abc import Callable

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.monotone_search import smallest_multiplier
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    epsilon_at_order,
    filter_order,
    renyi_divergence,
    zcdp_rho,
)

_BELOW = 1.0 - 1e-9
"""Keeps shares that sum to one from overspending by a rounding error."""


def least_noise(
    event: Callable[[float], PoissonGaussianEvent],
    sampling_probability: float,
    terms: CohortTerms,
    target_epsilon: float,
) -> float:
    """Finds the smallest noise multiplier within the target, in two senses.

    A sampled Gaussian's Rényi curve bends upwards, and the ledger's filter compares releases at
    one order α that the cohort's budget fixes. There the steps must stay within α ρ, ρ what the
    target is worth: then shares of ρ that sum to one fit the filter, where noise calibrated at
    the release's own best order could exceed it hundreds of times. The release alone must also
    read at most the target; its best order is below that of unsampled noise.

    Args:
        event: Prices all steps at a noise multiplier.
        sampling_probability: q of every record in every step.
        terms: The cohort's declared terms.
        target_epsilon: ε > 0 that the steps may cost.
    """
    order = filter_order(terms.epsilon, terms.delta)
    rho = zcdp_rho(target_epsilon, terms.delta) * _BELOW
    highest = filter_order(target_epsilon, terms.delta)
    orders = [each for each in ORDERS if each < highest] or ORDERS[:1]

    def alone(multiplier: float) -> float:
        return min(
            epsilon_at_order(renyi_divergence(event(multiplier), each), each, terms.delta)
            for each in orders
        )

    unsampled = math.sqrt(float(event(1.0).rho) / rho)
    guess = max(unsampled * sampling_probability, min(unsampled, 0.5))
    found = smallest_multiplier(lambda z: renyi_divergence(event(z), order), guess, order * rho)
    if epsilon_of([event(found)], terms.delta, "zcdp") <= target_epsilon:
        return found
    return smallest_multiplier(alone, found, target_epsilon)


def input_refusal(sampling_probability: float | None, target_epsilon: float) -> str | None:
    """Refuses an undeclared number of records, and a method without a budget."""
    if sampling_probability is None:
        return (
            "Expected a declared number of records, from which few_shot computes the sampling "
            "probability, got none. Declare public_facts.records if the number is public, or use "
            "another method."
        )
    if target_epsilon <= 0:
        return (
            f"Expected target_epsilon > 0 for few_shot, got {rounded_up(target_epsilon)}. Give "
            "it a share."
        )
    return None
