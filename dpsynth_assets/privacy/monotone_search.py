"""Searches for where a cost that falls, or a condition that turns, meets its target.

Every answer lies on the permitted side: what comes back was itself evaluated and found to fit.
"""

import math
from collections.abc import Callable, Sequence

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
        f"Expected some noise multiplier to meet ε = {target}, got none up to "
        f"{CEILING:g}: raise target_epsilon or release less."
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


def round_up(cost: Callable[[float], float], guess: float, target_epsilon: float) -> float:
    """Raises an exact solution by units in the last place until its cost is within the target."""
    multiplier, share = guess, 1e-15
    while cost(multiplier) > target_epsilon:
        multiplier, share = guess * (1.0 + share), 2.0 * share
    return multiplier


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


def smallest_count(fits: Callable[[int], bool], guess: int) -> int:
    """Finds the smallest count >= 1 that fits, by steps of an eighth from `guess`, then halving."""
    low, high = 0, guess
    while not fits(high):
        low, high = high, high + math.ceil(high / 8)
        if high > CEILING:
            raise ValueError("Expected some batch size to fit, got none: lower tokens or slack.")
    while low == 0 and high > 1:
        smaller = high - math.ceil(high / 8)
        low, high = (0, smaller) if fits(smaller) else (smaller, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def largest_count(fits: Callable[[int], bool], ceiling: int) -> int:
    """Bisects for the largest count in [0, ceiling] that fits; 0 is known to fit."""
    low, high = 0, ceiling + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
