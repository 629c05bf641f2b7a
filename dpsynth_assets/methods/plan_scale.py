"""Scales the shares of a fixed plan until all its releases together cost the budget."""

import math
from collections.abc import Callable, Sequence

from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import Event, event_to_json

SLACK = 0.002
"""Share of the budget that may stay unspent; whole tokens cost more than this anyway."""

_FIRST_GUESS = 1.1
"""What optimal composition gains over zCDP at the usual budgets."""

_STEPS = 8
_DIGITS = 10_000
_LARGEST = 1.6
"""More than optimal composition can gain: a plan whose methods refuse is not blown up to fill."""


def largest_scale(fixed_share: float) -> float:
    """Bounds the factor: shares that it moves gain all that the whole budget may gain.

    Args:
        fixed_share: Share of ρ that no factor moves: noise that the dataset file declares.

    Returns:
        1.6 where every share can be moved; more where a part of the budget stands still.
    """
    if not 0 <= fixed_share < 1:
        return _LARGEST  # Nothing is left to be moved.
    return 1 + (_LARGEST - 1) / (1 - fixed_share)


def fitted_scale(
    events_at: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    largest: float = _LARGEST,
) -> float:
    """Finds the largest factor on every share at which the composed plan costs at most ε.

    Tight accounting prices a plan as a whole, so shares of ρ that sum to one cost less (or, with
    many small releases, a little more) than the budget. The factor is kept in `DPSYNTH_HOME`,
    since composing privacy-loss distributions is too slow for opening the web UI; whatever the
    file says, the ledger composes the plan anew before it charges.

    Args:
        events_at: Events of the plan with every share multiplied by a factor.
        epsilon: Budget ε.
        delta: Budget δ.
        largest: Bound of the factor (`largest_scale`).

    Returns:
        A factor in (0, largest].
    """
    events = events_at(1.0)
    if not events:
        return 1.0  # Nothing is paid: every method is refused, or free.
    key = {"scale of": [event_to_json(event) for event in events], "at": [epsilon, delta]}

    def find() -> float:
        cost = lambda factor: epsilon_of(events_at(factor), delta, "tight")  # noqa: E731
        return math.floor(_search(cost, epsilon, largest) * _DIGITS) / _DIGITS

    return float(remembered(key, find))


def _search(cost: Callable[[float], float], epsilon: float, largest: float = _LARGEST) -> float:
    """Finds the root of log cost by secant steps inside a bracket that they shrink."""
    low, high = 0.0, largest
    aim = math.log(epsilon * (1 - SLACK / 2))
    factor, points = _FIRST_GUESS, [(math.log(1e-9), -math.inf)]
    for _ in range(_STEPS):
        spent = cost(factor)
        low, high = (factor, high) if spent <= epsilon else (low, factor)
        if low == high or epsilon * (1 - SLACK) <= spent <= epsilon:
            break
        points.append((math.log(factor), math.log(max(spent, 1e-300))))
        guess = math.exp(_secant(points, aim))
        if guess >= largest == high:
            factor = largest  # Nothing has cost too much yet: the bound itself is tried.
        else:
            factor = guess if low < guess < high else (low + high) / 2
    return low or _below(cost, epsilon, high)


def _secant(points: list[tuple[float, float]], aim: float) -> float:
    """Where the line through the last two points meets `aim`; at first, slope 0.6 is assumed."""
    (before, earlier), (now, value) = points[-2:]
    slope = (value - earlier) / (now - before) if math.isfinite(earlier) and now != before else 0.6
    return now + (aim - value) / (slope if 0.1 < slope < 2 else 0.6)


def _below(cost: Callable[[float], float], epsilon: float, high: float) -> float:
    """Halves until the plan fits: a plan that never fits keeps refusing in the ledger."""
    while high > 1e-6:
        high /= 2
        if cost(high) <= epsilon:
            return high
    return high
