"""Calibration: what a target ε allows, in private tokens, noise or batch size.

Counts are rounded down, noise multipliers and batch sizes up: the plan that comes back costs at
most the target under the same accountant. A search returns what was itself evaluated and found to
fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.errors import check_positive
from dpsynth_assets.privacy.events import (
    Event,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.pld import DISCRETIZATION
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    epsilon_at_order,
    filter_order,
    least_sampled_epsilon,
    renyi_divergence,
    zcdp_rho,
)

TOLERANCE = 1e-3
"""Most by which a found multiplier may exceed the smallest fitting one, relative."""

FINE_TOLERANCE = 1e-9
"""The same where one evaluation is cheap."""

MIXED_TOLERANCE = 1e-4
"""The same where the answer is known but for a few per cent, and one evaluation takes a while."""

CEILING = 1e6
"""A noise multiplier or batch size above this is no plan."""


def smallest_multiplier(cost: Callable[[float], float], guess: float, target: float) -> float:
    """Follows secants of ln cost in ln multiplier, a hair above the root, then a hair below it."""
    fails, fits = 0.0, math.inf
    points = [(guess, cost(guess))]
    while len(points) < 100:
        multiplier, epsilon = points[-1]
        fails, fits = (fails, multiplier) if epsilon <= target else (multiplier, fits)
        if fits <= fails * (1.0 + TOLERANCE):
            return fits
        following = _secant_root(points, target) * (1.0 + 0.3 * TOLERANCE)
        following = min(following, fits / (1.0 + 0.9 * TOLERANCE))
        if fits < math.inf and (following <= fails or (fails > 0 and len(points) % 4 == 0)):
            following = math.sqrt(fails * fits) if fails else fits / 2.0
        following = max(following, fails * (1.0 + 0.3 * TOLERANCE))
        if following > CEILING:
            break
        points.append((following, cost(following)))
    raise ValueError(
        f"Expected a noise multiplier that reaches ε = {target}, got none up to {CEILING:g}: "
        "raise target_epsilon or release less."
    )


def _secant_root(points: Sequence[tuple[float, float]], target: float) -> float:
    """Extrapolates where the cost meets the target; one point alone is read as cost ~ 1/σ."""
    multiplier, epsilon = points[-1]
    if not 0 < epsilon < math.inf:
        return multiplier * (0.2 if epsilon == 0 else 5.0)
    slope = -1.0
    if len(points) > 1 and 0 < points[-2][1] < math.inf and points[-2][1] != epsilon:
        slope = math.log(epsilon / points[-2][1]) / math.log(multiplier / points[-2][0])
    step = math.log(target / epsilon) / min(slope, -0.1)
    return multiplier * math.exp(min(max(step, -3.0), 3.0))


def least_noise(
    fits: Callable[[float], bool], guess: float, *, tolerance: float = FINE_TOLERANCE
) -> float:
    """Raises a guess that is close below by growing steps until it fits, then halves what is left.

    Costs need not fall everywhere: that of integer noise wavers a little as its losses move past
    ε. What comes back fits, and what lies a relative `tolerance` below it does not, unless it is
    the guess itself.
    """
    low = high = guess
    step = tolerance
    while not fits(high):
        low, high, step = high, high * (1.0 + step), 4.0 * step
    while high > low * (1.0 + tolerance):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def largest_count(fits: Callable[[int], bool], ceiling: int) -> int:
    """Bisects for the largest count in [0, ceiling] that fits; 0 is known to fit."""
    low, high = 0, ceiling + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


COARSE_DISCRETIZATION = 5.0 * DISCRETIZATION
"""Spacing of privacy losses while a search is still far from its answer."""


def integer_noise_std(
    events_at: Callable[[float], Sequence[Event]],
    *,
    target_epsilon: float,
    delta: float,
    accountant: str,
) -> float:
    """Finds the smallest standard deviation of integer noise at which all counts fit the target.

    Args:
        events_at: What is released at a given σ >= 1; its ρ is that of σ = 1 over σ².
        target_epsilon: ε > 0 of everything together.
        delta: Public δ in (0, 1).
        accountant: `zcdp` or `tight`.

    Returns:
        σ >= 1 within the target: that of continuous noise where it fits, else as little above it
        as fits, under `tight` about 1 / (24σ²), relative. 1 where less would do, the least that
        integer noise allows.
    """
    check_positive("target_epsilon", target_epsilon)
    rho = float(sum(event.rho for event in events_at(1.0)))
    tight = accountant == "tight"
    worth = gaussian_mu(target_epsilon, delta) if tight else 0.0
    guess = math.sqrt(rho / (worth**2 / 2.0 if tight else zcdp_rho(target_epsilon, delta)))

    def fits(noise_std: float) -> bool:
        return epsilon_of(events_at(noise_std), delta, accountant) <= target_epsilon

    return least_noise(fits, max(1.0, guess))


def dp_sgd_noise_multiplier(
    training: PoissonGaussianEvent,
    *,
    target_epsilon: float,
    delta: float,
    accountant: str = "tight",
    other_events: Sequence[Event] = (),
) -> float:
    """Finds the smallest noise multiplier of DP-SGD with Poisson sampling within `target_epsilon`.

    Args:
        training: The event at any noise multiplier.
        target_epsilon: ε > 0 for everything together.
        delta: Public δ in (0, 1).
        accountant: `zcdp` or `tight`.
        other_events: What else is released on the same cohort.

    Returns:
        σ / contribution bound of one record, at most `TOLERANCE` above the
        smallest.

    Raises:
        ValueError: If the other events alone exceed the target, an argument is out of domain, or
            the target is below `least_sampled_epsilon` where neighbours come or go.
    """
    sampled = training.sampling_probability < 1 and not training.replaced
    if sampled and 0 < target_epsilon < (least := least_sampled_epsilon(delta)):
        raise ValueError(
            f"Expected target_epsilon >= {rounded_up(least, '.2g')} at δ = {delta}, got "
            f"{target_epsilon}: below that, no accountant here bounds the gain from sampling."
        )
    room = _gaussian_room(target_epsilon, delta, accountant, other_events)

    def cost(multiplier: float, discretization: float) -> float:
        events = [*other_events, replace(training, noise_multiplier=multiplier)]
        return epsilon_of(events, delta, accountant, discretization=discretization)

    # Many sampled steps are close to μ-GDP with μ² = q² T (e^(1/σ²) − 1) (Bu et al. 2020).
    one_step = room / (training.sampling_probability * math.sqrt(training.steps))
    shift = (2.0 if training.replaced else 1.0) * training.max_records_per_unit
    found = shift / math.sqrt(math.log1p(one_step**2))
    # A coarse grid of privacy losses is several times faster and reads higher.
    for discretization in (COARSE_DISCRETIZATION, DISCRETIZATION):
        found = smallest_multiplier(
            partial(cost, discretization=discretization), found, target_epsilon
        )
    return found


def _gaussian_room(
    target_epsilon: float, delta: float, accountant: str, other_events: Sequence[Event]
) -> float:
    """Guesses the μ of a Gaussian release that fits beside `other_events`.

    Raises:
        ValueError: If they alone exceed the target.
    """
    check_positive("target_epsilon", target_epsilon)
    spent = epsilon_of(other_events, delta, accountant)
    if spent > target_epsilon:
        raise ValueError(
            f"Expected other_events within ε = {target_epsilon}, got ε = "
            f"{rounded_up(spent, '.4g')}: "
            "raise target_epsilon or release less."
        )
    whole = gaussian_mu(target_epsilon, delta)
    if not spent:
        return whole
    rest = whole**2 - gaussian_mu(spent, delta) ** 2
    return math.sqrt(max(rest, 1e-4 * whole**2))


_BELOW = 1.0 - 1e-9
"""Keeps shares that sum to one from overspending by a rounding error."""


def training_noise_multiplier(
    training: PoissonGaussianEvent,
    *,
    target_epsilon: float,
    budget_epsilon: float,
    delta: float,
    accountant: str,
) -> float:
    """Finds the smallest noise multiplier of a training that costs what its share is worth.

    Args:
        training: The event at any noise multiplier.
        target_epsilon: ε > 0 that the share is worth, alone at δ.
        budget_epsilon: ε of the whole cohort, which decides the order of its filter.
        delta: Public δ of the cohort, in (0, 1).
        accountant: `tight` for a plan fixed beforehand, `zcdp` for the filter.

    Returns:
        σ / contribution bound of one record, at most `TOLERANCE` above the
        smallest.

    Raises:
        ValueError: If no multiplier fits, or an argument is outside its domain.

    **Privacy** Under the filter both hold: the training alone reads at most `target_epsilon`, and
    its divergence at the filter's order α is at most α ρ, ρ what the target is worth. The second is
    what makes shares of ρ add up: a sampled Gaussian's Rényi curve bends upwards, so that noise
    calibrated at the training's own best order may exceed α ρ by far.
    """
    if accountant == "tight":
        return dp_sgd_noise_multiplier(training, target_epsilon=target_epsilon, delta=delta)
    order = filter_order(budget_epsilon, delta)
    room = order * zcdp_rho(target_epsilon, delta) * _BELOW

    def event(multiplier: float) -> PoissonGaussianEvent:
        return replace(training, noise_multiplier=multiplier)

    unsampled = math.sqrt(float(event(1.0).rho) * order / room)
    guess = max(unsampled * training.sampling_probability, min(unsampled, 0.5))
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
