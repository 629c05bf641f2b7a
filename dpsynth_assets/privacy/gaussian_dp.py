"""Gaussian differential privacy: exact (ε, δ) of Gaussian releases.

A release is μ-GDP when telling neighbours apart is at least as hard as telling N(0, 1) from
N(μ, 1): a Gaussian mechanism with noise multiplier σ is exactly 1/σ-GDP. ε and δ are rounded up,
μ down; a sum of μ² is rounded up.
"""

import math
import sys
from collections.abc import Callable, Iterable

from dpsynth_assets.privacy.errors import check_delta

_ULP = 2.0**-52

_BISECTIONS = 100


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

    mu, epsilon = _finite("mu", mu), float(epsilon)
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
    mu = _finite("mu", mu)
    check_delta(delta)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # μ-GDP is μ²/2-zCDP, so the ceiling holds (Bun and Steinke 2016, Proposition 1.3).
    ceiling = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + 1e-9
    return _boundary(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 0.0, ceiling)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Computes the largest μ with `gaussian_delta(μ, epsilon) <= delta`, rounded down.

    The least noise multiplier of a Gaussian mechanism within (ε, δ) is its reciprocal.

    Raises:
        ValueError: If ε is negative or not finite, or δ is outside (0, 1).
    """
    epsilon = _finite("epsilon", epsilon)
    check_delta(delta)
    ceiling = 1.0
    while gaussian_delta(ceiling, epsilon) <= delta:
        ceiling *= 2.0
    return _boundary(lambda mu: gaussian_delta(mu, epsilon) <= delta, ceiling, 0.0)


def compose_mu(mus: Iterable[float]) -> float:
    """Composes adaptively chosen μ_i-GDP releases: √(Σ μ_i²), rounded up; 0 for none.

    **Source** Dong, Roth and Su 2022, Corollary 3.3.
    """
    squares = math.fsum(_finite("mu", mu) ** 2 for mu in mus)
    return math.sqrt(squares) * (1.0 + 4.0 * _ULP)


def _boundary(fits: Callable[[float], bool], fails: float, holds: float) -> float:
    """Bisects for where a monotone `fits` turns; returns the side on which it holds."""
    for _ in range(_BISECTIONS):
        middle = (fails + holds) / 2.0
        if middle in (fails, holds):
            break
        fails, holds = (fails, middle) if fits(middle) else (middle, holds)
    return holds


def _finite(name: str, value: float) -> float:
    value = float(value)
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"Expected 0 <= {name} < inf, got {name}={value}.")
    return value
