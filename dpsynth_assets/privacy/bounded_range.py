"""Softmax sampling of tokens as a bounded-range mechanism, and its optimal adaptive composition.

A mechanism is η-bounded-range (BR) when, between neighbours, max_x − min_x of the log-likelihood
ratio is at most η (Durfee-Rogers 2019). Letters: η range, k draws, e an ε on the grid, t the
loss the adversary picks, V_k(e) the worst δ of k adaptive draws at ε = e.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

STEPS_PER_ETA = 24
"""Grid points per η: within 0.5% of the optimum; twice as many would cost four times the time."""

ROUNDING = 1.0 - 1e-9
"""Share of δ that may be used: float64 errors of the recursion stay far below the rest."""

MAXIMUM_WORK = 4e9
"""Grid cells one recursion may compute; longer token blocks are accounted by zCDP instead."""


@dataclass(frozen=True)
class PrivacyProfile:
    """δ as a function of ε on the grid 0, step, 2·step, …; symmetric under swapping neighbours.

    Attributes:
        step: Distance of grid points.
        deltas: (G,) bounds on δ, decreasing.
    """

    step: float
    deltas: np.ndarray

    def epsilon(self, delta: float) -> float:
        """Smallest ε on the grid with δ(ε) <= delta: rounded up; inf past the end."""
        within = np.flatnonzero(self.deltas <= delta * ROUNDING)
        return float(within[0]) * self.step if within.size else math.inf

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """Bounds δ at each ε in [0, end of grid].

        A profile is convex in exp(ε), so the chord of two upper bounds is an upper bound.
        """
        left = np.minimum(epsilons // self.step, len(self.deltas) - 2).astype(np.int64)
        share = np.expm1(epsilons - left * self.step) / math.expm1(self.step)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * self.deltas[left] + share * self.deltas[left + 1]


def horizon(rho: float, delta: float) -> float:
    """An ε beyond which a ρ-zCDP mechanism has δ below `delta` (Bun-Steinke 2016, Lemma 3.5)."""
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def adaptive_profiles(
    eta: float, epsilon_max: float, *, upper: bool = True, steps_per_eta: int = STEPS_PER_ETA
) -> Iterator[PrivacyProfile]:
    """Yields the privacy profile of 0, 1, 2, … adaptively composed η-BR mechanisms.

    Args:
        eta: η > 0 of each draw.
        epsilon_max: End of the grid; past it the last bound is used, which is pessimistic.
        upper: True for a bound over every real-valued t; False for the exact δ of an explicit
            adversary who only plays t on the grid, hence a lower bound.
        steps_per_eta: Grid points per η.

    **Privacy** Among all η-BR pairs the extreme ones have losses {t, t − η} with
    P(t) = p_t = (1 − e^(t−η)) / (1 − e^(−η)), so the exact worst case of k adaptive draws is
    V_j(e) = sup over t in [0, η] of p_t V_{j−1}(e − t) + (1 − p_t) V_{j−1}(e − t + η).
    Between two grid points x = e^(−t) ↦ V(e − t) lies below its chord and p_t is concave in x:
    the two correction terms below bound what a t off the grid could gain.

    **Source** Dong, Durfee, Rogers 2020 (optimal adaptive composition); the corrections are ours.
    """
    step = eta / steps_per_eta
    size = max(2, math.ceil(epsilon_max / step) + 1)
    recursion = _Recursion(eta, steps_per_eta, upper=upper)
    deltas = np.zeros(size)
    draws = 0
    while True:
        yield PrivacyProfile(step, deltas)
        draws += 1
        # δ is exactly 0 from e = draws · η on, so only that part of the grid is computed.
        active = min(size, draws * steps_per_eta)
        following = np.zeros(size)
        following[:active] = recursion.step(deltas, active)
        deltas = following


class _Recursion:
    """One application V ↦ sup_t p_t V(e − t) + (1 − p_t) V(e − t + η) on a grid."""

    def __init__(self, eta: float, steps: int, *, upper: bool) -> None:
        self.steps, self.upper = steps, upper
        loss = np.arange(steps + 1) * (eta / steps)
        self.first = np.expm1(loss - eta) / math.expm1(-eta)
        self.kink = (self.first[:-1] - self.first[1:]) / 4.0
        bend = math.expm1(eta / steps / 2.0) ** 2 / -math.expm1(-eta)
        self.bend = np.exp(loss[:-1] - eta) * bend
        self.negative = np.exp(-np.arange(steps, 0, -1) * (eta / steps))

    def step(self, deltas: np.ndarray, active: int) -> np.ndarray:
        """Bounds the first `active` grid points of the next profile."""
        line = self._extend(deltas, active)
        steps = self.steps
        best = np.zeros(active)
        previous_gain = previous_value = np.empty(0)
        for index in range(steps + 1):
            stays = line[2 * steps - index : 2 * steps - index + active]
            gain = line[steps - index : steps - index + active] - stays
            value = stays + self.first[index] * gain
            if self.upper and index:
                bound = np.maximum(value, previous_value)
                bound += self.kink[index - 1] * np.maximum(gain - previous_gain, 0.0)
                bound += self.bend[index - 1] * np.maximum(gain, previous_gain)
                np.maximum(best, bound, out=best)
            else:
                np.maximum(best, value, out=best)
            previous_gain, previous_value = gain, value
        return np.minimum(np.minimum.accumulate(best), 1.0)

    def _extend(self, deltas: np.ndarray, active: int) -> np.ndarray:
        """Continues V to [−η, 0) by symmetry and past the grid by its last (or no) mass."""
        mirrored = deltas[np.minimum(np.arange(self.steps, 0, -1), len(deltas) - 1)]
        below = 1.0 - self.negative + self.negative * mirrored
        needed = active + self.steps
        inside = deltas[:needed]
        beyond = np.full(needed - len(inside), deltas[-1] if self.upper else 0.0)
        return np.minimum.accumulate(np.concatenate([below, inside, beyond]))


def recursion_is_affordable(eta: float, count: int, delta: float) -> bool:
    """Says whether the recursion over `count` draws takes seconds rather than minutes."""
    points = horizon(count * eta**2 / 8.0, delta * 1e-4) / eta * STEPS_PER_ETA
    return count * points * STEPS_PER_ETA <= MAXIMUM_WORK


def bounded_range_profile(
    eta: float, count: int, delta: float, *, upper: bool = True
) -> PrivacyProfile:
    """Computes the profile of `count` draws on a grid that reaches δ far below `delta`."""
    epsilon_max = min(count * eta, horizon(count * eta**2 / 8.0, delta * 1e-4)) + eta
    for draws, profile in enumerate(adaptive_profiles(eta, epsilon_max, upper=upper)):
        if draws == count:
            return profile
    raise AssertionError("unreachable: adaptive_profiles is endless")


def bounded_range_epsilon(eta: float, count: int, delta: float, *, upper: bool = True) -> float:
    """Computes ε at δ = `delta` of `count` adaptive η-BR draws; an upper bound by default.

    With `upper=False` an explicit adversary attains more than `delta` at the returned grid ε.
    """
    if count == 0:
        return 0.0
    profile = bounded_range_profile(eta, count, delta, upper=upper)
    if upper:
        return min(profile.epsilon(delta), count * eta)
    above = np.flatnonzero(profile.deltas > delta)
    return float(above[-1] * profile.step) if above.size else 0.0
