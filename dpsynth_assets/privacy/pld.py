"""Privacy-loss distributions (PLDs) of single events, all on one grid so that they convolve.

Every PLD here is pessimistic: a loss between two grid points is split over both such that the
probability and the probability under the neighbour stay what they were (connect the dots;
Doroshenko et al. 2022). The split is post-processing undone, so δ only grows, and by a term of
second order in the spacing. dp_accounting always runs in add/remove mode on float() parameters.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dpsynth_assets.privacy.bounded_range import (
    PrivacyProfile,
    bounded_range_profile,
    horizon,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    TruncatedPoissonGaussianEvent,
)
from dpsynth_assets.privacy.integer_gaussian import integer_gaussian_losses
from dpsynth_assets.privacy.renyi import float_up, zcdp_delta
from dpsynth_assets.privacy.sampled_gaussian import poisson_step_pld, truncated_step_pld

DISCRETIZATION = 2e-4
"""Spacing of privacy losses in every PLD; the error of connect-the-dots is of second order."""

NUMERICAL_DELTA = 1e-13
"""Part of δ kept back for the rounding of Fourier transforms (measured: below 2e-14)."""

NUMERICAL_DELTA_PER_STEP = 1e-18
"""The same for each step of a composition of one event with itself."""

MAXIMUM_LOSS = 300.0
"""Largest privacy loss of one release that a PLD is built for; beyond, zCDP has to do."""

_TAIL = 1e-15
_UP = 1.0 + 1e-12


def pld_epsilon(pld: Any, delta: float) -> float:
    """Reads ε at δ off a PLD, rounded up; inf where δ is below what floats can resolve."""
    usable = delta - NUMERICAL_DELTA
    if usable <= 0:
        return math.inf
    return max(0.0, float(pld.get_epsilon_for_delta(usable))) * _UP


def pld_delta(pld: Any, epsilon: float) -> float:
    """Reads δ at ε off a PLD, rounded up."""
    return min(1.0, float(pld.get_delta_for_epsilon(float(epsilon))) + NUMERICAL_DELTA)


def pld_is_affordable(event: Event) -> bool:
    """Says whether the losses of one release (all of them, if it only counts) fit on a grid."""
    one_step = float_up(event.rho) / max(1, getattr(event, "steps", 1))
    return horizon(one_step, 1e-22) <= MAXIMUM_LOSS


def event_pld(event: Event, delta: float, discretization: float = DISCRETIZATION) -> Any:
    """Builds the PLD of one event, pessimistic and cached.

    Args:
        event: An atomic event that bounds a record.
        delta: Sets how far a token block's grid reaches, nothing else.
        discretization: Spacing of privacy losses; PLDs of one spacing convolve.

    Raises:
        TypeError: If the event is composed or bounds a secret.
    """
    reach = delta if isinstance(event, BoundedRangeEvent) else None
    return _event_pld(event, reach, discretization)


@lru_cache(maxsize=64)  # a few MB each
def _event_pld(event: Event, delta: float | None, gap: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as library

    match event:
        case GaussianEvent():
            return library.from_gaussian_mechanism(
                float(event.noise_multiplier), value_discretization_interval=gap
            )
        case DiscreteGaussianEvent():
            return atoms_to_pld(*integer_gaussian_losses(event), gap)
        case DiscreteLaplaceEvent():
            return library.from_discrete_laplace_mechanism(
                1.0 / float(event.scale),
                event.sensitivity,
                value_discretization_interval=gap,
                use_connect_dots=True,
            )
        case PureEvent():
            return pure_pld(event.epsilon, event.count, gap)
        case PoissonGaussianEvent():
            return _composed(poisson_step_pld(event, gap), event.steps)
        case TruncatedPoissonGaussianEvent():
            return _composed(truncated_step_pld(event, gap), event.steps)
        case BoundedRangeEvent() if delta is not None:
            return profile_to_pld(token_profile(event, delta), gap)
    raise TypeError(f"Expected an atomic event, got {type(event).__name__}.")


def _composed(pld: Any, steps: int) -> Any:
    """Composes a PLD with itself; rounding of the transform is charged to δ."""
    truncated = _TAIL + steps * NUMERICAL_DELTA_PER_STEP
    return pld if steps == 1 else pld.self_compose(steps, truncated)


def pure_pld(epsilon: float, count: int, gap: float = DISCRETIZATION) -> Any:
    """Builds the PLD of `count` adaptive pure ε-DP releases: exact, then put on the grid.

    **Privacy** Every pure ε-DP pair is a post-processing of randomized response, whose loss is ε
    with probability p = e^ε / (1 + e^ε), else −ε. So the loss is ε (2 Binomial(count, p) − count).

    **Source** Kairouz, Oh, Viswanath 2015 (optimal homogeneous composition).
    """
    from scipy.stats import binom

    successes = np.arange(count + 1)
    masses = binom.pmf(successes, count, 1.0 / (1.0 + math.exp(-epsilon)))
    return atoms_to_pld(epsilon * (2.0 * successes - count), masses, gap)


def atoms_to_pld(losses: np.ndarray, masses: np.ndarray, gap: float) -> Any:
    """Puts the atoms of a symmetric PLD on the grid, pessimistically.

    Args:
        losses: (A,) privacy losses, ascending.
        masses: (A,) probability of each.
        gap: Spacing of privacy losses.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    kept = np.flatnonzero((np.cumsum(masses) > _TAIL) & (np.cumsum(masses[::-1])[::-1] > _TAIL))
    first, last = kept[0], kept[-1]
    beyond = max(0.0, 1.0 - float(masses[first : last + 1].sum()))  # both tails count as infinite
    losses, masses = losses[first : last + 1], masses[first : last + 1]
    left = np.floor(losses / gap)
    share = np.expm1(left * gap - losses) / math.expm1(-gap)
    share = np.clip(share, 0.0, 1.0)
    start = int(left[0])
    bins = (left - start).astype(np.int64)
    grid = np.bincount(bins, masses * (1.0 - share), bins[-1] + 2)
    grid += np.bincount(bins + 1, masses * share, bins[-1] + 2)
    pmf = pld_pmf.DensePLDPmf(gap, start, grid, beyond + _TAIL, True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def profile_to_pld(profile: PrivacyProfile, gap: float = DISCRETIZATION) -> Any:
    """Turns a privacy profile into a dp_accounting PLD that dominates it (connect the dots).

    **Privacy** Valid for any interleaving of the block with other mechanisms: an interactive
    mechanism is a post-processing of the pair that attains its profile (Vadhan-Zhang 2023).
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    end = (len(profile.deltas) - 1) * profile.step
    last = max(1, math.floor(end / gap))
    epsilons = np.arange(last + 1) * gap
    right = profile.delta(epsilons)
    shrink = np.exp(-epsilons[:0:-1])
    left = 1.0 - shrink + shrink * right[:0:-1]  # symmetry: δ(−ε) = 1 − e^(−ε) + e^(−ε) δ(ε)
    deltas = np.clip(np.minimum.accumulate(np.concatenate([left, right])), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -last, last, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def token_profile(event: BoundedRangeEvent, delta: float) -> PrivacyProfile:
    """Composes token draws optimally, or by zCDP where the recursion would take minutes."""
    if recursion_is_affordable(event.eta, event.count, delta):
        return bounded_range_profile(event.eta, event.count, delta)
    rho = float_up(event.rho)
    step = horizon(rho, delta * 1e-4) / 4000
    return PrivacyProfile(step, np.array([zcdp_delta(rho, i * step) for i in range(4001)]))
