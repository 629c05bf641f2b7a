"""The blow-up function B(p) = sup {P(E) : Q(E) <= p} of Gaussian mixtures and of compositions.

A mixture event is the pair P = Σ_k P(k) N(shift_k, σ²), Q = N(0, σ²), repeated. Its privacy loss
grows with the noisy sum x, so the best events are {x > t}: one round has a closed form, and
δ_{P|Q}(ε) = P(x > t) − e^ε Q(x > t) is exact at ε = loss(t). Compositions convolve losses on a
grid; every rounding goes up. B is read as inf_ε δ_{P|Q}(ε) + e^ε p.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpsynth_assets.privacy.accounting import composed_pld
from dpsynth_assets.privacy.events import Event, MixtureGaussianEvent
from dpsynth_assets.privacy.pld import DISCRETIZATION

ROUND_UP = 1.0 + 1e-11
"""Covers the float64 error of closed forms."""

CONVOLUTION_ERROR = 1e-12
"""Added to every B(p) read off a convolution: the float64 error of its Fourier transforms."""

LOSS_REACH = 45.0
"""Losses above ln(1/p) + 45 count as infinite and below −45 as −45; moves B(p) by < T e^−45."""

NOISE_REACH = 9.5
"""Standard deviations of noise looked at: P(N(0, 1) > 9.5) < 1.1e-21."""

GRID_POINTS = 20_000
"""Points of the noise axis, and at least of the loss axis, of one mixture."""

LARGEST_STEP = 1e-3
"""Largest spacing of privacy losses where mixtures are composed among themselves."""

TAIL = 1e-18
"""Probability of rare large counts that is moved to the largest of all."""

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def without_tail(distribution: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists the counts of positive probability and their probabilities, the far tail moved up.

    Args:
        distribution: (m + 1,) probabilities of 0, …, m.

    Returns:
        Ascending counts, and probabilities of a distribution that is stochastically larger than
        `distribution`.
    """
    exceeded = np.cumsum(distribution[::-1])[::-1]
    likely = int(np.count_nonzero(exceeded > TAIL))
    chances = np.array(distribution, dtype=np.float64)
    chances[likely:] = 0.0
    if likely < len(distribution):
        chances[-1] = exceeded[likely]
    kept = np.flatnonzero(chances)
    return kept, np.minimum(chances[kept], 1.0)


def mixture_terms(event: MixtureGaussianEvent) -> tuple[np.ndarray, np.ndarray]:
    """Lists shifts / σ of positive probability; what is missing of 1 goes to the largest."""
    chances = np.array(event.probabilities)
    missing = 1.0 - math.fsum(event.probabilities)
    chances[-1] += missing if missing > 1e-14 else 0.0
    kept = chances > 0
    return np.array(event.shifts)[kept] / event.noise_std, chances[kept]


def mixture_blow_up(event: MixtureGaussianEvent, prior: float) -> float:
    """Computes B(p) of one round in closed form, rounded up: cut where Q(x > t) = p."""
    from scipy.special import ndtr, ndtri

    moves, chances = mixture_terms(event)
    tails = ndtr(ndtri(prior) + moves)
    return min(1.0, math.fsum(chances * tails) * ROUND_UP)


def composed_blow_up(events: Sequence[Event], prior: float) -> float:
    """Bounds B(p) of a composition of atomic events, one at least with a loss, rounded up.

    Mixtures enter with P as the secret's presence. DP events hold in both directions; where
    their two distributions differ the larger δ is taken.
    """
    pair = _composed_pair(events, prior)

    def bound(epsilon: float) -> float:
        return float(pair.get_delta_for_epsilon(epsilon)) + math.exp(epsilon) * prior

    # Convex in e^ε, hence golden section; every value is a bound.
    low, high = -LOSS_REACH, math.log(1.0 / prior)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    while high - low > 1e-4:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
    return min(1.0, min(at_left, at_right) * ROUND_UP + CONVOLUTION_ERROR)


def _composed_pair(events: Sequence[Event], prior: float) -> Any:
    """Convolves privacy losses, all on one spacing: the DP events' own, or the finest needed."""
    from dp_accounting.pld import privacy_loss_distribution

    mixtures = [event for event in events if isinstance(event, MixtureGaussianEvent)]
    others = [event for event in events if not isinstance(event, MixtureGaussianEvent)]
    profiles = [_profile(event, prior) for event in mixtures]
    spans = (float(losses[-1] - losses[0]) for losses, _ in profiles)
    step = min([LARGEST_STEP, *(span / GRID_POINTS for span in spans if span > 0)])
    step = DISCRETIZATION if others else step
    pair = composed_pld(others, prior * 1e-3) if others else None
    for event, (losses, deltas) in zip(mixtures, profiles, strict=True):
        part = privacy_loss_distribution.PrivacyLossDistribution(_connect(losses, deltas, step))
        part = part.self_compose(event.steps) if event.steps > 1 else part
        pair = part if pair is None else pair.compose(part)
    return pair


def _profile(event: MixtureGaussianEvent, prior: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes ascending losses of one round and δ_{P|Q}, exact at each of them."""
    from scipy.special import log_ndtr, logsumexp, ndtr

    moves, chances = mixture_terms(event)

    def loss(x: np.ndarray | float) -> np.ndarray:
        exponents = np.multiply.outer(np.asarray(x), moves) - moves**2 / 2.0
        return np.asarray(logsumexp(exponents, axis=-1, b=chances))

    rare = np.cumsum(chances[::-1])[::-1] <= TAIL
    ends = -NOISE_REACH, float(moves[~rare][-1]) + NOISE_REACH
    levels = -LOSS_REACH, math.log(1.0 / prior) + LOSS_REACH
    first, last = (_crossing(loss, level, *ends) for level in levels)
    axis = np.linspace(first, last, GRID_POINTS)
    losses = np.maximum.accumulate(loss(axis))
    deltas = ndtr(moves - axis[:, None]) @ chances - np.exp(losses + log_ndtr(-axis))
    # Never quite 1: the library takes the logarithm of what is left.
    return losses, np.clip(np.minimum.accumulate(deltas), 0.0, 1.0 - 1e-15)


def _crossing(loss: Callable[[float], np.ndarray], level: float, low: float, high: float) -> float:
    """Bisects for where an increasing loss crosses `level`; the nearer end where it does not."""
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if float(loss(middle)) > level else (middle, high)
    return high


def _connect(losses: np.ndarray, deltas: np.ndarray, step: float) -> Any:
    """Connects the dots of a profile on multiples of `step`.

    δ is convex in e^ε and 1 at e^ε = 0, so chords between the points of the profile bound it
    from above; after the last point its value there does.
    """
    from dp_accounting.pld import pld_pmf

    low, high = math.floor(losses[0] / step), math.ceil(losses[-1] / step)
    growth = np.exp(np.arange(low, high + 1) * step)
    chords = np.interp(growth, np.append(0.0, np.exp(losses)), np.append(1.0, deltas))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        step, low, high, np.minimum.accumulate(chords)
    )
