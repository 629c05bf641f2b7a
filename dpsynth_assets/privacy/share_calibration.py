"""The noise of a sampled training that gets a share of a cohort's budget.

A share is worth an ε. What noise fits it depends on how the cohort adds up its releases: a plan
that was fixed beforehand composes privacy-loss distributions; a filter adds Rényi divergences at
one order that the cohort's whole budget decides.
"""

import math

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
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


def training_noise_multiplier(
    *,
    sampling_probability: float,
    steps: int,
    target_epsilon: float,
    budget_epsilon: float,
    delta: float,
    accountant: str,
    max_records_per_unit: int = 1,
    replaced: bool = False,
) -> float:
    """Finds the smallest noise multiplier of a training that costs what its share is worth.

    Args:
        sampling_probability: q in (0, 1].
        steps: T >= 1.
        target_epsilon: ε > 0 that the share is worth, alone at δ.
        budget_epsilon: ε of the whole cohort, which decides the order of its filter.
        delta: Public δ of the cohort, in (0, 1).
        accountant: `tight` for a plan fixed beforehand, `zcdp` for the filter.
        max_records_per_unit: Records one privacy unit may contribute.
        replaced: Whether neighbours replace a unit instead of adding or removing it.

    Returns:
        σ / contribution bound of one record, at most `monotone_search.TOLERANCE` above the
        smallest.

    Raises:
        ValueError: If no multiplier fits, or an argument is outside its domain.

    **Privacy** Under the filter both hold: the training alone reads at most `target_epsilon`, and
    its divergence at the filter's order α is at most α ρ, ρ what the target is worth. The second is
    what makes shares of ρ add up: a sampled Gaussian's Rényi curve bends upwards, so that noise
    calibrated at the training's own best order may exceed α ρ by far.
    """
    if accountant == "tight":
        return dp_sgd_noise_multiplier(
            sampling_probability=sampling_probability,
            steps=steps,
            target_epsilon=target_epsilon,
            delta=delta,
            max_records_per_unit=max_records_per_unit,
            replaced=replaced,
        )
    order = filter_order(budget_epsilon, delta)
    room = order * zcdp_rho(target_epsilon, delta) * _BELOW

    def event(multiplier: float) -> PoissonGaussianEvent:
        return PoissonGaussianEvent(
            sampling_probability=sampling_probability,
            noise_multiplier=multiplier,
            steps=steps,
            max_records_per_unit=max_records_per_unit,
            replaced=replaced,
        )

    unsampled = math.sqrt(float(event(1.0).rho) * order / room)
    guess = max(unsampled * sampling_probability, min(unsampled, 0.5))
    found = smallest_multiplier(lambda z: renyi_divergence(event(z), order), guess, room)
    if epsilon_of([event(found)], delta, "zcdp") <= target_epsilon:
        return found
    return smallest_multiplier(
        lambda z: _alone(event(z), target_epsilon, delta), found, target_epsilon
    )


def _alone(event: PoissonGaussianEvent, target_epsilon: float, delta: float) -> float:
    """ε of a training at its best order, which lies below the best order of unsampled noise."""
    highest = filter_order(target_epsilon, delta)
    orders = [order for order in ORDERS if order < highest] or ORDERS[:1]
    return min(epsilon_at_order(renyi_divergence(event, order), order, delta) for order in orders)
