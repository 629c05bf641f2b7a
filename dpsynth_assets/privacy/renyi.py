"""Rényi divergences of events, zCDP among them, and the one conversion to (ε, δ).

A ρ-zCDP release has divergence at most αρ at every order α > 1; sampled Gaussians have their own
curve. Divergences add under adaptive composition at a fixed order, and any order turns a sum into
(ε, δ). For a plan that was fixed beforehand the best order may be picked afterwards; a filter,
which admits releases chosen from earlier outputs, must compare at one order that was fixed before
the first of them (Feldman and Zrnic 2021). All divergences, ε and δ are rounded up, ρ down.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpsynth_assets.privacy.errors import check_delta, check_positive
from dpsynth_assets.privacy.events import Event, MixtureGaussianEvent, PoissonGaussianEvent, flatten

ORDERS = tuple(1.0 + 0.25 * 1.05**step for step in range(201))
"""Orders at which a plan with sampled Gaussians is read: 1.25 to 4300, evenly in ln(α − 1)."""

MAXIMUM_POINTS = 200_000
"""Points of one quadrature; σ far below 0.1 is charged as if nothing were sampled instead."""

REACH = 10.0
"""Standard deviations kept of every Gaussian: what lies beyond has probability 8e-24."""

QUADRATURE_ERROR = 1e-12
"""Error of a log-moment, absolute and relative: float64 rounding alone."""

_UP = 1.0 + 1e-12


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Computes the smallest known δ at which ρ-zCDP implies (ε, δ)-DP, rounded up.

    **Source** Canonne, Kamath, Steinke 2020, Corollary 13 (first form of Theorem 1, Amin 2024).
    """
    if rho <= 0:
        return 0.0
    order = _best_order(rho, epsilon)  # any order gives a valid δ
    return delta_at_order(order * rho, order, epsilon)


# Cohorts that share a budget ask for the same conversions each time definitions load.
@lru_cache(maxsize=4096)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Computes the smallest ε with `zcdp_delta(rho, ε) <= delta`, rounded up."""
    check_delta(delta)
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    ceiling = zcdp_epsilon_closed_form(rho, delta)
    return boundary(lambda epsilon: zcdp_delta(rho, epsilon) <= delta, 0.0, ceiling, 60)


@lru_cache(maxsize=4096)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Computes the largest ρ whose ε at `delta` is at most `epsilon`, rounded down."""
    check_delta(delta)
    return boundary(lambda rho: zcdp_delta(rho, epsilon) <= delta, epsilon + 1.0, 0.0, 60)


def zcdp_epsilon_closed_form(rho: float, delta: float) -> float:
    """Computes ρ + 2 √(ρ ln(1/δ)), the looser form that papers print; `zcdp_epsilon` is below it.

    **Source** Bun and Steinke 2016, Proposition 1.3 (last form of Theorem 1, Amin 2024).
    """
    check_delta(delta)
    return (rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))) * _UP


def epsilon_at_order(divergence: float, order: float, delta: float) -> float:
    """Converts a Rényi divergence at one order into ε at δ, rounded up.

    **Source** Canonne, Kamath, Steinke 2020, Proposition 12.
    """
    check_delta(delta)
    if not order > 1:
        raise ValueError(f"Expected order > 1, got {order}.")
    if divergence <= 0:
        return 0.0
    terms = (divergence, math.log1p(-1.0 / order), -math.log(delta * order) / (order - 1.0))
    slack = 1e-15 * sum(abs(term) for term in terms)
    return max(0.0, sum(terms) + slack)


def delta_at_order(divergence: float, order: float, epsilon: float) -> float:
    """Converts a Rényi divergence at one order into δ at ε, rounded up."""
    exponent = (order - 1.0) * (divergence - epsilon) + order * math.log1p(-1.0 / order)
    exponent -= math.log(order - 1.0)
    slack = 1e-15 * ((order - 1.0) * (divergence + abs(epsilon)) + order)
    return min(1.0, math.exp(min(exponent + slack, 0.0)) * _UP)


@lru_cache(maxsize=256)
def filter_order(epsilon: float, delta: float) -> float:
    """Finds the one order at which a filter of the budget (ε, δ) compares divergences.

    It is the best order of the largest ρ within the budget: for zCDP releases this filter is then
    exactly the zCDP filter, and a function of the public budget alone.

    Raises:
        ValueError: If ε is not positive and finite, or δ outside (0, 1).
    """
    check_positive("epsilon", epsilon)
    return _best_order(zcdp_rho(epsilon, delta), epsilon)


def least_sampled_epsilon(delta: float) -> float:
    """The ε from which on noise for a sampled release is found within a fifth of what is needed.

    Twice the least ε that any of `ORDERS` can state of it: below that, sampling has no effect.
    That is of neighbours that come or go. Where they are replaced, noise found for a small ε is
    sound and more than is needed: under `zcdp` sampling never counts, and under `tight` (δ = 10⁻⁶,
    q = .01, 1,000 steps) 1.5 times as much is found at ε = .01 and 6.7 times as much at ε = .002.
    """
    check_delta(delta)
    conversions = (math.log1p(-1.0 / a) - math.log(delta * a) / (a - 1.0) for a in ORDERS)
    return 2.0 * max(0.0, min(conversions))


def is_zcdp(event: Event) -> bool:
    """Says whether ρ is all that is known of an event: no sampling lowers its divergence."""
    return all(
        not isinstance(atom, PoissonGaussianEvent)
        or atom.replaced
        or atom.sampling_probability == 1.0
        for atom in flatten(event)
    )


def renyi_divergence(event: Event, order: float) -> float:
    """Bounds the Rényi divergence of order α > 1 between neighbours, rounded up.

    Args:
        event: What was released.
        order: α > 1.

    Raises:
        ValueError: If the order is not above 1, or the event bounds a secret instead of a record.

    **Privacy** Unsampled events: αρ. A Poisson-sampled Gaussian under add/remove: where a unit's m
    records are drawn one by one, some record is drawn with probability 1 − (1 − q)^m and the sum
    then moves by at most m, so the divergence is at most that of one record of size m drawn with
    this probability (`pld` says why larger shifts are worse). Replaced units are
    charged without amplification, and αρ bounds every case.
    """
    if not order > 1:
        raise ValueError(f"Expected order > 1, got {order}.")
    atoms = flatten(event)
    refuse_secrets(atoms)
    return math.fsum(_atom_divergence(atom, float(order)) for atom in atoms) * _UP


def renyi_epsilon(events: Sequence[Event], delta: float) -> float:
    """Computes ε of a fixed composition by its best order among `ORDERS`, rounded up."""
    check_delta(delta)
    readings = (
        epsilon_at_order(sum(renyi_divergence(event, order) for event in events), order, delta)
        for order in ORDERS
    )
    return min(readings)


def _atom_divergence(atom: Event, order: float) -> float:
    unsampled = order * float_up(atom.rho)
    if is_zcdp(atom) or not isinstance(atom, PoissonGaussianEvent):
        return unsampled
    records = atom.max_records_per_unit
    drawn = some_record(atom.sampling_probability, records)
    one_step = sampled_divergence(drawn, atom.noise_multiplier / records, order)
    return min(unsampled, atom.steps * one_step)


def some_record(sampling_probability: float, records: int) -> float:
    """Computes the probability 1 − (1 − q)^m that any of m records is drawn, rounded up."""
    if sampling_probability == 1.0:
        return 1.0
    return min(1.0, -math.expm1(records * math.log1p(-sampling_probability)) * _UP)


@lru_cache(maxsize=65536)
def sampled_divergence(probability: float, noise_multiplier: float, order: float) -> float:
    """Bounds D_α of (1 − q) N(0, σ²) + q N(1, σ²) from N(0, σ²), by quadrature of its α-th moment.

    The trapezoid rule converges exponentially on an analytic integrand. This one is analytic up to
    the zeros of the mixture at height ±πσ²; on a line at height a <= πσ² it is at most e^(a²/2σ²)
    times its real values, so a step of h costs a relative e^(a²/2σ² − 2πa/h) < 1e-20 below.
    dp_accounting's series agrees at whole orders, and diverges at some others.

    Args:
        probability: q in (0, 1].
        noise_multiplier: σ > 0.
        order: α > 1.

    Returns:
        The divergence, rounded up; inf where the quadrature would take too many points.

    **Source** Mironov, Talwar, Zhang 2019, Theorems 4 and 5: this direction is the larger one.
    """
    q, sigma = min(1.0, probability * _UP), noise_multiplier
    step = min(sigma / 2.0, sigma**2 / 3.0)
    if order > MAXIMUM_POINTS * step:
        return math.inf
    # Up to constants the integrand lies below a mixture of N(k, σ²), 0 <= k <= α + 1.
    points = np.arange(-REACH * sigma, order + 1.0 + REACH * sigma, step)
    with np.errstate(divide="ignore"):
        mixture = np.logaddexp(np.log1p(-q), math.log(q) + (points - 0.5) / sigma**2)
    exponents = order * mixture - (points / sigma) ** 2 / 2.0
    largest = float(exponents.max())
    total = float(np.exp(exponents - largest).sum()) * step / (sigma * math.sqrt(2.0 * math.pi))
    log_moment = max(0.0, largest + math.log(total))
    return (log_moment + QUADRATURE_ERROR * (1.0 + log_moment)) / (order - 1.0)


def _best_order(rho: float, epsilon: float) -> float:
    """Minimises δ of ρ-zCDP at ε over orders; the exponent is convex: bisect its derivative."""
    low, high = 1.0 + 1e-12, (epsilon + 1.0) / (2.0 * rho) + 2.0
    for _ in range(80):
        order = (low + high) / 2.0
        slope = (2.0 * order - 1.0) * rho - epsilon + math.log1p(-1.0 / order)
        low, high = (order, high) if slope < 0 else (low, order)
    return high


def refuse_secrets(atoms: Sequence[Event]) -> None:
    """Raises ValueError if an event bounds a secret: its protection is never summed with ε."""
    if any(isinstance(atom, MixtureGaussianEvent) for atom in atoms):
        raise ValueError(
            "Expected events that bound a record, got one that bounds a secret: account for it by "
            "posterior_of_events."
        )


def float_up(value: Fraction) -> float:
    """Rounds an exact number up to a float; infinity where it is beyond them all."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def boundary(
    fits: Callable[[float], bool], fails: float, holds: float, bisections: int = 100
) -> float:
    """Bisects for where a monotone `fits` turns; returns the side on which it holds."""
    for _ in range(bisections):
        middle = (fails + holds) / 2.0
        if middle in (fails, holds):
            break
        fails, holds = (fails, middle) if fits(middle) else (middle, holds)
    return holds
