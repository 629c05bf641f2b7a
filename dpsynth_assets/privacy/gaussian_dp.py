"""Cost of Gaussian noise, continuous and integer: exact (ε, δ), and Gaussians that dominate.

**Continuous noise.** A release is μ-GDP when telling neighbours apart is at least as hard as
telling N(0, 1) from N(μ, 1): a Gaussian mechanism with noise multiplier σ is exactly 1/σ-GDP. ε and
δ are rounded up, μ down; a sum of μ² is rounded up.

**Integer noise.** n counts move by k each under noise of σ (`DiscreteGaussianEvent`). The loss
depends on the sum S of the n noises alone: it is k (n k + 2 S) / (2σ²). Noise and moved noise have
the same likelihood ratios as S and S + n k, so δ(ε) is a sum over one lattice, without any error
but that of floats. Continuous noise of the same σ has the same ρ, but lighter tails: between two
whole numbers nothing lies, so what a threshold test gains there is never lost again. At σ = 1.5 and
δ = 1e-6 it would understate ε by 1.6 %, at σ = 10 by 0.04 %; the gap shrinks as 1/σ².
"""

import math
import sys
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from dpsynth_assets.privacy.errors import check_at_least, check_delta
from dpsynth_assets.privacy.events import DiscreteGaussianEvent
from dpsynth_assets.privacy.renyi import boundary

_ULP = 2.0**-52


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Computes the smallest δ at which μ-GDP implies (ε, δ)-DP, rounded up.

    Args:
        mu: μ >= 0.
        epsilon: Any finite ε; a negative one gives the same pair's divergence.

    Raises:
        ValueError: If μ or ε is out of its domain.

    **Source** Balle and Wang 2018, Theorem 8: δ = Φ(a) − e^ε Φ(b) with a = μ/2 − ε/μ and
    b = a − μ. Since φ(a) = e^ε φ(b), this is φ(a) (R(−a) − R(−b)) with Mills' ratio R = Φ̄/φ:
    for a < 0 no part of it under- or overflows.
    """
    from scipy.special import erfcx, log_ndtr, ndtr

    mu, epsilon = float(mu), float(epsilon)
    check_at_least(0, mu=mu)
    if not math.isfinite(epsilon):
        raise ValueError(f"Expected a finite epsilon, got {epsilon}.")
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    a = mu / 2.0 - epsilon / mu
    b = a - mu
    units = 8.0 * _ULP * (1.0 + mu / 2.0 + abs(epsilon) / mu)  # what a and b are good to
    squared = 8.0 * _ULP + units**2 / (8.0 * _ULP)  # and their squares, inside of exp
    if a > 0:
        kept, lost = float(ndtr(a)), math.exp(epsilon + float(log_ndtr(b)))
        delta = kept - lost + units * kept + squared * lost
    else:  # R(x) = √(π/2) erfcx(x/√2) and φ(a) = e^(−a²/2) / √(2π)
        kept, lost = float(erfcx(-a / math.sqrt(2.0))), float(erfcx(-b / math.sqrt(2.0)))
        delta = math.exp(-a * a / 2.0) / 2.0 * (kept - lost + units * (kept + lost))
        delta *= 1.0 + squared
    return min(1.0, max(delta, sys.float_info.min))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Computes the smallest ε >= 0 with `gaussian_delta(mu, ε) <= delta`, rounded up."""
    check_at_least(0, mu=mu)
    check_delta(delta)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # μ-GDP is μ²/2-zCDP, so the ceiling holds (Bun and Steinke 2016, Proposition 1.3).
    ceiling = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + 1e-9
    return boundary(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 0.0, ceiling)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Computes the largest μ with `gaussian_delta(μ, epsilon) <= delta`, rounded down.

    The least noise multiplier of a Gaussian mechanism within (ε, δ) is its reciprocal.

    Raises:
        ValueError: If ε is negative or not finite, or δ is outside (0, 1).
    """
    check_at_least(0, epsilon=epsilon)
    check_delta(delta)
    ceiling = 1.0
    while gaussian_delta(ceiling, epsilon) <= delta:
        ceiling *= 2.0
    return boundary(lambda mu: gaussian_delta(mu, epsilon) <= delta, ceiling, 0.0)


def compose_mu(mus: Iterable[float]) -> float:
    """Composes adaptively chosen μ_i-GDP releases: √(Σ μ_i²), rounded up; 0 for none.

    **Source** Dong, Roth and Su 2022, Corollary 3.3.
    """
    every = list(mus)
    for mu in every:
        check_at_least(0, mu=mu)
    return math.sqrt(math.fsum(mu**2 for mu in every)) * (1.0 + 4.0 * _ULP)


SUMMED_FROM = 2.5
"""From this σ on, S is integer Gaussian noise of σ √n up to a factor of 1 ± n · 1e-26."""

SMOOTH_STD = 1000.0
"""From this σ √n on, the dominating Gaussian is read off a closed form, 1.5e-6 above 1/σ."""

LARGEST_MU = 100.0
"""Up to this n k / (σ √n) the closest dominating Gaussian is sought; beyond, none protects."""

_REACH = 38.0
"""Standard deviations of S looked at: what lies beyond has probability below 1e-313."""

_SHARPENED = 3.0
"""r² of the closed form: 2 Σ exp(−2π² r² j²) is below 4e-26."""

_UP = 1.0 + 1e-12
_ULPS = 4e-16


def integer_gaussian_delta(event: DiscreteGaussianEvent, epsilon: float) -> float:
    """Computes the smallest δ at which the event is (ε, δ)-DP, rounded up.

    Args:
        event: Numbers with integer noise, σ √n below `SMOOTH_STD`.
        epsilon: ε >= 0.

    **Privacy** δ(ε) = Σ P(s) (1 − e^(ε − loss(s)))₊. Each loss is taken a few units in the last
    place too large.
    """
    losses, masses = integer_gaussian_losses(event)
    first = int(np.searchsorted(losses, epsilon / _UP - _ULPS, side="right"))
    tail = losses[first:]
    kept = -np.expm1(np.minimum(epsilon - tail - _ULPS * (abs(epsilon) + tail), 0.0))
    return min(1.0, max(float(masses[first:] @ kept) * _UP, 5e-324))


def integer_gaussian_epsilon(event: DiscreteGaussianEvent, delta: float) -> float:
    """Computes the smallest ε >= 0 with `integer_gaussian_delta(event, ε) <= delta`, rounded up.

    Between two losses δ(ε) = A − e^ε B, with A and B the probabilities of a larger loss under
    both neighbours, so ε is found in closed form.
    """
    if integer_gaussian_delta(event, 0.0) <= delta:
        return 0.0
    losses, masses = integer_gaussian_losses(event)
    fails, fits = int(np.searchsorted(losses, 0.0)) - 1, len(losses) - 1
    while fits - fails > 1:
        middle = (fails + fits) // 2
        holds = integer_gaussian_delta(event, float(losses[middle])) <= delta
        fails, fits = (fails, middle) if holds else (middle, fits)
    low, high = max(0.0, float(losses[max(fails, 0)])), float(losses[fits])
    first, second = masses[fits:].sum(), (masses[fits:] * np.exp(-losses[fits:])).sum()
    epsilon, step = math.log(max(first - delta, 1e-320) / second), 1e-15
    epsilon = min(max(epsilon, low), high)
    while epsilon < high and integer_gaussian_delta(event, epsilon) > delta:
        epsilon, step = min(high, epsilon + step * max(1.0, epsilon)), 2.0 * step
    return epsilon * _UP


@lru_cache(maxsize=64)
def integer_gaussian_losses(event: DiscreteGaussianEvent) -> tuple[np.ndarray, np.ndarray]:
    """Lists the privacy losses of an event, ascending, and the probability of each.

    Returns:
        (A,) losses and (A,) probabilities, which sum to 1. The same for both neighbours.
    """
    sums, masses = _law_of_sum(event.noise_std, event.count)
    unit = event.shift / (2.0 * event.noise_std**2)
    return unit * (event.count * event.shift + 2.0 * sums), masses


def dominating_mu(event: DiscreteGaussianEvent) -> float:
    """Finds μ such that no test tells more of the event than N(μ, 1) against N(0, 1); rounded up.

    Infinite where n k / (σ √n) exceeds `LARGEST_MU` and the noise is below 2.

    **Privacy** S is log-concave, so the best tests are thresholds: the trade-off curve joins the
    points (P(S > t), P(S > t − n k)) by straight lines. The curve of a Gaussian pair is concave,
    so it lies above them if it lies above the points: μ is the largest z(t) − z(t − n k), where
    z(t) is the normal quantile of P(S <= t). Points with a probability below 1e-313 are left out.
    At σ = 1, 2, 5 and 10, one count, μ is 4.2, 1.0, 0.17 and 0.04 % above 1/σ: it is
    (1 + 1/(24σ²))/σ. Gaussians compose exactly, hence so do events that each has one.

    Closed form, from `SMOOTH_STD` on: a whole number drawn from integer Gaussian noise of variance
    r² about a point of N(θ, σ² − r²) is integer Gaussian noise of variance σ² about θ, up to a
    factor of 1 ± 2 Σ exp(−2π² r² j²), since Σ_x exp(−(x − y)²/(2r²)) is constant in y up to that
    factor (Poisson summation). It is post-processing of the point: μ = n k / √(nσ² − r²).
    """
    if event.count == 0:
        return 0.0
    if event.noise_std < SUMMED_FROM and event.count > 1:
        one = dominating_mu(DiscreteGaussianEvent(noise_std=event.noise_std, shift=event.shift))
        return one * math.sqrt(event.count) * _UP
    std, moved = event.noise_std * math.sqrt(event.count), event.count * event.shift
    if std < SMOOTH_STD and moved <= LARGEST_MU * std:
        return _largest_step(std, moved)
    variance = std**2 - _SHARPENED
    return moved / math.sqrt(variance) * _UP if variance > 0 else math.inf


def is_smooth(event: DiscreteGaussianEvent) -> bool:
    """Says whether σ √n is so large that the dominating Gaussian has no price to speak of."""
    smooth = event.noise_std >= SUMMED_FROM
    return smooth and event.noise_std * math.sqrt(event.count) >= SMOOTH_STD


def _law_of_sum(noise_std: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the (2R + 1,) values of S and their probabilities.

    From `SUMMED_FROM` on S is itself integer Gaussian: adding noise of variance b² to one of a²
    gives exp(−s²/(2(a² + b²))) times Σ_x exp(−(x − c)²/(2t²)), with t² = a²b²/(a² + b²) >= σ²/2,
    and that sum is constant in c up to 1 ± 2 Σ exp(−2π² t² j²) < 1 ± 1e-26.
    """
    if noise_std >= SUMMED_FROM or count == 1:
        return _noise(noise_std * math.sqrt(count))
    _, one = _noise(noise_std)
    masses, power = np.ones(1), count
    while power:
        masses = np.convolve(masses, one) if power % 2 else masses
        one, power = np.convolve(one, one), power // 2
        one = _middle(one, noise_std * math.sqrt(count))
    masses = _middle(masses, noise_std * math.sqrt(count))
    reach = len(masses) // 2
    return np.arange(-reach, reach + 1.0), masses / masses.sum()


def _middle(masses: np.ndarray, std: float) -> np.ndarray:
    """Cuts a symmetric distribution off where nothing is left."""
    cut = max(0, len(masses) // 2 - math.ceil(_REACH * std))
    return masses[cut : len(masses) - cut]


def _noise(std: float) -> tuple[np.ndarray, np.ndarray]:
    reach = math.ceil(_REACH * std)
    values = np.arange(-reach, reach + 1.0)
    weights = np.exp(-((values / std) ** 2) / 2.0)
    return values, weights / weights.sum()


@lru_cache(maxsize=256)
def _largest_step(std: float, moved: int) -> float:
    """Finds the largest z(t) − z(t − moved) of integer Gaussian noise."""
    from scipy.special import ndtri_exp

    last = moved + math.ceil(_REACH * std)
    logs = -((np.arange(last + math.ceil(8.0 * std) + 2) / std) ** 2) / 2.0
    beyond = np.logaddexp.accumulate(logs[::-1])[::-1]  # ln Σ of all weights from a value on
    whole = np.logaddexp(beyond[0], beyond[1])
    upper = -ndtri_exp(beyond[1 : last + 2] - whole)  # z(0), ..., z(last)
    quantiles = np.concatenate([-upper[::-1], upper])  # z(−1 − t) = −z(t)
    steps = quantiles[moved:] - quantiles[:-moved]
    return float(steps.max()) * _UP + 1e-13
