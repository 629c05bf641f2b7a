"""From accounting events to (ε, δ): a zCDP filter and a tight accountant for fixed plans.

`zcdp` adds exact ρ and converts once (Canonne-Kamath-Steinke 2020); it is valid when later
releases are chosen from earlier outputs. `tight` convolves privacy-loss distributions (PLD) and
composes token draws optimally; it is valid for a plan that was fixed beforehand. All results are
rounded up. dp_accounting always runs in add/remove mode on float() parameters.
"""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from dpsynth_assets.privacy.bounded_range import (
    PrivacyProfile,
    bounded_range_epsilon,
    bounded_range_profile,
    horizon,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    flatten,
)

ACCOUNTANTS = ("zcdp", "tight")

DISCRETIZATION = 2e-4
"""Spacing of privacy losses in every PLD; the error of connect-the-dots is of second order."""

_UP = 1.0 + 1e-12


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Computes the smallest known δ at which ρ-zCDP implies (ε, δ)-DP, rounded up.

    **Source** Canonne, Kamath, Steinke 2020, Corollary 13 (first form of Theorem 1, Amin 2024).
    """
    if rho <= 0:
        return 0.0
    low, high = 1.0 + 1e-12, (epsilon + 1.0) / (2.0 * rho) + 2.0
    for _ in range(80):  # the exponent is convex in α: bisect its derivative
        alpha = (low + high) / 2.0
        slope = (2.0 * alpha - 1.0) * rho - epsilon + math.log1p(-1.0 / alpha)
        low, high = (alpha, high) if slope < 0 else (low, alpha)
    alpha = high  # any α > 1 gives a valid δ
    exponent = (alpha - 1.0) * (alpha * rho - epsilon) + alpha * math.log1p(-1.0 / alpha)
    return 1.0 if exponent > 0 else min(1.0, math.exp(exponent) / (alpha - 1.0) * _UP)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Computes the smallest ε with `zcdp_delta(rho, ε) <= delta`, rounded up."""
    _check_delta(delta)
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    low, high = 0.0, rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if zcdp_delta(rho, middle) <= delta else (middle, high)
    return high


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Computes the largest ρ whose ε at `delta` is at most `epsilon`, rounded down."""
    _check_delta(delta)
    low, high = 0.0, epsilon + 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if zcdp_delta(middle, epsilon) <= delta else (low, middle)
    return low


def epsilon_of(events: Sequence[Event], delta: float, accountant: str) -> float:
    """Computes ε of the composition of `events` at δ = `delta`, rounded up; 0 for no events.

    Args:
        events: What was released on one cohort, in any order.
        delta: Public δ in (0, 1).
        accountant: `zcdp` or `tight`.

    Raises:
        ValueError: If the accountant is unknown or δ is outside (0, 1).
    """
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"Expected accountant in {ACCOUNTANTS}, got {accountant!r}.")
    _check_delta(delta)
    atoms = tuple(atom for event in events for atom in flatten(event))
    if accountant == "zcdp":
        return zcdp_epsilon(_float_up(sum((atom.rho for atom in atoms), Fraction(0))), delta)
    blocks = _blocks(atoms)
    return _tight_epsilon(blocks, float(delta)) if blocks else 0.0


def epsilon_of_fixed(events: Sequence[Event], delta: float, accountant: str) -> float:
    """Computes the smaller of two bounds on a composition that was fixed beforehand, rounded up.

    Besides `epsilon_of`: the pure releases by basic composition, added to the rest. zCDP is loose
    for few pure releases (a 0.1-DP histogram reads 0.43 at δ = 1e-6), and both bounds hold at once
    for one release or any fixed set. Not a filter: a cohort's running total is `epsilon_of`.
    """
    atoms = [atom for event in events for atom in flatten(event)]
    pure = sum(
        (atom.epsilon for atom in atoms if isinstance(atom, DiscreteLaplaceEvent)), Fraction(0)
    )
    rest = [atom for atom in atoms if not isinstance(atom, DiscreteLaplaceEvent)]
    whole = epsilon_of(events, delta, accountant)
    if not pure:
        return whole
    split = _float_up(pure + Fraction(epsilon_of(rest, delta, accountant)))
    return min(whole, split)


def profile_to_pld(profile: PrivacyProfile) -> Any:
    """Turns a privacy profile into a dp_accounting PLD that dominates it (connect the dots).

    **Privacy** Valid for any interleaving of the block with other mechanisms: an interactive
    mechanism is a post-processing of the pair that attains its profile (Vadhan-Zhang 2023).
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    end = (len(profile.deltas) - 1) * profile.step
    last = max(1, math.floor(end / DISCRETIZATION))
    epsilons = np.arange(last + 1) * DISCRETIZATION
    right = profile.delta(epsilons)
    shrink = np.exp(-epsilons[:0:-1])
    left = 1.0 - shrink + shrink * right[:0:-1]  # symmetry: δ(−ε) = 1 − e^(−ε) + e^(−ε) δ(ε)
    deltas = np.clip(np.minimum.accumulate(np.concatenate([left, right])), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(DISCRETIZATION, -last, last, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def composed_pld(events: Sequence[Event], delta: float) -> Any | None:
    """Convolves the PLDs of all events; None when there are none."""
    pld = None
    for block in _blocks(tuple(atom for event in events for atom in flatten(event))):
        part = _event_pld(block, float(delta))
        pld = part if pld is None else pld.compose(part)
    return pld


def pld_epsilon(pld: Any, delta: float) -> float:
    """Reads ε at δ off a PLD, rounded up."""
    return max(0.0, float(pld.get_epsilon_for_delta(delta))) * _UP


@lru_cache(maxsize=4096)
def _tight_epsilon(blocks: tuple[Event, ...], delta: float) -> float:
    if len(blocks) == 1 and isinstance(tokens := blocks[0], BoundedRangeEvent):
        if not recursion_is_affordable(tokens.eta, tokens.count, delta):
            return zcdp_epsilon(_float_up(tokens.rho), delta)
        return bounded_range_epsilon(tokens.eta, tokens.count, delta)
    alone = (
        _tight_epsilon((block,), delta) for block in blocks if isinstance(block, BoundedRangeEvent)
    )
    # A token block alone is rounded up to its grid: never report less for more releases.
    return max(pld_epsilon(composed_pld(blocks, delta), delta), *alone, 0.0)


def _token_profile(event: BoundedRangeEvent, delta: float) -> PrivacyProfile:
    """Composes token draws optimally, or by zCDP where the recursion would take minutes."""
    if recursion_is_affordable(event.eta, event.count, delta):
        return bounded_range_profile(event.eta, event.count, delta)
    rho = _float_up(event.rho)
    step = horizon(rho, delta * 1e-4) / 4000
    return PrivacyProfile(step, np.array([zcdp_delta(rho, i * step) for i in range(4001)]))


def _blocks(atoms: tuple[Event, ...]) -> tuple[Event, ...]:
    """Merges events that compose exactly: Gaussians into one, token draws of one η into one.

    The merged draws are one adaptive block, which is also tighter than two separate ones.
    """
    rho = sum((atom.rho for atom in atoms if isinstance(atom, GaussianEvent)), Fraction(0))
    draws: Counter[float] = Counter()
    for atom in atoms:
        if isinstance(atom, BoundedRangeEvent):
            draws[atom.eta] += atom.count
    blocks: list[Event] = []
    if rho > 0:
        noise_multiplier = math.sqrt(1.0 / (2.0 * _float_up(rho))) / _UP
        blocks.append(GaussianEvent(noise_multiplier=noise_multiplier))
    laplace = [atom for atom in atoms if isinstance(atom, DiscreteLaplaceEvent)]
    laplace.sort(key=lambda atom: (atom.scale, atom.sensitivity))
    blocks += laplace
    blocks += [BoundedRangeEvent(eta=eta, count=draws[eta]) for eta in sorted(draws) if draws[eta]]
    return tuple(blocks)


@lru_cache(maxsize=256)
def _event_pld(event: Event, delta: float) -> Any:
    """Builds the PLD of one block. `delta` only sets how far a token block's grid reaches."""
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, GaussianEvent):
        return privacy_loss_distribution.from_gaussian_mechanism(
            float(event.noise_multiplier), value_discretization_interval=DISCRETIZATION
        )
    if isinstance(event, DiscreteLaplaceEvent):
        return privacy_loss_distribution.from_discrete_laplace_mechanism(
            1.0 / float(event.scale),
            event.sensitivity,
            value_discretization_interval=DISCRETIZATION,
            use_connect_dots=True,
        )
    if isinstance(event, BoundedRangeEvent):
        return profile_to_pld(_token_profile(event, delta))
    raise TypeError(f"Expected an atomic event, got {type(event).__name__}.")


def _float_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta < 1, got {delta}.")
